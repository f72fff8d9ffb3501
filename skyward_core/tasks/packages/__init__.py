"""What a project says of its packages: a lock, requirements, its own file; and what of it lies here alone."""
