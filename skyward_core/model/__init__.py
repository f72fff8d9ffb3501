"""Plain values without side effects. Depends only on the standard library."""
