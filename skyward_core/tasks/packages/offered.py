"""The files of a script's project that say what its ranks could have, for whoever offers a choice of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...model.value import Value, value
from ...node.boot.host import doubt
from ...store.user_files import is_file, resolved
from ..project_root import PROJECT, up_to_project
from .packages import PackagesError
from .toml_file import tables

LOCKS = ("uv.lock", "pylock.toml")
REQUIREMENTS = "requirements.txt"


@value
class OfferedPackages(Value):
    """A file that can be named.

    Attributes:
        field: of an image, that names it: "lock", "requirements" or "project".
        path: of the file.
    """

    field: str
    path: str


def offered_packages(script: Path, folder: Path) -> list[OfferedPackages]:
    """What there is beside a script, or above it in its project; of each kind the nearest. None of them is judged by
    what it holds, but for a ``pyproject.toml`` that is about no project.

    Args:
        folder: the working folder of its ranks, from which the project's file is looked for.
    """
    return list(_offered(resolved(script).parent, resolved(folder)))


def _offered(beside: Path, folder: Path) -> Iterator[OfferedPackages]:
    for field, name in (*(("lock", lock) for lock in LOCKS), ("requirements", REQUIREMENTS)):
        if (found := _nearest(name, beside)) is not None:
            yield OfferedPackages(field, str(found))
    if (found := _nearest(PROJECT, folder)) is not None and _is_of_project(found):
        yield OfferedPackages("project", str(found))


def _nearest(name: str, folder: Path) -> Path | None:
    """A file in a folder, or above it in its project; not one that somebody else could have put above it."""
    for each in up_to_project(folder):
        path = each / name
        if is_file(path):
            return path if each == folder or not doubt(str(path)) else None
    return None


def _is_of_project(path: Path) -> bool:
    """Whether it says what a project depends on, or cannot be read: whoever chooses it is told why."""
    try:
        return "project" in tables(path)
    except PackagesError:
        return True
