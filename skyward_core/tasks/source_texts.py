"""The source of what travels by value: whole files, or cells of a notebook, by the names that code has for them.

A pickle only names them, behind what it holds: ``{name: (place, content's name, file's name)}``, with place "" for what
is no file. Nodes that have not got them are sent them once, whatever the number of calls.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from ..store.user_files import read_bytes, resolved
from ..wire.content_name import name_of
from .task import SourceText

LARGEST = 1 << 18  # bytes; the source of what is larger stays here
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

Named = dict[str, tuple[str, str, str]]


def sources_of(names: Iterable[str]) -> tuple[Named, tuple[SourceText, ...]]:
    """The source by these names, as pickles name it and as nodes are sent it.

    Args:
        names: as in ``co_filename``; of what has no source, or is installed, nothing is given.
    """
    named, found = {}, []
    for name in names:
        source = _source(name)
        if source is not None:
            named[name] = source.place, source.hash, source.name
            found.append(source)
    return named, tuple(found)


def _source(name: str) -> SourceText | None:
    if name.startswith("<frozen ") or name == "<string>" or _is_installed(name):
        return None
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        lines = linecache.cache[name][2] if len(linecache.cache.get(name, ())) == 4 else ()  # type: ignore[misc]
        return _of_text("".join(lines)) if lines else None
    return _of_file(name, found.st_mtime_ns, found.st_size)


@lru_cache(64)
def _of_text(text: str) -> SourceText | None:
    data = text.encode(errors="surrogatepass")
    return SourceText(name_of(data), "cell.py", "", data) if len(data) <= LARGEST else None


@lru_cache(64)
def _of_file(name: str, changed: int, size: int) -> SourceText | None:
    path = resolved(name)
    try:
        data = read_bytes(path, LARGEST) if size <= LARGEST else b""
    except OSError:
        return None
    called = path.name if PLAIN.fullmatch(path.name) else "script.py"
    return SourceText(name_of(data), called, str(path), data) if data else None


@lru_cache(256)
def _is_installed(name: str) -> bool:
    ours = Path(__file__).parents[1]
    library = Path(os.__file__).parent
    return bool(INSTALLED.search(name)) or any(
        name.startswith(f"{folder}{os.sep}") for folder in (ours, library, Path(sys.base_prefix) / "lib")
    )
