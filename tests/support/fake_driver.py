"""Simulated NVIDIA driver, compiled from ``fake_nvml.c``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for the driver's stand-in")


def compiled(folder: Path) -> Path:
    """Return the folder of the library, for ``LD_LIBRARY_PATH``."""
    source = Path(__file__).parent / "fake_nvml.c"
    subprocess.run(
        [str(COMPILER), "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True
    )
    return folder
