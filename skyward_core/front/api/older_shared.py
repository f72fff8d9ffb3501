"""Whether a script shares state by the words of older generations, which have it without a plugin."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from shutil import which

from ...store.user_files import read_text
from ...store.working_folder import main_script

_OLDER = "skyward"
_SHARES = re.compile(
    r"^[^#\n]*(?:\b(?:sky|skyward)\.(?:dict|set|counter|queue|barrier|lock)\("
    r"|\bfrom skyward import [^\n]*\b(?:dict|set|counter|queue|barrier|lock)\b)",
    re.MULTILINE,
)


def shares_by_older_name() -> bool:
    """Whether the script that runs, by the older name of this library, shares dicts and their like, which older
    generations have without a plugin; and whether what that takes is here."""
    if _OLDER not in sys.modules or (script := main_script()) is None:
        return False
    if find_spec("redis") is None or not (which("redis-server") or which("valkey-server")):
        return False
    try:
        return _SHARES.search(read_text(script, errors="replace")) is not None
    except OSError:  # it is gone
        return False
