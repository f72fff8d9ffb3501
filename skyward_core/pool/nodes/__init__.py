"""Nodes coming up, going, and coming back."""
