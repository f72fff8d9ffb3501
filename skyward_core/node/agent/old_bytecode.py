"""Bytecode of modules as they were before they were edited.

Python takes what it has compiled before for a source's where the source's size is as it was, and its time in whole
seconds. So it would load the old text where somebody edits twice in a second, as programs do.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import cache_from_source
from pathlib import Path


def remove(folder: str, modules: Mapping[str, str]) -> None:
    """Remove what was compiled before a source came to be as it is; by this machine's clock, as the source's own time
    may be another's.

    Args:
        folder: where names begin that are no whole paths.
        modules: the sources, and each one's hash when it was loaded; of one without, nobody knows what was compiled.
    """
    for name, loaded in modules.items():
        source = Path(folder, name)
        compiled = Path(cache_from_source(source))
        try:
            if not loaded or compiled.stat().st_mtime_ns <= source.stat().st_ctime_ns:
                compiled.unlink()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            continue  # somebody else's folder, where ranks cannot have compiled anything
