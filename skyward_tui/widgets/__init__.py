"""Widgets of the app. They show views and hold no state of the pools."""
