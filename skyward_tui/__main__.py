"""``python -m skyward_tui`` is the ``skyward-tui`` command."""

from .entry import main

main()
