"""What user code calls inside a rank. Standard library only: it runs on nodes."""
