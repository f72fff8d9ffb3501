"""Uv.lock, pylock.toml, locked environments."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.node.bootstrap.package_indexes import (
    PINNED,
    map_packages_to_indexes,
    normalize_name,
    package_name,
)
from skyward_core.tasks.packages.package_specs import (
    PackagesError,
    PackageSpecs,
    direct_address,
    format_pin,
    format_requirement,
    group_by_index,
    package_names,
    read_lock,
    read_rows,
)
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.redaction import strip_credentials
from skyward_core.util.user_files import is_dir, read_text, resolve_path

if TYPE_CHECKING:
    from skyward_core.model.script_interpreter import Interpreter


Markers = frozenset[str]  # all of them have to be true
LOCAL_SOURCES = ("editable", "directory", "virtual")
NO_MARKERS: Markers = frozenset()


@value
class _PackageNode(Value):
    """A package of the lock, by its row, or one of its extras."""

    row: int
    extra: str = ""


def read_uv_lock(path: Path, version: str) -> PackageSpecs:
    """What the lock has installed for the project that it lies beside.

    Args:
        version: of the Python that it is for.

    Raises:
        PackagesError: it cannot be read, or holds what is not done.
    """
    return _UvLock(path, read_lock(path, "version", version)).packages()


class _UvLock:
    def __init__(self, path: Path, said: dict[str, Any]) -> None:
        self._path = path
        self._rows = read_rows(path, said.get("package", []), "[[package]]")
        self._by_name: dict[str, list[int]] = {}
        for number, row in enumerate(self._rows):
            self._by_name.setdefault(normalize_name(str(row.get("name"))), []).append(number)
        self._manifest: dict[str, Any] = said.get("manifest") or {}

    def packages(self) -> PackageSpecs:
        lines, folders = [], []
        for number, ways in sorted(self._reachable().items()):
            row = self._rows[number]
            if any(kind in self._source(row) for kind in LOCAL_SOURCES):
                folders += self._folder(row)
            else:
                lines.append(self._format_line(row, _join_markers(ways)))
        return PackageSpecs(str(self._path), pinned=group_by_index(lines), folders=tuple(folders))

    def _reachable(self) -> dict[int, set[Markers]]:
        """The packages that the project comes to, each with the ways on which it does: the fewest markers of each."""
        found: dict[_PackageNode, set[Markers]] = {}
        ahead = deque(self._root_packages())
        while ahead:
            place, markers = ahead.popleft()
            ways = found.setdefault(place, set())
            if any(way <= markers for way in ways):
                continue
            ways -= {way for way in ways if markers < way}
            ways.add(markers)
            ahead += [(other, markers | more) for other, more in self._dependencies(place)]
        packages: dict[int, set[Markers]] = {}
        for place, ways in found.items():
            packages.setdefault(place.row, set()).update(ways)
        return packages

    def _root_packages(self) -> Iterator[tuple[_PackageNode, Markers]]:
        own = [number for number, row in enumerate(self._rows) if self._is_project(row, ".")]
        members = self._manifest.get("members") or ()
        if not own and members:  # a workspace without a project of its own: all that is in it
            own = [number for name in members for number in self._by_name.get(normalize_name(str(name)), ())]
        for number in own:
            yield _PackageNode(number), NO_MARKERS
        for row in read_rows(self._path, self._manifest.get("requirements", []), "requirements"):
            yield from self._dependency_nodes(row)  # of a script
        if not own and "requirements" not in self._manifest:
            raise PackagesError(f"{self._path} has no project in it; write it anew with uv lock")

    def _is_project(self, row: dict[str, Any], folder: str) -> bool:
        source = self._source(row)
        return any(source.get(kind) == folder for kind in LOCAL_SOURCES)

    def _dependencies(self, place: _PackageNode) -> Iterator[tuple[_PackageNode, Markers]]:
        row = self._rows[place.row]
        given = row.get("dependencies", [])
        if place.extra:
            extras = row.get("optional-dependencies") or {}
            given = next(
                (rest for name, rest in extras.items() if normalize_name(name) == normalize_name(place.extra)),
                [],
            )
        for each in read_rows(self._path, given, "dependencies"):
            yield from self._dependency_nodes(each)

    def _dependency_nodes(self, dependency: dict[str, Any]) -> Iterator[tuple[_PackageNode, Markers]]:
        name = str(dependency.get("name"))
        named = [
            number
            for number in self._by_name.get(normalize_name(name), ())
            if all(
                key not in dependency or dependency[key] == self._rows[number].get(key) for key in ("version", "source")
            )
        ]
        if len(named) != 1:
            kinds = "more than one" if named else "none"
            raise PackagesError(
                f"{self._path}: it needs {name} and has {kinds} of that name; write it anew with uv lock"
            )
        marker = dependency.get("marker")
        markers = frozenset([str(marker)]) if marker else NO_MARKERS
        extras = dependency.get("extra") or ()
        yield _PackageNode(named[0]), markers
        for extra in [extras] if isinstance(extras, str) else extras:
            yield _PackageNode(named[0], str(extra)), markers

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
        folder = resolve_path(self._path.parent / given)
        if not is_dir(folder):
            raise PackagesError(f"{self._path}: package {row.get('name')} lies in {folder}, which is no folder")
        return [str(folder)]

    def _format_line(self, row: dict[str, Any], marker: str) -> tuple[str, str]:
        """The index that a package comes from, and its line."""
        name, source = str(row.get("name")), self._source(row)
        files = [
            *read_rows(self._path, row.get("wheels", []), "wheels"),
            *([row["sdist"]] if row.get("sdist") else []),
        ]
        hashes = [str(each["hash"]) for each in files if each.get("hash")]
        if registry := source.get("registry"):
            if not str(registry).startswith(("https://", "http://")):
                raise PackagesError(
                    f"{self._path}: package {name} comes from {registry}, a folder of this machine: use an index"
                )
            return str(registry), format_pin(name, str(row.get("version")), marker, hashes)
        if url := source.get("url"):
            within = f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""
            return "", format_requirement(f"{name} @ {url}{within}", marker, hashes)
        if git := source.get("git"):
            return "", format_requirement(f"{name} @ {_git_address(str(git))}", marker)
        kind = next(iter(source), "nothing")
        raise PackagesError(
            f"{self._path}: package {name} comes from {kind} {source.get(kind)}, which only this machine has: use an "
            "index"
        )


def _git_address(address: str) -> str:
    """``https://host/name?subdirectory=x&rev=y#commit``, as installers take it."""
    from urllib.parse import parse_qs, urlsplit

    parts = urlsplit(address)
    within = parse_qs(parts.query).get("subdirectory", [""])[0]
    plain = parts._replace(query="", fragment="").geturl()
    return f"git+{plain}@{parts.fragment}" + (f"#subdirectory={within}" if within else "")


