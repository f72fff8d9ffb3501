"""``pylock.toml``, the lock that installers have in common (PEP 751)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...store.user_files import is_dir, resolved
from .packages import Packages, PackagesError, grouped, line, pin
from .toml_file import lock_tables, rows


def read(path: Path, version: str) -> Packages:
    """What the lock has installed.

    Args:
        version: of the Python that it is for.

    Raises:
        PackagesError: it cannot be read, or holds what is not done.
    """
    said = lock_tables(path, "lock-version", version)
    lines, folders = [], []
    for row in rows(path, said.get("packages", []), "[[packages]]"):
        if "directory" in row:
            folders.append(_folder(path, row))
        else:
            lines.append(_line(path, row))
    return Packages(str(path), pinned=grouped(lines), folders=tuple(folders))


def _folder(path: Path, row: dict[str, Any]) -> str:
    folder = resolved(path.parent / str(row["directory"].get("path")))
    if not is_dir(folder):
        raise PackagesError(f"{path}: package {row.get('name')} lies in {folder}, which is no folder")
    return str(folder)


def _line(path: Path, row: dict[str, Any]) -> tuple[str, str]:
    """The index that a package comes from, and its line."""
    name, marker = str(row.get("name")), str(row.get("marker") or "")
    if "extras" in marker or "dependency_groups" in marker:
        raise PackagesError(
            f"{path}: package {name} is for some extras or groups only ({marker}): write a lock of what a run needs"
        )
    if vcs := row.get("vcs"):
        if vcs.get("type") != "git" or not vcs.get("url"):
            raise PackagesError(f"{path}: package {name} has no address of a git repository")
        address = f"git+{vcs['url']}@{vcs.get('commit-id')}{_within(vcs)}"
        return "", line(f"{name} @ {address}", marker)
    if archive := row.get("archive"):
        _refuse_path(path, name, archive)
        return "", line(f"{name} @ {archive.get('url')}{_within(archive)}", marker, _hashes(archive))
    files = [*rows(path, row.get("wheels", []), "wheels"), *([row["sdist"]] if row.get("sdist") else [])]
    for each in files:
        _refuse_path(path, name, each)
    hashes = [text for each in files for text in _hashes(each)]
    return str(row.get("index") or ""), pin(name, str(row.get("version")), marker, hashes)


def _refuse_path(path: Path, name: str, file: dict[str, Any]) -> None:
    if not file.get("url") and file.get("path"):
        raise PackagesError(
            f"{path}: package {name} comes from {file['path']}, a file of this machine: use an index"
        )


def _hashes(file: dict[str, Any]) -> list[str]:
    return [f"{kind}:{text}" for kind, text in (file.get("hashes") or {}).items()]


def _within(source: dict[str, Any]) -> str:
    return f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""
