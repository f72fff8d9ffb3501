"""Packages of an image that come from a file of the project: a lock, requirements, or pyproject.toml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skyward_core.model.errors import SpecError
from skyward_core.model.specs import Image
from skyward_core.node.bootstrap.host_inspection import distrust_reason
from skyward_core.store.default_and_forbidden_working_folders import choose_workdir, current_folder
from skyward_core.tasks.packages.lock_file_reading_and_writing import lock_python_version, read_pylock, read_uv_lock
from skyward_core.tasks.packages.package_specs_and_local_packages import PackagesError, PackageSpecs, read_toml
from skyward_core.tasks.python_compatibility import VersionError, satisfies
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import (
    PROJECT_FILE,
    expand_user,
    folders_up_to_project,
    is_file,
    read_bytes,
    resolve_path,
)


def read_image_packages(image: Image, folder: str, version: str) -> PackageSpecs | None:
    """Return the packages in the project file that an image names. None if the image names no file.

    Args:
        folder: Working folder, where the search for the project starts.
        version: Version of the Python that runs the project.

    Raises:
        SpecError: If the file does not exist, cannot be read, or requests something unsupported. The error's ``field``
            is the field of the image.
    """
    name = image.packages_by
    if not name:
        return None
    try:
        return _read_packages(name, _find_project_file(getattr(image, name), Path(folder)), version)
    except PackagesError as error:
        raise SpecError(str(error), name) from None


def image_python_version(image: Image, folder: str) -> tuple[str, str]:
    """Return the Python versions that the image's package file allows, such as ">=3.12", and the name of the file.

    The versions are "" if any version is allowed, or if they are invalid, which :func:`read_image_packages` reports.

    Args:
        folder: Working folder.

    Raises:
        SpecError: If the file does not exist or cannot be read.
    """
    name = image.packages_by
    if not name:
        return "", ""
    try:
        path = _find_project_file(getattr(image, name), Path(folder))
        if path.suffix not in (".toml", ".lock") or _is_requirements_style(path):
            return lock_python_version(path) if name == "lock" else "", path.name
        content = read_toml(path)
    except PackagesError as error:
        raise SpecError(str(error), name) from None
    project = content.get("project")
    table = project if name == "project" and isinstance(project, dict) else content
    version = str(table.get("requires-python") or "")
    try:
        satisfies(version="3.11", specifier=version)
    except VersionError:
        version = ""
    return version, path.name


def _read_packages(name: str, path: Path, version: str) -> PackageSpecs:
    if name == "lock" and path.suffix == ".toml":
        return read_pylock(path, read_toml(path), version)
    if name == "lock" and path.suffix == ".lock" and not _is_requirements_style(path):
        return read_uv_lock(path, version)
    # Imported late, because most images name no package file.
    from skyward_core.tasks.packages import project_requirements

    if name == "project":
        return project_requirements.read_project_file(path, version)
    return project_requirements.read_requirements(path, lock=name == "lock")


def _is_requirements_style(path: Path) -> bool:
    """Check whether a lock file has one line per package, as ``pip freeze`` writes it, and is not TOML."""
    try:
        lines = read_bytes(path).splitlines()
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    return not any(line.lstrip().startswith(b"[") or line.startswith(b"version =") for line in lines)


def _find_project_file(given: object, folder: Path) -> Path:
    """Return a file of the project, from the working folder or a folder above it in the same project."""
    name = given if isinstance(given, str) else PROJECT_FILE
    path = expand_user(name)
    places = [folder / path]
    if not path.is_absolute():
        places += [
            above / name for above in folders_up_to_project(resolve_path(folder)) if above != resolve_path(folder)
        ]
    for place in places:
        if not is_file(place):
            continue
        if place is not places[0] and (reason := distrust_reason(str(place))):
            raise PackagesError(f"{place} is not used: {reason}")
        return place
    if len(places) == 1:
        raise PackagesError(f"file {places[0]} does not exist")
    raise PackagesError(f"file {name} does not exist in {resolve_path(folder)} or above it in its project")


@value
class PackageFile(Value):
    """File that an image can name as the source of its packages.

    Attributes:
        field: Field of the image that names the file: "lock", "requirements" or "project".
        path: Path of the file.
    """

    field: str
    path: str


def _find_package_files(beside: Path, folder: Path) -> Iterator[PackageFile]:
    for field, name in (("lock", "uv.lock"), ("lock", "pylock.toml"), ("requirements", "requirements.txt")):
        if (found := _find_nearest(name, beside)) is not None:
            yield PackageFile(field, str(found))
    if (found := _find_nearest(PROJECT_FILE, folder)) is not None and _has_project_table(found):
        yield PackageFile("project", str(found))


def _find_nearest(name: str, folder: Path) -> Path | None:
    """Return the path of a file in a folder, or above the folder in the same project. Skip a file that another user
    could have put there.
    """
    for each in folders_up_to_project(folder):
        path = each / name
        if is_file(path):
            return path if each == folder or not distrust_reason(str(path)) else None
    return None


def _has_project_table(path: Path) -> bool:
    """Check whether a file declares dependencies. True for an unreadable file, so that choosing it shows the reason."""
    try:
        return "project" in read_toml(path)
    except PackagesError:
        return True


def packages_for(script: Path) -> list[PackageFile]:
    """Return the package files of a script's project: for each kind, the nearest one.

    The files are not validated, but a ``pyproject.toml`` without a [project] table is omitted.
    """
    folder = choose_workdir(script) or current_folder()
    return [] if folder is None else list(_find_package_files(resolve_path(script).parent, resolve_path(folder)))
