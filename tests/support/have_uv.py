"""The uv and uvx of the environment that the tests run in, for whoever looks for them in the path."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def have_uv() -> Callable[[], None]:
    """Put a folder with these alone at the end of the path: the environment's own commands are no business of tests.

    Returns:
        What takes it away again. Nothing was put there where uv is in the path, or not installed.
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
