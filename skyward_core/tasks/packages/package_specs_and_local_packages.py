"""Package specifications of a project, and its local packages: folders, their dependencies, editable installations."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Any

from skyward_core.model.errors import convert_errors
from skyward_core.node.bootstrap.package_index_restrictions import PINNED, normalize_name, package_name
from skyward_core.tasks.parameter_types_from_source import parse_source
from skyward_core.tasks.python_compatibility import VersionError, satisfies
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import (
    exists,
    is_dir,
    is_file,
    parse_json,
    parse_toml,
    read_bytes,
    read_text,
    resolve_path,
)
from skyward_core.views import group_pairs

# uv writes the URL of the index beside each package in a lock, even for the default index or its mirror
# (https://docs.astral.sh/uv/concepts/indexes/). For packages with these URLs, machines use their own default index.
PUBLIC_INDEXES = ("https://pypi.org/simple", "https://pypi.python.org/simple")

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PIN = re.compile(rf"{_NAME}\s*(?:\[[^\]]*\])?\s*==\s*[A-Za-z0-9._+!-]+")
_DIRECT = re.compile(rf"(?P<name>{_NAME})\s*(?:\[[^\]]*\])?\s*@\s*(?P<address>\S+)")
_REQUIREMENT = re.compile(rf"{_NAME}\s*(?:\[[^\]]*\])?\s*(?:$|[;@(<>=!~])")
_EXTRAS = re.compile(r"[A-Za-z0-9._-]+\s*\[([^\]]*)\]")

Extras = frozenset[str]


class PackagesError(ValueError):
    """Package file that cannot be used. The message states the reason and the fix."""


@value
class PackageSpecs(Value):
    """Packages that one project needs.

    Attributes:
        source: Path of the file that lists them.
        requirements: Requirements whose versions the installer chooses.
        pinned: Exact packages, by index URL ("" for the default index of the machine), as lines ``name==version`` or
            ``name @ address``, with markers and hashes.
        constraints: Version limits for the installer.
        indexes: Additional indexes, as in an image's JSON.
        index: Index that replaces the public index; "" for none.
        find_links: URLs of pages and folders with packages.
        no_index: Whether the installer uses only ``find_links``.
        folders: Folders of local packages. Ranks import these packages from the folders.
    """

    source: str
    requirements: tuple[str, ...] = ()
    pinned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    indexes: tuple[Mapping[str, Any], ...] = ()
    index: str = ""
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    folders: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = len(self.requirements) + sum(map(len, self.pinned.values()))
        exact = ", each in its exact version" if self.pinned else ""
        return f"{count} of {self.source}{exact}"

    def add_to_image(self, image: Mapping[str, Any]) -> dict[str, Any]:
        """Return an image, as JSON, with these packages added."""
        added: dict[str, Any] = {
            "pip": [*(image.get("pip") or ()), *self.requirements],
            "pip_indexes": [*(image.get("pip_indexes") or ()), *self.indexes],
            PINNED: [{"index": index, "lines": list(lines)} for index, lines in self.pinned.items()],
            "constraints": list(self.constraints),
            "index": self.index,
            "find_links": list(self.find_links),
            "no_index": self.no_index,
            "folders": [[folder, import_entry(Path(folder))] for folder in self.folders],
        }
        return dict(image) | {name: given for name, given in added.items() if given}


def import_entry(folder: Path) -> str:
    """Return the folder that ``sys.path`` needs so that a package can be imported from its project folder."""
    inner = folder / "src"
    return str(inner if is_dir(inner) and not exists(inner / "__init__.py") else folder)


def is_package(folder: Path) -> bool:
    """Check whether a folder contains a package that installers can install."""
    return any(is_file(folder / name) for name in ("pyproject.toml", "setup.py"))


def is_pinned(line: str) -> bool:
    """Check whether a requirement names one exact version or address. Its hashes must have been removed."""
    plain = line.split(";")[0].strip()
    return bool(_PIN.fullmatch(plain) or _DIRECT.fullmatch(plain))


def is_requirement(line: str) -> bool:
    """Check whether a line is a requirement, and not an option, a path or a URL."""
    return bool(_REQUIREMENT.match(line))


def direct_address(line: str) -> str:
    """Return the address of a requirement ``name @ address``; "" if the package comes from an index."""
    found = _DIRECT.match(line)
    return found["address"] if found else ""


def format_requirement(plain: str, marker: str = "", hashes: Iterable[str] = ()) -> str:
    """Return the line of a lock for ``name==version`` or ``name @ address``.

    Raises:
        PackagesError: If installers would reject the line.
    """
    whole = f"{plain} ; {marker}" if marker else plain
    if not is_pinned(plain) or any(each in whole for each in "\n\r\0") or " --" in whole:
        raise PackagesError(f"{whole!r:.100} does not name one version of a package")
    return "".join([whole, *(f" --hash={each}" for each in sorted(set(hashes)) if _is_hash(each))])


def _is_hash(text: str) -> bool:
    return re.fullmatch(r"[a-z0-9]+:[0-9a-f]+", text) is not None


def group_by_index(lines: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Group pairs (index, line) by index. "" stands for the public index."""
    groups = group_pairs(("" if index.rstrip("/") in PUBLIC_INDEXES else index, text) for index, text in lines)
    return {index: tuple(sorted(texts)) for index, texts in sorted(groups.items())}


