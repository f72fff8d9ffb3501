"""Requirements from ``requirements.txt`` and ``pyproject.toml``."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skyward_core.model.errors import convert_errors
from skyward_core.node.bootstrap.package_index_restrictions import normalize_name, package_name
from skyward_core.tasks.packages import package_specs_and_local_packages as package_specs
from skyward_core.tasks.packages.inline_metadata import MetadataError, parse_tables
from skyward_core.util.safe_file_access import exists, expand_user, is_dir, read_text, resolve_path

_COMMENT = re.compile(r"(^|\s)#.*$")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_LINE_OPTION = re.compile(r"\s--([a-z-]+)[ =]+(\S+)")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://")
MAX_FILES = 100  # maximum number of files that a requirements file may include, directly or indirectly
SUPPORTED_OPTIONS = (
    "supported: -r, -c, -e, --hash, --index-url, --extra-index-url, --find-links, --no-index and --require-hashes"
)


def read_requirements(path: Path, *, lock: bool = False) -> package_specs.PackageSpecs:
    """Return the packages of a requirements file and of the files that it includes.

    Args:
        lock: Whether each line must name one exact version or address.

    Raises:
        PackagesError: If a file cannot be read or requests something unsupported. The message names the file and the
            line.
    """
    reader = _RequirementsReader(lock=lock)
    reader.read(path)
    return reader.packages(str(path))


class _RequirementsReader:
    """Reader of one requirements file and of the files that it includes."""

    def __init__(self, *, lock: bool) -> None:
        self._lock = lock
        # Each requirement with its hashes, and its file name and line number for error messages.
        self._lines: list[tuple[str, tuple[str, ...], str]] = []
        self._limits: dict[str, None] = {}
        self._folders: dict[str, package_specs.Extras] = {}
        self._extra: dict[str, None] = {}
        self._links: dict[str, None] = {}
        self._index = ""
        self._no_index = False
        self._hashes = False
        self._read: set[tuple[Path, bool]] = set()

    def packages(self, source: str) -> package_specs.PackageSpecs:
        hashed = self._hashes or any(hashes for _, hashes, _ in self._lines)
        pinned, free = [], []
        for text, hashes, where in self._lines:
            if hashed and not hashes and not self._lock:
                raise package_specs.PackagesError(
                    f"{where}: {text} has no --hash, but other lines have one. Give every line a --hash, or none: "
                    "pip rejects a mixture"
                )
            if (hashed or self._lock) and not package_specs.is_pinned(text):
                kind = "a lock" if self._lock else "a file with hashes"
                raise package_specs.PackagesError(
                    f"{where}: {text:.100} does not name an exact version, which {kind} needs"
                )
            if hashed or self._lock:
                pinned.append(("", package_specs.format_requirement(*_split_words(text), hashes)))
            else:
                free.append(text)
        folders, requirements = tuple(self._folders), tuple(free)
        # Resolve dependencies of local folders only for plain files; locks and files with hashes list them.
        if not (hashed or self._lock):
            local = package_specs.resolve_local(self._folders)
            folders, requirements = local.folders, local.merge_requirements(free)
        return package_specs.PackageSpecs(
            source,
            requirements=requirements,
            pinned=package_specs.group_by_index(pinned),
            constraints=tuple(self._limits),
            indexes=tuple({"url": url, "packages": []} for url in self._extra),
            index=self._index,
            find_links=tuple(self._links),
            no_index=self._no_index,
            folders=folders,
        )

    def read(self, path: Path, *, limits: bool = False) -> None:
        """Add the requirements and options in the lines of a file.

        Args:
            limits: Whether the lines are constraints.
        """
        path = resolve_path(path)
        if (path, limits) in self._read:
            return
        if len(self._read) >= MAX_FILES:
            raise package_specs.PackagesError(f"{path} cannot be read: more than {MAX_FILES} files are included")
        self._read.add((path, limits))
        for number, text in _logical_lines(path):
            where = f"{path}, line {number}"
            if text.startswith("-"):
                self._read_options(text, path, where, limits)
            else:
                self._read_requirement(text, path, where, limits)

    def _read_options(self, text: str, path: Path, where: str, limits: bool) -> None:
        with convert_errors(where, package_specs.PackagesError, (ValueError, argparse.ArgumentError)):
            given, unknown = _option_parser().parse_known_args(shlex.split(text))
        if unknown:
            raise package_specs.PackagesError(f"{where}: {unknown[0]} is not supported; {SUPPORTED_OPTIONS}")
        self._no_index |= given.no_index
        self._hashes |= given.require_hashes
        self._index = given.index_url or self._index
        self._extra |= dict.fromkeys(given.extra_index_url)
        for link in given.find_links:
            folder = package_specs.local_path(link)
            at = None if folder is None else resolve_path(path.parent / expand_user(folder))
            self._links[link if at is None else "file://" + quote(str(at))] = None
        for file in (*given.requirement, *given.constraint):
            if _ADDRESS.match(file):
                raise package_specs.PackagesError(
                    f"{where}: {file} cannot be included from a URL. Put the file beside this one"
                )
            self.read(path.parent / expand_user(file), limits=limits or file in given.constraint)
        for folder in given.editable:
            if limits:
                raise package_specs.PackagesError(f"{where}: a constraint cannot be editable")
            self._read_folder(folder, path, where)

    def _read_requirement(self, text: str, path: Path, where: str, limits: bool) -> None:
        hashes = []
        for found in _LINE_OPTION.finditer(text):
            if found[1] != "hash":
                raise package_specs.PackagesError(f"{where}: --{found[1]} is not supported; {SUPPORTED_OPTIONS}")
            hashes.append(found[2])
        plain = _LINE_OPTION.sub("", text).strip()
        if limits:
            if not package_specs.is_requirement(plain):
                raise package_specs.PackagesError(f"{where}: {plain!r:.80} is not a constraint")
            self._limits[plain] = None
            return
        if not package_specs.is_requirement(plain):
            if _ADDRESS.match(plain) and not plain.startswith("file:"):
                raise package_specs.PackagesError(f"{where}: {plain} lacks the package's name. Write NAME @ {plain}")
            self._read_folder(plain, path, where)
            return
        if (address := package_specs.direct_address(plain)) and package_specs.local_path(address) is not None:
            self._read_folder(address, path, where, package_specs.parse_extras(plain))
            return
        self._lines.append((plain, tuple(hashes), where))

    def _read_folder(self, given: str, path: Path, where: str, extras: package_specs.Extras = frozenset()) -> None:
        """Add a local package. The package's folder is sent to the ranks, which import the package from there."""
        extras |= package_specs.parse_extras(given)
        found = package_specs.local_path(given.partition("[")[0] if given.endswith("]") else given)
        if found is None:
            raise package_specs.PackagesError(f"{where}: -e {given} is not a folder. Write NAME @ {given} without -e")
        folder = resolve_path(path.parent / expand_user(found))
        if not is_dir(folder):
            reason = (
                "is a file of this machine; only package folders are supported" if exists(folder) else "does not exist"
            )
            raise package_specs.PackagesError(f"{where}: {given} {reason}. Name the package, and an index that has it")
        if not package_specs.is_package(folder):
            raise package_specs.PackagesError(f"{where}: {folder} has neither pyproject.toml nor setup.py")
        self._folders[str(folder)] = self._folders.get(str(folder), frozenset()) | extras


