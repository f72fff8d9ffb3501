"""Widgets of the app. They display views and store no state of pools."""
