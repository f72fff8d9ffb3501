"""Functions that user code calls inside a rank. Runs on nodes, so it depends only on the standard library."""