@cache
def _option_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (
        ("-r", "--requirement"), ("-c", "--constraint"), ("-e", "--editable"), ("-f", "--find-links"),
        ("--extra-index-url",),
    ):  # fmt: skip
        parser.add_argument(*names, action="append", default=[])
    parser.add_argument("-i", "--index-url", "--pypi-url")
    for name in ("--no-index", "--require-hashes"):
        parser.add_argument(name, action="store_true")
    return parser


def _split_words(text: str) -> tuple[str, str]:
    plain, _, marker = text.partition(";")
    return plain.strip(), marker.strip()


def _logical_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield logical lines without comments, each with the number of its first physical line."""
    try:
        lines = read_text(path, "utf-8-sig").splitlines()
    except OSError as error:
        raise package_specs.PackagesError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise package_specs.PackagesError(f"{path} is not UTF-8 text") from None
    whole, first = "", 0
    for number, text in enumerate([*lines, ""], 1):
        first = first or number
        is_comment = text.lstrip().startswith("#")
        if text.endswith("\\") and not is_comment:
            whole += text[:-1] + " "
            continue
        whole = _COMMENT.sub("", whole + (" " if is_comment else text)).strip()
        if whole:
            yield first, _VARIABLE.sub(lambda found: os.environ.get(found[1], found[0]), whole)
        whole, first = "", 0


# Keys of [tool.uv] that are about uv itself, development or publishing, so that a run's dependencies do not depend on
# them.
_IGNORED_UV_KEYS = (
    "build-backend", "cache-dir", "cache-keys", "check-url", "compile-bytecode", "concurrent-builds",
    "concurrent-downloads", "concurrent-installs", "conflicts", "default-groups", "dependency-groups",
    "dev-dependencies", "environments", "link-mode", "managed", "native-tls", "no-cache", "no-progress", "offline",
    "package", "pip", "preview", "publish-url", "python-downloads", "python-install-mirror", "python-preference",
    "pypy-install-mirror", "reinstall", "reinstall-package", "required-environments", "required-version",
    "trusted-publishing", "upgrade", "upgrade-package", "workspace",
)  # fmt: skip


def read_project_file(path: Path, version: str) -> package_specs.PackageSpecs:
    """Return the dependencies of a ``pyproject.toml``, without its dependency groups and extras.

    Args:
        version: Version of the Python that installs the dependencies.

    Raises:
        PackagesError: If the file cannot be read, or requests something unsupported.
    """
    content = package_specs.read_toml(path)
    project = content.get("project")
    if not isinstance(project, dict):
        raise package_specs.PackagesError(
            f"{path} has no [project] table with dependencies. Use a lock or a requirements file"
        )
    if "dependencies" in (project.get("dynamic") or ()):
        raise package_specs.PackagesError(
            f"{path}: its dependencies are dynamic: only a build of the project could list them. Use a lock or a "
            "requirements file"
        )
    uv = (content.get("tool") or {}).get("uv") or {}
    if not isinstance(uv, dict):
        raise package_specs.PackagesError(f"{path}: [tool.uv] must be a table")
    uv = {name: given for name, given in uv.items() if name not in _IGNORED_UV_KEYS}
    limits = uv.pop("constraint-dependencies", [])
    dependencies, folders = _split_local(project.get("dependencies", []), uv, path)
    tables = {"dependencies": dependencies, "tool": {"uv": uv}}
    if "requires-python" in project:
        tables["requires-python"] = project["requires-python"]
    with convert_errors(str(path), package_specs.PackagesError, MetadataError):
        found = parse_tables(tables, path.parent)
    package_specs.check_python(path, found.requires_python, version)
    places: Mapping[str, Any] = found.environment
    own = [str(path.parent)] if "build-system" in content else []
    local = package_specs.resolve_local(folders)
    return package_specs.PackageSpecs(
        str(path),
        requirements=local.merge_requirements(places["pip"]),
        constraints=tuple(map(str, limits)),
        indexes=tuple(places.get("pip_indexes", ())),
        index=places.get("index", ""),
        find_links=tuple(places.get("find_links", ())),
        no_index=places.get("no_index", False),
        folders=tuple(dict.fromkeys([*own, *local.folders])),
    )


def _split_local(dependencies: Any, uv: dict[str, Any], path: Path) -> tuple[Any, dict[str, package_specs.Extras]]:
    """Return the dependencies without a local folder in ``[tool.uv.sources]``, and the local folders of the others."""
    sources = uv.get("sources")
    if not isinstance(sources, dict) or not isinstance(dependencies, list):
        return dependencies, {}  # return the wrong types unchanged, because parse_tables reports them
    folders: dict[str, package_specs.Extras] = {}
    local = set()
    extras = {package_name(each): package_specs.parse_extras(each) for each in dependencies if isinstance(each, str)}
    for name, source in sources.items():
        if not isinstance(source, dict) or not isinstance(source.get("path"), str):
            if isinstance(source, dict) and source.get("workspace"):
                raise package_specs.PackagesError(
                    f"{path}: [tool.uv.sources] {name} is a workspace member, and only uv.lock has its location. "
                    "Use uv.lock as the lock"
                )
            continue
        folder = resolve_path(path.parent / expand_user(source["path"]))
        if not package_specs.is_package(folder):
            raise package_specs.PackagesError(
                f"{path}: [tool.uv.sources] {name}: {folder} is not the folder of a package"
            )
        local.add(normalize_name(name))
        folders[str(folder)] = extras.get(normalize_name(name), frozenset())
    uv["sources"] = {name: source for name, source in sources.items() if normalize_name(name) not in local}
    texts = [each for each in dependencies if not (isinstance(each, str) and package_name(each) in local)]
    return texts, folders
