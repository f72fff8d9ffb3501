"""Widgets of the app. They display views and hold no state of pools."""
