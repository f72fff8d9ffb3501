"""What the files of projects and locks have in common: they are TOML, and for some versions of Python."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from ...store.user_files import read_text, toml_of
from ..python_versions import VersionError, satisfies
from .packages import PackagesError


def tables(path: Path) -> dict[str, Any]:
    """What is in a file.

    Raises:
        PackagesError: it cannot be read, or is no TOML.
    """
    try:
        found = path.stat()
        return _tables(path, (found.st_mtime_ns, found.st_ino, found.st_size))
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not a path
        raise PackagesError(f"{path} cannot be read: {error}") from None


@lru_cache(maxsize=4)  # a form asks as often as somebody types, and a large lock takes half a second
def _tables(path: Path, _unchanged: tuple[int, ...]) -> dict[str, Any]:
    try:
        return toml_of(read_text(path))
    except ValueError as error:
        raise PackagesError(f"{path} is no TOML: {error}") from None


def lock_tables(path: Path, key: str, version: str) -> dict[str, Any]:
    """What is in a lock.

    Args:
        key: where it says the version of its format.
        version: of the Python that it is for.

    Raises:
        PackagesError: it cannot be read, is of another format than the first, or for another Python.
    """
    said = tables(path)
    if str(said.get(key, "")).partition(".")[0] != "1":
        raise PackagesError(f"{path} is a lock of version {said.get(key)!r:.20}; version 1 is known here")
    check_python(path, said.get("requires-python"), version)
    return said


def check_python(path: Path, wanted: object, version: str) -> None:
    """Refuse a Python that a file is not for.

    Args:
        wanted: its ``requires-python``; "" or None for any.
        version: the Python's.

    Raises:
        PackagesError: it is not.
    """
    if not wanted:
        return
    try:
        fits = satisfies(version, str(wanted))
    except VersionError as error:
        raise PackagesError(f"{path}: requires-python: {error}") from None
    if not fits:
        raise PackagesError(
            f"{path} is for Python {wanted}, and the script is loaded with {version}: choose another Python for it"
        )


def rows(path: Path, given: object, what: str) -> list[dict[str, Any]]:
    """A list of tables.

    Raises:
        PackagesError: it is none.
    """
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise PackagesError(f"{path}: {what} should be a list of tables")
    return given
