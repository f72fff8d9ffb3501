"""Scripts, functions and their arguments, prepared for the nodes that run them."""
