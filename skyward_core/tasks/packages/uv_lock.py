"""``uv.lock``: what a project's run needs of it. It holds all extras, groups and systems; what is not reached from the
project's dependencies is left out, and what is reached on some systems only says on which."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...model.value import Value, value
from ...node.boot.indexes import normal
from ...store.user_files import is_dir, resolved
from .packages import Packages, PackagesError, grouped, line, pin
from .toml_file import lock_tables, rows

Markers = frozenset[str]  # all of them have to be true
HERE = ("editable", "directory", "virtual")
ALWAYS: Markers = frozenset()


@value
class _Place(Value):
    """A package of the lock, by its row, or one of its extras."""

    row: int
    extra: str = ""


def read(path: Path, version: str) -> Packages:
    """What the lock has installed for the project that it lies beside.

    Args:
        version: of the Python that it is for.

    Raises:
        PackagesError: it cannot be read, or holds what is not done.
    """
    return _Lock(path, lock_tables(path, "version", version)).packages()


class _Lock:
    def __init__(self, path: Path, said: dict[str, Any]) -> None:
        self._path = path
        self._rows = rows(path, said.get("package", []), "[[package]]")
        self._by_name: dict[str, list[int]] = {}
        for number, row in enumerate(self._rows):
            self._by_name.setdefault(normal(str(row.get("name"))), []).append(number)
        self._manifest: dict[str, Any] = said.get("manifest") or {}

    def packages(self) -> Packages:
        lines, folders = [], []
        for number, ways in sorted(self._reached().items()):
            row = self._rows[number]
            if any(kind in self._source(row) for kind in HERE):
                folders += self._folder(row)
            else:
                lines.append(self._line(row, _marker(ways)))
        return Packages(str(self._path), pinned=grouped(lines), folders=tuple(folders))

    def _reached(self) -> dict[int, set[Markers]]:
        """The packages that the project comes to, each with the ways on which it does: the fewest markers of each."""
        found: dict[_Place, set[Markers]] = {}
        ahead = deque(self._roots())
        while ahead:
            place, markers = ahead.popleft()
            ways = found.setdefault(place, set())
            if any(way <= markers for way in ways):
                continue
            ways -= {way for way in ways if markers < way}
            ways.add(markers)
            ahead += [(other, markers | more) for other, more in self._needed_by(place)]
        packages: dict[int, set[Markers]] = {}
        for place, ways in found.items():
            packages.setdefault(place.row, set()).update(ways)
        return packages

    def _roots(self) -> Iterator[tuple[_Place, Markers]]:
        own = [number for number, row in enumerate(self._rows) if self._is_project(row, ".")]
        members = self._manifest.get("members") or ()
        if not own and members:  # a workspace without a project of its own: all that is in it
            own = [number for name in members for number in self._by_name.get(normal(str(name)), ())]
        for number in own:
            yield _Place(number), ALWAYS
        for row in rows(self._path, self._manifest.get("requirements", []), "requirements"):
            yield from self._edges(row)  # of a script
        if not own and "requirements" not in self._manifest:
            raise PackagesError(f"{self._path} has no project in it; write it anew with uv lock")

    def _is_project(self, row: dict[str, Any], folder: str) -> bool:
        source = self._source(row)
        return any(source.get(kind) == folder for kind in HERE)

    def _needed_by(self, place: _Place) -> Iterator[tuple[_Place, Markers]]:
        row = self._rows[place.row]
        given = row.get("dependencies", [])
        if place.extra:
            extras = row.get("optional-dependencies") or {}
            given = next((rest for name, rest in extras.items() if normal(name) == normal(place.extra)), [])
        for each in rows(self._path, given, "dependencies"):
            yield from self._edges(each)

    def _edges(self, dependency: dict[str, Any]) -> Iterator[tuple[_Place, Markers]]:
        name = str(dependency.get("name"))
        named = [
            number
            for number in self._by_name.get(normal(name), ())
            if all(
                key not in dependency or dependency[key] == self._rows[number].get(key)
                for key in ("version", "source")
            )
        ]
        if len(named) != 1:
            kinds = "more than one" if named else "none"
            raise PackagesError(
                f"{self._path}: it needs {name} and has {kinds} of that name; write it anew with uv lock"
            )
        marker = dependency.get("marker")
        markers = frozenset([str(marker)]) if marker else ALWAYS
        extras = dependency.get("extra") or ()
        yield _Place(named[0]), markers
        for extra in [extras] if isinstance(extras, str) else extras:
            yield _Place(named[0], str(extra)), markers

    def _source(self, row: dict[str, Any]) -> dict[str, Any]:
        source = row.get("source")
        if not isinstance(source, dict):
            raise PackagesError(f"{self._path}: package {row.get('name')!r:.60} says not where it comes from")
        return source

    def _folder(self, row: dict[str, Any]) -> list[str]:
        source = self._source(row)
        if "virtual" in source:  # no package, but what needs some
            return []
        given = str(source.get("editable", source.get("directory")))
        folder = resolved(self._path.parent / given)
        if not is_dir(folder):
            raise PackagesError(
                f"{self._path}: package {row.get('name')} lies in {folder}, which is no folder"
            )
        return [str(folder)]

    def _line(self, row: dict[str, Any], marker: str) -> tuple[str, str]:
        """The index that a package comes from, and its line."""
        name, source = str(row.get("name")), self._source(row)
        files = [
            *rows(self._path, row.get("wheels", []), "wheels"),
            *([row["sdist"]] if row.get("sdist") else []),
        ]
        hashes = [str(each["hash"]) for each in files if each.get("hash")]
        if registry := source.get("registry"):
            if not str(registry).startswith(("https://", "http://")):
                raise PackagesError(
                    f"{self._path}: package {name} comes from {registry}, a folder of this machine: use an index"
                )
            return str(registry), pin(name, str(row.get("version")), marker, hashes)
        if url := source.get("url"):
            within = f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""
            return "", line(f"{name} @ {url}{within}", marker, hashes)
        if git := source.get("git"):
            return "", line(f"{name} @ {_git(str(git))}", marker)
        kind = next(iter(source), "nothing")
        raise PackagesError(
            f"{self._path}: package {name} comes from {kind} {source.get(kind)}, which only this machine has: use an "
            "index"
        )


def _git(address: str) -> str:
    """``https://host/name?subdirectory=x&rev=y#commit``, as installers take it."""
    from urllib.parse import parse_qs, urlsplit

    parts = urlsplit(address)
    within = parse_qs(parts.query).get("subdirectory", [""])[0]
    plain = parts._replace(query="", fragment="").geturl()
    return f"git+{plain}@{parts.fragment}" + (f"#subdirectory={within}" if within else "")


def _marker(ways: set[Markers]) -> str:
    """One marker that is true where one of the ways is open; "" for always."""
    if ALWAYS in ways:
        return ""
    joined = sorted(" and ".join(f"({each})" for each in sorted(way)) for way in ways)
    return " or ".join(f"({each})" if len(joined) > 1 else each for each in joined)
