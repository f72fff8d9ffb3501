"""Minimal pytest for ranks that load a test module. It loads the real pytest when more is needed.

Ranks need only the functions of the module. Importing pytest would take most of a rank's start-up time.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = str(Path(__file__).parent)


class Mark:
    """``pytest.mark.NAME`` that leaves its function unchanged."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself looks for
            raise AttributeError(name)
        return as_it_is


def as_it_is(*given: Any, **more: Any) -> Any:
    """Return a decorator's function unchanged, or such a decorator."""
    return given[0] if len(given) == 1 and not more and callable(given[0]) else lambda made: made


fixture = as_it_is
mark = Mark()


def param(*values: Any, **more: Any) -> None: ...


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(real(), name)


def real() -> ModuleType:
    """Replace this module by the real pytest."""
    if sys.modules.get("pytest") is sys.modules[__name__]:
        del sys.modules["pytest"]
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if entry != FOLDER]
    try:
        import pytest

        return pytest
    finally:
        sys.path[:] = path
