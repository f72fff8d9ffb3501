"""Helpers that know nothing of the project."""
