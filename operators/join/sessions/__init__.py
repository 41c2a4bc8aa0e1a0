"""Session joins: messages match all others of their session."""
