"""Helpers that are independent of the project."""
