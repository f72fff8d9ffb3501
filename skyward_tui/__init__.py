"""The terminal face of skyward: the ``skyward-tui`` command and the app it opens."""
