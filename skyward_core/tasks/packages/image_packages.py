"""Package files that an image names, and their content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skyward_core.model.errors import SpecError
from skyward_core.model.specs import Image
from skyward_core.node.bootstrap.host_inspection import doubt
from skyward_core.tasks.packages.lock_files import python_of
from skyward_core.tasks.packages.package_specs import Packages, PackagesError, tables
from skyward_core.tasks.packages.project_root import PROJECT, VersionError, satisfies, up_to_project
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.user_files import expanded, is_file, read_bytes, resolved


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
        from skyward_core.tasks.packages import project_requirements

        return project_requirements.read_project_file(path, version)
    if name == "lock" and path.suffix == ".toml":
        from skyward_core.tasks.packages import lock_files

        return lock_files.read_pylock(path, version)
    if name == "lock" and path.suffix == ".lock" and not _is_text_of_lines(path):
        from skyward_core.tasks.packages import lock_files

        return lock_files.read(path, version)
    from skyward_core.tasks.packages import project_requirements

    return project_requirements.read(path, lock=name == "lock")


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
