"""Entry point of ``python -m skyward_tui``, which is the same as ``skyward-tui``."""

from skyward_tui.entry import main

main()
