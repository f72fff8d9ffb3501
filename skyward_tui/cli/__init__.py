"""The ``skyward-tui`` command line."""
