"""The launch form."""
