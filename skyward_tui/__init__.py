"""Command line and terminal app of skyward: the ``skyward-tui`` command."""
