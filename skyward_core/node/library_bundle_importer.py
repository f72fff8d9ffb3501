"""Importer for the code bundle that was sent to the node.

Python's ``zipimporter`` reads each module twice: once for the file name and once for the code. This importer reads it
once.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import spec_from_file_location
from zipimport import zipimporter

from skyward_core.protocol.node_paths import deferred_bundle_path

TYPE_CHECKING = False  # Not imported, because ``from typing import TYPE_CHECKING`` would load the module typing.

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType


def install_bundle_importer(bundle: str) -> None:
    """Install the importer for the packages of a bundle, including its deferred part.

    Args:
        bundle: Path of the bundle's first file.
    """
    below = (f"{bundle}/", f"{deferred_bundle_path(bundle)}/")

    def hook(path: str) -> _Importer:
        if not path.startswith(below):
            raise ImportError(f"{path} is not part of the bundle")
        return _Importer(path)

    sys.path_hooks.insert(0, hook)
    for path in [path for path in sys.path_importer_cache if path.startswith(below)]:
        del sys.path_importer_cache[path]


class _Importer(zipimporter):
    """Importer of one package of the bundle, which reads each module only once."""

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
        if code.co_filename != file:
            # The code was compiled under another file name, so it was loaded from a .pyc file.
            file += "c"
        places = [folder] if is_package else None
        return spec_from_file_location(fullname, file, loader=self, submodule_search_locations=places)

    def get_code(self, fullname: str) -> CodeType:
        return self._found.pop(fullname, None) or super().get_code(fullname)


# Workers do not import pathlib.
# ruff: noqa: PTH110, PTH120


PACKAGE = "skyward_core"
# maximum seconds that an import waits for the deferred part of the bundle, for uploads over slow connections
BUNDLE_TIMEOUT = 60.0
BUNDLE_POLL = 0.05  # seconds between checks whether the upload has finished


def install_deferred_importer(path: str) -> None:
    """Install an importer for modules in the deferred part of the bundle.

    Args:
        path: Path of the package in the first file.
    """
    bundle = os.path.dirname(path)
    install_bundle_importer(bundle)
    # Append this finder, so that Python uses it only for modules that no other finder knows.
    sys.meta_path.append(_DeferredFinder(deferred_bundle_path(bundle)))


class _DeferredFinder:
    def __init__(self, rest: str) -> None:
        self._rest = rest
        self._user = os.geteuid()
        self._until = 0.0  # time at which imports stop waiting for the upload, shared by all imports

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
        """Return why the deferred part cannot be imported yet, or "" if it exists and is trusted."""
        if (user := os.geteuid()) != self._user:
            return (
                f"this process changed to user {user}, but only user {self._user} can read the library. Import "
                "the required modules before you change the user."
            )
        if not os.path.exists(self._rest):
            return (
                "the client that started the pool disconnected before it had sent this part of the "
                "library. The next pool on this host sends it."
            )
        from skyward_core.node.bootstrap.host_inspection import distrust_reason

        return distrust_reason(self._rest)
