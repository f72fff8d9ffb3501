"""Launch screen of the app."""
