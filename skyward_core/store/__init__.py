"""What the client keeps on its disk."""
