"""Formatting of values as text and table cells."""
