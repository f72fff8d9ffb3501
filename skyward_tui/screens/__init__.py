"""Screens of the app, each imported when first shown."""
