"""What is run: scripts, functions and their arguments, on their way to the nodes."""
