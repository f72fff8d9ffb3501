"""What a project says of its packages, whichever way: as installers on any machine can be told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from ...model.value import Value, value
from ...node.boot.indexes import PINNED, normal
from ...store.user_files import exists, is_dir, is_file

PUBLIC = ("https://pypi.org/simple", "https://pypi.python.org/simple")
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
class Packages(Value):
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

    def added_to(self, image: Mapping[str, Any]) -> dict[str, Any]:
        """An image, as JSON, with what the project says."""
        asked: dict[str, Any] = {
            "pip": [*(image.get("pip") or ()), *self.requirements],
            "pip_indexes": [*(image.get("pip_indexes") or ()), *self.indexes],
            PINNED: [{"index": index, "lines": list(lines)} for index, lines in self.pinned.items()],
            "constraints": list(self.constraints),
            "index": self.index,
            "find_links": list(self.find_links),
            "no_index": self.no_index,
            "folders": [[folder, entry_of(Path(folder))] for folder in self.folders],
        }
        return dict(image) | {name: given for name, given in asked.items() if given}


def entry_of(folder: Path) -> str:
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


def address_of(line: str) -> str:
    """The address of a requirement ``name @ address``; "" for one that comes from an index."""
    found = _DIRECT.match(line)
    return found["address"] if found else ""


def pin(name: str, version: str, marker: str = "", hashes: Iterable[str] = ()) -> str:
    """A line of a lock.

    Raises:
        PackagesError: it is none that installers would understand.
    """
    return line(f"{name}=={version}", marker, hashes)


def line(plain: str, marker: str = "", hashes: Iterable[str] = ()) -> str:
    """The same of ``name==version`` or ``name @ address``."""
    whole = f"{plain} ; {marker}" if marker else plain
    if not is_pinned(plain) or any(each in whole for each in "\n\r\0") or " --" in whole:
        raise PackagesError(f"{whole!r:.100} is no package in one version")
    return "".join([whole, *(f" --hash={each}" for each in sorted(set(hashes)) if _is_hash(each))])


def _is_hash(text: str) -> bool:
    return re.fullmatch(r"[a-z0-9]+:[0-9a-f]+", text) is not None


def grouped(lines: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Lines by the index that they come from, of pairs of both."""
    groups: dict[str, list[str]] = {}
    for index, text in lines:
        where = index.rstrip("/")
        groups.setdefault("" if where in PUBLIC else index, []).append(text)
    return {index: tuple(sorted(texts)) for index, texts in sorted(groups.items())}


def local_address(address: str) -> Path | None:
    """The path of an address that is of this machine alone; None for all others."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(address)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path)) if parts.scheme else Path(address)


def names(lines: Iterable[str]) -> Iterator[str]:
    """The packages that lines are about."""
    for each in lines:
        if found := re.match(_NAME, each):
            yield normal(found[0])
