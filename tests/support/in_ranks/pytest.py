"""What a rank that loads a module of tests needs of pytest; the real one where anything else of it is wanted.

The module is loaded for its functions: what makes tests of them does nothing there, and to load pytest would take most
of what a rank takes to be there.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = str(Path(__file__).parent)


class Mark:
    """``pytest.mark.NAME``, given anything or nothing, leaves what it is on as it is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself looks for
            raise AttributeError(name)
        return as_it_is


def as_it_is(*given: Any, **more: Any) -> Any:
    """A decorator, or what makes one."""
    return given[0] if len(given) == 1 and not more and callable(given[0]) else lambda made: made


fixture = as_it_is
mark = Mark()


def param(*values: Any, **more: Any) -> None: ...


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(real(), name)


def real() -> ModuleType:
    """The real one, from now on under its name."""
    if sys.modules.get("pytest") is sys.modules[__name__]:
        del sys.modules["pytest"]
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if entry != FOLDER]
    try:
        import pytest

        return pytest
    finally:
        sys.path[:] = path
