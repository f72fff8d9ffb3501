"""Screens of the app, imported when first shown."""
