"""One package as a project names it; local packages."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Any

from skyward_core.node.bootstrap.package_indexes import PINNED, normalize_name
from skyward_core.tasks.packages.requires_python import VersionError, satisfies
from skyward_core.tasks.source_annotations import parse_source
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.user_files import (
    exists,
    is_dir,
    is_file,
    parse_json,
    parse_toml,
    read_bytes,
    read_text,
    resolve_path,
)

PUBLIC_INDEXES = ("https://pypi.org/simple", "https://pypi.python.org/simple")
"""What a ``uv.lock`` calls the index that machines know by themselves, or know another for: uv writes the default one's
address, mirrors included, beside each package (https://docs.astral.sh/uv/concepts/indexes/). What comes from there is
looked for where a machine looks anyway."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PIN = re.compile(rf"{_NAME}\s*(?:\[[^\]]*\])?\s*==\s*[A-Za-z0-9._+!-]+")
_DIRECT = re.compile(rf"(?P<name>{_NAME})\s*(?:\[[^\]]*\])?\s*@\s*(?P<address>\S+)")
_REQUIREMENT = re.compile(rf"{_NAME}\s*(?:\[[^\]]*\])?\s*(?:$|[;@(<>=!~])")


class PackagesError(ValueError):
    """What a project says cannot be used; says in words why, and what to do."""


@value
class PackageSpecs(Value):
    """One project's.

    Attributes:
        source: the path of what says so.
        requirements: what installers choose versions for.
        pinned: what is installed as it is: by the address of an index (or "" for where machines look anyway), lines
            ``name==version`` or ``name @ address``, with markers and hashes.
        constraints: what installers must not go beyond.
        indexes: more indexes, as an image's JSON has them.
        index: the index in place of the public one; "" for that.
        find_links: addresses of pages and folders with packages.
        no_index: whether installers look nowhere else.
        folders: packages that lie here as folders, and are imported from there.
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
        """An image, as JSON, with what the project says."""
        asked: dict[str, Any] = {
            "pip": [*(image.get("pip") or ()), *self.requirements],
            "pip_indexes": [*(image.get("pip_indexes") or ()), *self.indexes],
            PINNED: [{"index": index, "lines": list(lines)} for index, lines in self.pinned.items()],
            "constraints": list(self.constraints),
            "index": self.index,
            "find_links": list(self.find_links),
            "no_index": self.no_index,
            "folders": [[folder, import_entry(Path(folder))] for folder in self.folders],
        }
        return dict(image) | {name: given for name, given in asked.items() if given}


def import_entry(folder: Path) -> str:
    """Where a package's modules lie in its folder: what the import path needs."""
    inner = folder / "src"
    return str(inner if is_dir(inner) and not exists(inner / "__init__.py") else folder)


def is_package(folder: Path) -> bool:
    """Whether a folder is one that installers could install."""
    return any(is_file(folder / name) for name in ("pyproject.toml", "setup.py"))


def is_pinned(line: str) -> bool:
    """Whether a line, without its hashes, leaves installers no choice."""
    plain = line.split(";")[0].strip()
    return bool(_PIN.fullmatch(plain) or _DIRECT.fullmatch(plain))


def is_requirement(line: str) -> bool:
    """Whether a line begins as a requirement does, and not as an option, a path or an address."""
    return bool(_REQUIREMENT.match(line))


def direct_address(line: str) -> str:
    """The address of a requirement ``name @ address``; "" for one that comes from an index."""
    found = _DIRECT.match(line)
    return found["address"] if found else ""


def format_pin(name: str, version: str, marker: str = "", hashes: Iterable[str] = ()) -> str:
    """A line of a lock.

    Raises:
        PackagesError: it is none that installers would understand.
    """
    return format_requirement(f"{name}=={version}", marker, hashes)


def format_requirement(plain: str, marker: str = "", hashes: Iterable[str] = ()) -> str:
    """The same of ``name==version`` or ``name @ address``."""
    whole = f"{plain} ; {marker}" if marker else plain
    if not is_pinned(plain) or any(each in whole for each in "\n\r\0") or " --" in whole:
        raise PackagesError(f"{whole!r:.100} is no package in one version")
    return "".join([whole, *(f" --hash={each}" for each in sorted(set(hashes)) if _is_hash(each))])


def _is_hash(text: str) -> bool:
    return re.fullmatch(r"[a-z0-9]+:[0-9a-f]+", text) is not None


