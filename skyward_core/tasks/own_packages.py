"""This library for interpreters that are not its own: a folder with our package and what it needs, and nothing else.

A project's script finds us without our being installed there, and never finds what else is installed beside us. The
folder is made once per content, beside the environments of images, and goes when nobody has used it for long.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ..model.errors import PoolError
from ..model.value import Value, value
from ..node.boot.environment import MADE, locked
from ..store.home import ENVIRONMENTS, home

OURS = ("skyward_core",)
# What projects may have themselves, and then in their version: behind all that they have.
NEEDED, WISHED = ("cloudpickle",), ("pynvml",)
Files = tuple[tuple[str, bytes], ...]
ENDINGS = (".py", ".json")


@value
class OwnPackages(Value):
    """Entries for an import path.

    Attributes:
        first: has our package alone; it comes before all that a project has.
        last: what that needs, for projects without it.
    """

    first: str
    last: str


def own_packages() -> OwnPackages:
    """Have the folder, and count it as used.

    Raises:
        PoolError: it cannot be written, or a package that belongs there is not installed.
    """
    try:
        return _own_packages(_files())
    except OSError as error:
        raise PoolError(
            f"What scripts of other interpreters need of this library cannot be kept: {error}"
        ) from error


def _own_packages(files: Files) -> OwnPackages:
    folder = home() / ENVIRONMENTS / f"env-{_name(files)}"
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Nobody makes room there while it is locked.
    with locked(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            os.utime(folder / MADE)
        except FileNotFoundError:
            _make(folder, files)
    return OwnPackages(str(folder / "first"), str(folder / "last"))


def _make(folder: Path, files: Files) -> None:
    """What a power cut left half written is written anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(data)
    (folder / MADE).touch()


@cache
def _files() -> Files:
    """Path in the folder, and content; read once."""
    parts = (("first", OURS), ("last", NEEDED), ("last", [name for name in WISHED if find_spec(name)]))
    return tuple(
        (f"{part}/{name}", path.read_bytes()) for part, packages in parts for name, path in _sources(packages)
    )


@cache
def _name(files: Files) -> str:
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


def _sources(packages: tuple[str, ...] | list[str]) -> Iterator[tuple[str, Path]]:
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise PoolError(f"The Python package {package} is not installed here: install this library anew.")
        origin = Path(spec.origin)
        if not spec.submodule_search_locations:
            yield origin.name, origin
            continue
        above = origin.parent.parent
        found = (path for path in origin.parent.rglob("*") if path.name.endswith(ENDINGS) and path.is_file())
        for path in sorted(found):
            yield str(path.relative_to(above)), path
