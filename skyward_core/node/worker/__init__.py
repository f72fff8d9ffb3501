"""The process that runs user code."""