def group_by_index(lines: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Lines by the index that they come from, of pairs of both."""
    groups: dict[str, list[str]] = {}
    for index, text in lines:
        where = index.rstrip("/")
        groups.setdefault("" if where in PUBLIC_INDEXES else index, []).append(text)
    return {index: tuple(sorted(texts)) for index, texts in sorted(groups.items())}


def local_path(address: str) -> Path | None:
    """The path of an address that is of this machine alone; None for all others."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(address)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path)) if parts.scheme else Path(address)


def package_names(lines: Iterable[str]) -> Iterator[str]:
    """The packages that lines are about."""
    for each in lines:
        if found := re.match(_NAME, each):
            yield normalize_name(found[0])


def read_toml(path: Path) -> dict[str, Any]:
    """What is in a file.

    Raises:
        PackagesError: it cannot be read, or is no TOML.
    """
    try:
        found = path.stat()
        return _read_toml(path, (found.st_mtime_ns, found.st_ino, found.st_size))
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not a path
        raise PackagesError(f"{path} cannot be read: {error}") from None


@lru_cache(maxsize=4)  # a form asks as often as somebody types, and a large lock takes half a second
def _read_toml(path: Path, _unchanged: tuple[int, ...]) -> dict[str, Any]:
    try:
        return parse_toml(read_text(path))
    except ValueError as error:
        raise PackagesError(f"{path} is no TOML: {error}") from None


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


OWN_PACKAGE = "skyward_core"  # other machines have us anyway


@value
class LocalPackage(Value):
    """One of them.

    Attributes:
        name: what it is called.
        folder: where its project lies.
        entry: what the import path needs of that.
        is_requested: whether a file of the project asks for it; else it is only installed so.
    """

    name: str
    folder: str
    entry: str
    is_requested: bool = False


def find_local_packages(image: Mapping[str, Any], prefix: str, minor: str) -> list[LocalPackage]:
    """Those of an image, as JSON, and those of an interpreter.

    Args:
        prefix: the folder of the interpreter's environment.
        minor: its version, such as "3.12".
    """
    asked = {folder: entry for folder, entry in image.get("folders") or ()}
    found = list(_editable_packages(Path(prefix) / "lib" / f"python{minor}" / "site-packages"))
    there = {each.folder for each in found}
    return [
        *(LocalPackage(each.name, each.folder, each.entry, each.folder in asked) for each in found),
        *(
            LocalPackage(Path(folder).name, folder, entry, True)
            for folder, entry in asked.items()
            if folder not in there
        ),
    ]


def packages_to_send(packages: Iterable[LocalPackage], cwd: str) -> list[LocalPackage]:
    """Those that do not lie in the working folder, which travels anyway; the folder of another one counts once."""
    inside = [resolve_path(cwd)] if cwd else []
    found = []
    for each in sorted(packages, key=lambda package: package.folder):
        if not any(Path(each.folder).is_relative_to(folder) for folder in inside):
            inside.append(Path(each.folder))
            found.append(each)
    return found


def _editable_packages(packages: Path) -> Iterator[LocalPackage]:
    try:
        names = os.listdir(packages)  # noqa: PTH208  each start over SSH waits for it, and most find nothing
    except OSError:
        return
    there = os.path.exists
    said = (name for name in names if name[-10:] == ".dist-info" and there(f"{packages}/{name}/direct_url.json"))
    for name in sorted(said):
        try:
            origin = parse_json(read_bytes(packages / name / "direct_url.json"))
            editable = origin["dir_info"].get("editable") is True and origin["url"].startswith("file://")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # most come from an index
        if not editable:
            continue
        folder = _url_path(origin["url"])
        if is_dir(folder / OWN_PACKAGE):
            continue  # where this library is developed; to read how it was installed takes long
        for entry in _import_entries(packages, name, folder):
            if not is_dir(Path(entry) / OWN_PACKAGE):
                yield LocalPackage(name.split("-")[0], str(folder), entry)


def _url_path(url: str) -> Path:
    from urllib.parse import unquote, urlsplit

    return resolve_path(unquote(urlsplit(url).path))


def _import_entries(packages: Path, name: str, folder: Path) -> list[str]:
    """Where its modules lie, by what its installer has written: a ``.pth`` file, or a module that finds them."""
    try:
        record = read_text(packages / name / "RECORD").splitlines()
    except (OSError, UnicodeDecodeError):
        record = []
    found: dict[str, None] = {}
    for file in (line.partition(",")[0] for line in record):
        try:
            if file.endswith(".pth"):
                lines = read_text(packages / file).splitlines()
                found |= dict.fromkeys(str(resolve_path(each)) for each in lines if each.startswith("/"))
            elif file.startswith("__editable__") and file.endswith("_finder.py"):
                found |= dict.fromkeys(_mapped_folders(read_text(packages / file)))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    inside = [each for each in found if Path(each).is_relative_to(folder)]
    if inside:
        return inside

    return [import_entry(folder)]


def _mapped_folders(source: str) -> Iterator[str]:
    """The folders above the packages that such a module of setuptools' finds."""
    for node in parse_source(source).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "MAPPING" and isinstance(node, ast.AnnAssign):
            for module, path in ast.literal_eval(node.value or ast.Dict([], [])).items():
                if "." not in module and Path(path).name in (module, f"{module}.py"):
                    yield str(resolve_path(path).parent)
