"""Availability of uv and uvx from the tests' environment in PATH."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def have_uv() -> Callable[[], None]:
    """Append a folder with only uv and uvx to PATH, because other commands of the environment must not be found.

    Returns:
        A function that removes the folder. Nothing is added if PATH already has uv, or if uv is not installed.
    """
    try:
        from uv import find_uv_bin
    except ImportError:
        return lambda: None
    if shutil.which("uv"):  # also in the processes of a run, from the one that started them
        return lambda: None
    folder, before = Path(tempfile.mkdtemp(prefix="uv-")), os.environ["PATH"]
    for name in ("uv", "uvx"):
        (folder / name).symlink_to(Path(find_uv_bin()).with_name(name))
    os.environ["PATH"] = f"{before}{os.pathsep}{folder}"

    def undo() -> None:
        os.environ["PATH"] = before
        shutil.rmtree(folder)

    return undo