def _join_markers(ways: set[Markers]) -> str:
    """One marker that is true where one of the ways is open; "" for always."""
    if NO_MARKERS in ways:
        return ""
    joined = sorted(" and ".join(f"({each})" for each in sorted(way)) for way in ways)
    return " or ".join(f"({each})" if len(joined) > 1 else each for each in joined)


def read_pylock(path: Path, version: str) -> PackageSpecs:
    """What the lock has installed.

    Args:
        version: of the Python that it is for.

    Raises:
        PackagesError: it cannot be read, or holds what is not done.
    """
    said = read_lock(path, "lock-version", version)
    lines, folders = [], []
    for row in read_rows(path, said.get("packages", []), "[[packages]]"):
        if "directory" in row:
            folders.append(_pylock_folder(path, row))
        else:
            lines.append(_pylock_line(path, row))
    return PackageSpecs(str(path), pinned=group_by_index(lines), folders=tuple(folders))


def _pylock_folder(path: Path, row: dict[str, Any]) -> str:
    folder = resolve_path(path.parent / str(row["directory"].get("path")))
    if not is_dir(folder):
        raise PackagesError(f"{path}: package {row.get('name')} lies in {folder}, which is no folder")
    return str(folder)


def _pylock_line(path: Path, row: dict[str, Any]) -> tuple[str, str]:
    """The index that a package comes from, and its line."""
    name, marker = str(row.get("name")), str(row.get("marker") or "")
    if "extras" in marker or "dependency_groups" in marker:
        raise PackagesError(
            f"{path}: package {name} is for some extras or groups only ({marker}): write a lock of what a run needs"
        )
    if vcs := row.get("vcs"):
        if vcs.get("type") != "git" or not vcs.get("url"):
            raise PackagesError(f"{path}: package {name} has no address of a git repository")
        address = f"git+{vcs['url']}@{vcs.get('commit-id')}{_subdirectory(vcs)}"
        return "", format_requirement(f"{name} @ {address}", marker)
    if archive := row.get("archive"):
        _reject_path(path, name, archive)
        return "", format_requirement(
            f"{name} @ {archive.get('url')}{_subdirectory(archive)}", marker, _parse_hashes(archive)
        )
    files = [*read_rows(path, row.get("wheels", []), "wheels"), *([row["sdist"]] if row.get("sdist") else [])]
    for each in files:
        _reject_path(path, name, each)
    hashes = [text for each in files for text in _parse_hashes(each)]
    return str(row.get("index") or ""), format_pin(name, str(row.get("version")), marker, hashes)


