"""Screens of the app. Each is imported when it is first shown."""
