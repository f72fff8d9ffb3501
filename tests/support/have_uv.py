"""The uv of the environment that the tests run in, for whoever looks for it in the path."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def have_uv() -> Callable[[], None]:
    """Put a folder with uv alone at the end of the path: the environment's own commands are no business of tests.

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
    (folder / "uv").symlink_to(find_uv_bin())
    os.environ["PATH"] = f"{before}{os.pathsep}{folder}"

    def undo() -> None:
        os.environ["PATH"] = before
        shutil.rmtree(folder)

    return undo
