"""Join windows: each message once, in the first window that takes it, and all of them kept for joins of your own."""
