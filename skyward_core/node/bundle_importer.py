"""Imports from a bundle's files, each module read and unpacked once.

``zipimporter`` alone does that twice: once to tell what the file is called, once for the code.
"""

from __future__ import annotations

import sys
from _frozen_importlib_external import spec_from_file_location  # importlib.util would be imported for it
from zipimport import zipimporter

from ..wire.node_paths import rest_of

TYPE_CHECKING = False  # typing's would be imported for it
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType


def import_once(bundle: str) -> None:
    """Have what lies in packages of a bundle imported so, its rest as well.

    Args:
        bundle: path of its first file.
    """
    below = (f"{bundle}/", f"{rest_of(bundle)}/")

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
