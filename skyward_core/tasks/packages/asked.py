"""What an image says of a project's packages, read: which file that is, and what is in it."""

from __future__ import annotations

from pathlib import Path

from ...model.errors import SpecError
from ...model.spec import Image
from ...node.boot.host import doubt
from ...store.user_files import expanded, is_file, read_bytes, resolved
from ..project_root import PROJECT, up_to_project
from ..python_versions import VersionError, satisfies
from .kept_lock import python_of
from .packages import Packages, PackagesError
from .toml_file import tables


def asked(image: Image, folder: str, version: str) -> Packages | None:
    """What an image asks for by a file of the project; None where it names none.

    Args:
        folder: the working folder, from which the project is looked for.
        version: of the Python that runs the project.

    Raises:
        SpecError: the file is not there, cannot be read, or asks for what is not done; its ``field`` is the image's.
    """
    name = image.packages_by
    if not name:
        return None
    try:
        return _read(name, _found(getattr(image, name), Path(folder)), version)
    except PackagesError as error:
        raise SpecError(str(error), name) from None


def python_asked(image: Image, folder: str) -> tuple[str, str]:
    """Which versions of Python that file is for, such as ">=3.12", and its name; "" for any, and where it does not
    say so in words that make sense: whoever reads it tells.

    Args:
        folder: the working folder.

    Raises:
        SpecError: the file is not there, or cannot be read.
    """
    name = image.packages_by
    if not name:
        return "", ""
    try:
        path = _found(getattr(image, name), Path(folder))
        if path.suffix not in (".toml", ".lock") or _is_text_of_lines(path):
            return python_of(path) if name == "lock" else "", path.name
        said = tables(path)
    except PackagesError as error:
        raise SpecError(str(error), name) from None
    project = said.get("project")
    table = project if name == "project" and isinstance(project, dict) else said
    wanted = str(table.get("requires-python") or "")
    try:
        satisfies(version="3.11", wanted=wanted)
    except VersionError:
        wanted = ""
    return wanted, path.name


def _read(name: str, path: Path, version: str) -> Packages:
    if name == "project":
        from . import project_file

        return project_file.read(path, version)
    if name == "lock" and path.suffix == ".toml":
        from . import pylock

        return pylock.read(path, version)
    if name == "lock" and path.suffix == ".lock" and not _is_text_of_lines(path):
        from . import uv_lock

        return uv_lock.read(path, version)
    from . import requirements_file

    return requirements_file.read(path, lock=name == "lock")


def _is_text_of_lines(path: Path) -> bool:
    """Whether a lock is one line for each package, as ``pip freeze`` writes them, and no TOML."""
    try:
        lines = read_bytes(path).splitlines()
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    return not any(line.lstrip().startswith(b"[") or line.startswith(b"version =") for line in lines)


def _found(given: object, folder: Path) -> Path:
    """A file of the project: in the working folder, or above it, up to where the project ends."""
    name = given if isinstance(given, str) else PROJECT
    path = expanded(name)
    places = [folder / path]
    if not path.is_absolute():
        places += [above / name for above in up_to_project(resolved(folder)) if above != resolved(folder)]
    for place in places:
        if not is_file(place):
            continue
        if place is not places[0] and (why := doubt(str(place))):
            raise PackagesError(f"{place} is not used: {why}")
        return place
    if len(places) == 1:
        raise PackagesError(f"there is no file {places[0]}")
    raise PackagesError(f"there is no file {name} in {resolved(folder)}, or above it in its project")
