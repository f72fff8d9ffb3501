"""``import skyward`` means this package where no other of that name is installed.

Scripts written for the older name then run as they are.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # workers start fast: the real one costs imports and adds nothing we use

_OLD, _NEW = "skyward", "skyward_core"
# Modules that scripts named, and where they are now.
_MOVED = {
    "accelerators": "model.accelerators",
    "errors": "model.errors",
    "spec": "model.spec",
    "time": "model.lengths_of_time",
}


def install() -> None:
    """Let ``skyward`` and its submodules resolve to ours from now on; idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    # First in line, as the path finder would load a second copy of a submodule from our package's folder.

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, dot, rest = fullname.partition(".")
        if root != _OLD:
            return None
        if not dot:
            return None if PathFinder.find_spec(fullname, path) else ModuleSpec(fullname, _Loader(_NEW))
        if sys.modules.get(_OLD) is not sys.modules.get(_NEW):
            return None
        first, dot, more = rest.partition(".")
        return ModuleSpec(fullname, _Loader(f"{_NEW}.{_MOVED.get(first, first)}{dot}{more}"))


class _Loader(Loader):
    """Hands out a module of ours; the import system overwrites its spec, so that is put back."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
