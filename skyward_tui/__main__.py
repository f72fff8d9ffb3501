"""``python -m skyward_tui`` is the ``skyward-tui`` command."""

from .cli import main

main()
