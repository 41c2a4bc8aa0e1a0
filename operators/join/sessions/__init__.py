"""Joins over sessions: messages meet all others of their session."""