def _reject_path(path: Path, name: str, file: dict[str, Any]) -> None:
    if not file.get("url") and file.get("path"):
        raise PackagesError(f"{path}: package {name} comes from {file['path']}, a file of this machine: use an index")


def _parse_hashes(file: dict[str, Any]) -> list[str]:
    return [f"{kind}:{text}" for kind, text in (file.get("hashes") or {}).items()]


def _subdirectory(source: dict[str, Any]) -> str:
    return f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""


_HEADING = re.compile(
    r"# (?:installed for pool \S+ with|nothing was installed for pool \S+: its ranks had) Python (\d+\.\d+)"
)


def lock_heading(pool: str, python: Interpreter, *, installed: bool) -> str:
    """The first line of a lock.

    Args:
        pool: its name.
        python: that of its ranks.
        installed: whether anything was installed for it.
    """
    if installed:
        return f"installed for pool {pool} with Python {python.minor}; Image(lock=...) has it installed again"
    return f"nothing was installed for pool {pool}: its ranks had {python}, with these packages"


def lock_python_version(path: Path) -> str:
    """The versions of Python that a lock was kept of, as ``requires-python`` has it; "" of one that is none of ours."""
    try:
        found = _HEADING.match(read_text(path, errors="replace")[:1000].partition("\n")[0])
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    return f"=={found[1]}.*" if found else ""


def format_lock(image: Mapping[str, Any], installed: Mapping[str, str], heading: str) -> str:
    """The lock of what an image came to.

    Args:
        image: as JSON.
        installed: see ``installed_packages.list_packages``. A node says it, and of what it says only names
            and versions are taken: addresses are those that were asked for.
        heading: a line that says of what it is.
    """
    exact = {name: line for line in _lock_lines(image) for name in package_names([line])}
    asked = {name: line for line in image.get("pip") or () if direct_address(line) for name in package_names([line])}
    kept = [_requirement_line(name, version, exact, asked) for name, version in sorted(installed.items())]
    text = "\n".join([f"# {heading}", *_index_lines(image), *kept]) + "\n"
    return strip_credentials(text)


def _lock_lines(image: Mapping[str, Any]) -> Iterator[str]:
    for group in image.get(PINNED) or ():
        yield from group["lines"]


def _requirement_line(name: str, version: str, exact: Mapping[str, str], asked: Mapping[str, str]) -> str:
    """A package's line, with the hashes that a lock had for it."""
    found = exact.get(name, "")
    plain, _, hashes = found.partition(" --hash=")
    behind = f" --hash={hashes}" if hashes else ""
    if direct_address(found) or (not version and name in asked):
        return (plain or asked[name]).partition(" ;")[0] + behind
    if not version:
        return f"# {name}: from a folder or an address, which is not kept"
    same = package_name(plain) == normalize_name(name) and plain.partition(";")[0].strip().endswith(f"=={version}")
    return f"{name}=={version}" + (behind if same else "")


def _index_lines(image: Mapping[str, Any]) -> Iterator[str]:
    """Where packages are looked for, but for indexes that are kept to some: no such file can say that."""
    if image.get("index"):
        yield f"--index-url {image['index']}"
    everybodys = [each["url"] for each in image.get("pip_indexes") or () if not each.get("packages")]
    of_lock = [each["index"] for each in image.get(PINNED) or () if each["index"]]
    for url in dict.fromkeys([*everybodys, *of_lock]):
        yield f"--extra-index-url {url}"
    for link in image.get("find_links") or ():
        yield f"--find-links {link}"
    if image.get("no_index"):
        yield "--no-index"
    if kept := sorted(map_packages_to_indexes(image.get("pip_indexes") or ())):
        yield f"# {', '.join(kept)}: from an index kept to them; give Image(pip_indexes=...) again"
