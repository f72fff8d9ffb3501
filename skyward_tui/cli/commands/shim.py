"""``skyward-tui shim``: the older name ``skyward`` for scripts that are run by a plain ``python``."""

from __future__ import annotations

from skyward_core.client import skyward_alias
from skyward_core.model import errors
from skyward_tui.cli.console import Console


def install(python: str | None, console: Console) -> int:
    """Write the alias, and say where."""
    shim = skyward_alias.install(python)
    word = "now finds" if shim.changed else "finds, as before,"
    return _report(shim, f"`import skyward` of {shim.python} {word} skyward_core, by {shim.path}", console)


def remove(python: str | None, console: Console) -> int:
    """Take the alias away, and say where it was."""
    shim = skyward_alias.remove(python)
    word = "is gone" if shim.changed else "was not there"
    return _report(shim, f"the alias of {shim.python}, {shim.path}, {word}", console)


def _report(shim: skyward_alias.AliasModule, words: str, console: Console) -> int:
    if console.as_json:
        console.result({"path": str(shim.path), "python": shim.python, "changed": shim.changed})
    else:
        console.print_line(words)
    return errors.OK