def local_path(address: str) -> Path | None:
    """Return the local path of an address; None for a URL."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(address)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path)) if parts.scheme else Path(address)


def package_names(lines: Iterable[str]) -> Iterator[str]:
    """Yield the normalized package names of requirement lines."""
    for each in lines:
        if found := re.match(_NAME, each):
            yield normalize_name(found[0])


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        PackagesError: If the file cannot be read, or is not TOML.
    """
    try:
        found = path.stat()
        return _read_toml(path, (found.st_mtime_ns, found.st_ino, found.st_size))
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # Python raises ValueError for a path with a zero byte
        raise PackagesError(f"{path} cannot be read: {error}") from None


# Cached, because the launch form reads the file after each key press, and a large lock takes half a second.
@lru_cache(maxsize=4)
def _read_toml(path: Path, _unchanged: tuple[int, ...]) -> dict[str, Any]:
    with convert_errors(f"{path} is not TOML", PackagesError, ValueError):
        return parse_toml(read_text(path))


def check_python(path: Path, specifier: object, version: str) -> None:
    """Check that a file allows a Python version.

    Args:
        specifier: The ``requires-python`` of the file; "" or None for any.
        version: Version of the Python.

    Raises:
        PackagesError: If the file does not allow the version.
    """
    if not specifier:
        return
    with convert_errors(f"{path}: requires-python", PackagesError, VersionError):
        fits = satisfies(version, str(specifier))
    if not fits:
        raise PackagesError(
            f"{path} requires Python {specifier}, but the script is loaded with {version}. Choose another Python"
        )


# Name of this library, which is never sent as a local package, because every node already has it.
OWN_PACKAGE = "skyward_core"


@value
class LocalPackage(Value):
    """Package that is imported from a folder of this machine.

    Attributes:
        name: Name of the package.
        folder: Folder of its project.
        entry: Folder that ``sys.path`` needs.
        is_requested: Whether a file of the project requests the package. If False, the package is only installed.
    """

    name: str
    folder: str
    entry: str
    is_requested: bool = False


def find_local_packages(image: Mapping[str, Any], prefix: str, minor: str) -> list[LocalPackage]:
    """Return the local packages of an image and of an interpreter's environment.

    Args:
        image: Image as JSON.
        prefix: Folder of the interpreter's environment.
        minor: Minor version of the interpreter, such as "3.12".
    """
    requested = {folder: entry for folder, entry in image.get("folders") or ()}
    found = list(_editable_packages(Path(prefix) / "lib" / f"python{minor}" / "site-packages"))
    installed = {each.folder for each in found}
    return [
        *(LocalPackage(each.name, each.folder, each.entry, each.folder in requested) for each in found),
        *(
            LocalPackage(Path(folder).name, folder, entry, True)
            for folder, entry in requested.items()
            if folder not in installed
        ),
    ]


def packages_to_send(packages: Iterable[LocalPackage], cwd: str) -> list[LocalPackage]:
    """Return the packages outside the working folder, which is sent anyway. Omit folders inside other folders."""
    inside = [resolve_path(cwd)] if cwd else []
    found = []
    for each in sorted(packages, key=lambda package: package.folder):
        if not any(Path(each.folder).is_relative_to(folder) for folder in inside):
            inside.append(Path(each.folder))
            found.append(each)
    return found


