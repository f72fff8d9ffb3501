"""``python -m skyward_tui`` is the ``skyward-tui`` command."""

from skyward_tui.entry import main

main()
