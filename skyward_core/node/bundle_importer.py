"""Importer of the code bundle that was sent to the node.

``zipimporter`` alone does that twice: once to tell what the file is called, once for the code.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import spec_from_file_location
from zipimport import zipimporter

from skyward_core.protocol.node_paths import deferred_bundle_path

TYPE_CHECKING = False  # typing's would be imported for it

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType


def install_bundle_importer(bundle: str) -> None:
    """Have what lies in packages of a bundle imported so, its rest as well.

    Args:
        bundle: path of its first file.
    """
    below = (f"{bundle}/", f"{deferred_bundle_path(bundle)}/")

    def hook(path: str) -> _Importer:
        if not path.startswith(below):
            raise ImportError(f"{path} is not of the bundle")
        return _Importer(path)

    sys.path_hooks.insert(0, hook)
    for path in [path for path in sys.path_importer_cache if path.startswith(below)]:
        del sys.path_importer_cache[path]


class _Importer(zipimporter):
    """That of one package."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._found: dict[str, CodeType] = {}

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        try:
            code, is_package = super().get_code(fullname), self.is_package(fullname)
        except ImportError:
            return super().find_spec(fullname, target)
        self._found[fullname] = code
        folder = f"{self.archive}/{self.prefix}{fullname.rpartition('.')[2]}"
        file = f"{folder}/__init__.py" if is_package else f"{folder}.py"
        if code.co_filename != file:  # it came compiled, and says where that was
            file += "c"
        places = [folder] if is_package else None
        return spec_from_file_location(fullname, file, loader=self, submodule_search_locations=places)

    def get_code(self, fullname: str) -> CodeType:
        return self._found.pop(fullname, None) or super().get_code(fullname)


# A rank has no pathlib.
# ruff: noqa: PTH110, PTH120


PACKAGE = "skyward_core"
BUNDLE_TIMEOUT = 60.0  # seconds for which an import waits: on a slow line it takes that long
BUNDLE_POLL = 0.05  # seconds between looks


def install_deferred_importer(path: str) -> None:
    """Have modules that the first file lacks found in the rest.

    Args:
        path: where the package lies, in the first file.
    """
    bundle = os.path.dirname(path)
    install_bundle_importer(bundle)
    # At the end: it is asked for what nobody else has.
    sys.meta_path.append(_DeferredFinder(deferred_bundle_path(bundle)))


class _DeferredFinder:
    def __init__(self, rest: str) -> None:
        self._rest = rest
        self._user = os.geteuid()
        self._until = 0.0  # when nobody waits any more: once for all imports

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PACKAGE + "."):
            return None
        from importlib.machinery import PathFinder

        self._wait_for_bundle(fullname)
        above = fullname.rpartition(".")[0].replace(".", "/")
        return PathFinder.find_spec(fullname, [f"{self._rest}/{above}"])

    def _wait_for_bundle(self, fullname: str) -> None:
        import time

        self._until = self._until or time.monotonic() + BUNDLE_TIMEOUT
        while reason := self._unavailable_reason():
            if time.monotonic() > self._until or os.geteuid() != self._user:
                raise ModuleNotFoundError(f"{fullname} is not on this node: {reason}", name=fullname)
            time.sleep(BUNDLE_POLL)

    def _unavailable_reason(self) -> str:
        """Why nothing can be imported from it yet, or "": it is there, and nobody else can have put it there."""
        if (user := os.geteuid()) != self._user:
            return (
                f"this process has become user {user}, and the library is readable to user {self._user} alone: import "
                "what you need of it before you change the user"
            )
        if not os.path.exists(self._rest):
            return (
                "the client that started the pool has left, or was cut off, before it had sent this part of the "
                "library. The next pool that is made on this host sends it"
            )
        from skyward_core.node.bootstrap.host_inspection import distrust_reason

        return distrust_reason(self._rest)