def _editable_packages(packages: Path) -> Iterator[LocalPackage]:
    try:
        names = os.listdir(packages)  # noqa: PTH208  faster than pathlib; each start over SSH waits for it
    except OSError:
        return
    exists_ = os.path.exists
    local = (name for name in names if name[-10:] == ".dist-info" and exists_(f"{packages}/{name}/direct_url.json"))
    for name in sorted(local):
        try:
            origin = parse_json(read_bytes(packages / name / "direct_url.json"))
            source = local_path(origin["url"]) if origin["dir_info"].get("editable") is True else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # skip an installation record without the URL of a local folder
        if source is None:
            continue
        folder = resolve_path(source)
        if is_dir(folder / OWN_PACKAGE):
            continue  # skip a checkout of this library itself, because reading its installation record takes long
        for entry in _import_entries(packages, name, folder):
            if not is_dir(Path(entry) / OWN_PACKAGE):
                yield LocalPackage(name.split("-")[0], str(folder), entry)


def _import_entries(packages: Path, name: str, folder: Path) -> list[str]:
    """Return the folders from which an editable package is imported, from its ``.pth`` file or finder module."""
    try:
        record = read_text(packages / name / "RECORD").splitlines()
    except (OSError, UnicodeDecodeError):
        record = []
    found: dict[str, None] = {}
    for file in (line.partition(",")[0] for line in record):
        with suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            if file.endswith(".pth"):
                lines = read_text(packages / file).splitlines()
                found |= dict.fromkeys(str(resolve_path(each)) for each in lines if each.startswith("/"))
            elif file.startswith("__editable__") and file.endswith("_finder.py"):
                found |= dict.fromkeys(_mapped_folders(read_text(packages / file)))
    return [each for each in found if Path(each).is_relative_to(folder)] or [import_entry(folder)]


def _mapped_folders(source: str) -> Iterator[str]:
    """Yield the parent folders of the packages that a setuptools finder module maps."""
    for node in parse_source(source).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "MAPPING" and isinstance(node, ast.AnnAssign):
            for module, path in ast.literal_eval(node.value or ast.Dict([], [])).items():
                if "." not in module and Path(path).name in (module, f"{module}.py"):
                    yield str(resolve_path(path).parent)


@value
class LocalDependencies(Value):
    """Local packages, and all local packages on which they depend.

    Attributes:
        folders: Folders of the packages, the requested ones first.
        names: Normalized names of the packages.
        requirements: Other dependencies of the packages.
    """

    folders: tuple[str, ...]
    names: frozenset[str]
    requirements: tuple[str, ...]

    def merge_requirements(self, requirements: Iterable[str]) -> tuple[str, ...]:
        """Return requirements together with the dependencies of the packages, without the packages themselves."""
        both = dict.fromkeys([*requirements, *self.requirements])
        return tuple(each for each in both if package_name(each) not in self.names)


def parse_extras(requirement: str) -> Extras:
    """Return the extras in brackets after a name or a path."""
    found = _EXTRAS.match(requirement) or re.search(r"\[([^\]]*)\]$", requirement)
    return (
        frozenset(normalize_name(each.strip()) for each in found[1].split(",") if each.strip())
        if found
        else frozenset()
    )


def resolve_local(asked: Mapping[str, Extras]) -> LocalDependencies:
    """Return the local packages in the given folders, with their dependencies.

    Args:
        asked: Requested extras of each package, by folder.

    Raises:
        PackagesError: If a project file in a folder cannot be read, or requests something unsupported.
    """
    queue = list(asked.items())
    seen: dict[str, set[str]] = {}
    names: set[str] = set()
    requirements: dict[str, None] = {}
    while queue:
        folder, extras = queue.pop(0)
        new = {"", *extras} - seen.get(folder, set())
        seen.setdefault(folder, set()).update(new)
        package = _LocalProject(Path(folder))
        names |= {package.name} - {""}
        for text in package.depends_on(new):
            if package_name(text) == package.name != "":
                queue.append((folder, parse_extras(text)))
            elif local := package.local_folder(text):
                queue.append((local, parse_extras(text)))
            else:
                requirements[text] = None
    return LocalDependencies(tuple(seen), frozenset(names), tuple(requirements))


