"""Launch form."""