class _LocalProject:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "pyproject.toml"
        content = read_toml(self._file) if is_file(self._file) else {}
        self._tool = _as_table(content.get("tool"))
        self._project = _as_table(content.get("project"))
        self._legacy = {} if self._project else _legacy_requirements(folder)
        self.name = normalize_name(str(self._project.get("name") or self._legacy.get("name") or ""))

    def depends_on(self, extras: Iterable[str]) -> list[str]:
        """Return the requirements of the package for the given extras.

        The extra "" stands for its unconditional requirements.
        """
        found: list[str] = []
        for extra in sorted(extras):
            asked = self._extra_requirements(extra) if extra else self._base_requirements()
            for each in asked:
                if not isinstance(each, str) or "\n" in each or not is_requirement(each):
                    raise PackagesError(f"{self._folder}: {each!r:.80} is not a requirement")
            found += asked
        return found

    def local_folder(self, requirement: str) -> str:
        """Return the folder of a dependency; "" if it is not a local package."""
        address = local_path(direct_address(requirement)) if direct_address(requirement) else None
        sources = _as_table(_as_table(self._tool.get("uv")).get("sources"))
        source = next(
            (given for name, given in sources.items() if normalize_name(name) == package_name(requirement)),
            None,
        )
        if address is None and source is None:
            return ""
        path = source.get("path") if isinstance(source, dict) else address
        folder = resolve_path(self._folder / str(path))
        if path is None or not is_package(folder):
            raise PackagesError(
                f"{self._folder} depends on {requirement!r:.80}, whose source is not supported. Use a lock"
            )
        return str(folder)

    def _base_requirements(self) -> list[Any]:
        if "dependencies" not in (self._project.get("dynamic") or ()):
            return _as_texts(self._project.get("dependencies") or self._legacy.get("install_requires"))
        dynamic = _as_table(_as_table(_as_table(self._tool.get("setuptools")).get("dynamic")).get("dependencies"))
        with convert_errors(f"{self._file}: dependencies cannot be read", PackagesError, (OSError, UnicodeDecodeError)):
            files = [read_text(self._folder / str(name)) for name in _as_texts(dynamic.get("file"))]
        return [line for text in files for line in _split_lines(text) if not line.startswith("-")]

    def _extra_requirements(self, extra: str) -> list[Any]:
        offered = _as_table(self._project.get("optional-dependencies") or self._legacy.get("extras_require"))
        for name, given in offered.items():
            if normalize_name(str(name)) == extra:
                return _as_texts(given)
        if not self._project:
            # Without a [project] table, the requirements of an extra are only known after a build of the project.
            return []
        raise PackagesError(f"{self._file} has no extra {extra}")


def _as_table(given: object) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _as_texts(given: object) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given] if isinstance(given, str) else []


def _split_lines(text: str) -> list[str]:
    plain = (re.sub(r"(^|\s)#.*$", "", each).strip() for each in text.splitlines())
    return [each for each in plain if each]


def _legacy_requirements(folder: Path) -> dict[str, Any]:
    """Return the literal arguments in ``setup.cfg`` and ``setup.py``. ``setup.py`` is parsed, not run."""
    import configparser  # imported late, because few projects still declare requirements in setup.cfg

    found: dict[str, Any] = {}
    config = configparser.ConfigParser(interpolation=None)
    unreadable = (OSError, ValueError, SyntaxError, RecursionError, MemoryError, configparser.Error)
    with convert_errors(f"{folder}: setup.cfg or setup.py cannot be read", PackagesError, unreadable):
        if is_file(folder / "setup.cfg"):
            config.read_string(read_text(folder / "setup.cfg"))
        module = parse_source(read_text(folder / "setup.py")) if is_file(folder / "setup.py") else None
    for node in ast.walk(module) if module else ():
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and (getattr(called, "id", "") or getattr(called, "attr", "")) == "setup":
            for keyword in node.keywords:
                with suppress(ValueError, RecursionError):
                    found[keyword.arg or ""] = ast.literal_eval(keyword.value)
    if name := config.get("metadata", "name", fallback=""):
        found["name"] = name
    if own := _split_lines(config.get("options", "install_requires", fallback="")):
        found["install_requires"] = own
    if config.has_section("options.extras_require"):
        found["extras_require"] = {
            extra: _split_lines(given) for extra, given in config.items("options.extras_require")
        }
    return found
