"""A requirements file, as pip has it: what is in it and in the files that it includes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from ...store.user_files import exists, expanded, is_dir, read_text, resolved
from .folder_packages import Extras, extras_of, with_dependencies
from .packages import (
    Packages,
    PackagesError,
    address_of,
    grouped,
    is_package,
    is_pinned,
    is_requirement,
    line,
    local_address,
)

_COMMENT = re.compile(r"(^|\s)#.*$")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OF_LINE = re.compile(r"\s--([a-z-]+)[ =]+(\S+)")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://")
# Options by all that they may be called.
MOST_FILES = 100  # that one names, and those that these name
_OPTIONS = {
    "-r": "include", "--requirement": "include", "-c": "limit", "--constraint": "limit",
    "-e": "editable", "--editable": "editable", "-i": "index", "--index-url": "index", "--pypi-url": "index",
    "--extra-index-url": "extra", "-f": "links", "--find-links": "links",
    "--no-index": "no_index", "--require-hashes": "hashes",
}  # fmt: skip
_WITHOUT_VALUE = ("no_index", "hashes")
KNOWN = (
    "-r, -c, -e, --hash, --index-url, --extra-index-url, --find-links, --no-index and --require-hashes are"
)


def read(path: Path, *, lock: bool = False) -> Packages:
    """What a file asks for.

    Args:
        lock: whether each line must leave installers no choice.

    Raises:
        PackagesError: it cannot be read, or asks for what is not done; names file and line.
    """
    reader = _Reader(lock=lock)
    reader.read(path)
    return reader.packages(str(path))


class _Reader:
    """One file, and those that it includes."""

    def __init__(self, *, lock: bool) -> None:
        self._lock = lock
        self._lines: list[tuple[str, tuple[str, ...], str]] = []  # requirement, hashes, where it stands
        self._limits: dict[str, None] = {}
        self._folders: dict[str, Extras] = {}
        self._extra: dict[str, None] = {}
        self._links: dict[str, None] = {}
        self._index = ""
        self._no_index = False
        self._hashes = False
        self._read: set[tuple[Path, bool]] = set()

    def packages(self, source: str) -> Packages:
        hashed = self._hashes or any(hashes for _, hashes, _ in self._lines)
        pinned, free = [], []
        for text, hashes, where in self._lines:
            if hashed and not hashes and not self._lock:
                raise PackagesError(
                    f"{where}: {text} has no --hash, and others have: give each one, or none (pip takes no file "
                    "with some)"
                )
            if (hashed or self._lock) and not is_pinned(text):
                kind = "a lock" if self._lock else "a file with hashes"
                raise PackagesError(
                    f"{where}: {text:.100} names no exact version, as each line of {kind} does"
                )
            if hashed or self._lock:
                pinned.append(("", line(*_split(text), hashes)))
            else:
                free.append(text)
        folders, requirements = tuple(self._folders), tuple(free)
        if not (hashed or self._lock):  # else each package that is needed stands here
            local = with_dependencies(self._folders)
            folders, requirements = local.folders, local.added_to(free)
        return Packages(
            source,
            requirements=requirements,
            pinned=grouped(pinned),
            constraints=tuple(self._limits),
            indexes=tuple({"url": url, "packages": []} for url in self._extra),
            index=self._index,
            find_links=tuple(self._links),
            no_index=self._no_index,
            folders=folders,
        )

    def read(self, path: Path, *, limits: bool = False) -> None:
        """Take in a file.

        Args:
            limits: whether it is one of constraints.
        """
        path = resolved(path)
        if (path, limits) in self._read:
            return
        if len(self._read) >= MOST_FILES:
            raise PackagesError(f"{path} is not read: {MOST_FILES} files are included before it")
        self._read.add((path, limits))
        for number, text in _logical(path):
            where = f"{path}, line {number}"
            if text.startswith("-"):
                self._options(text, path, where, limits)
            else:
                self._requirement(text, path, where, limits)

    def _options(self, text: str, path: Path, where: str, limits: bool) -> None:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise PackagesError(f"{where}: {error}") from None
        while words:
            name, given = _option(words.pop(0), where)
            if name in _WITHOUT_VALUE:
                self._no_index |= name == "no_index"
                self._hashes |= name == "hashes"
                continue
            if not given:
                if not words:
                    raise PackagesError(f"{where}: {text} lacks a value")
                given = words.pop(0)
            self._option(name, given, path, where, limits)

    def _option(self, name: str, given: str, path: Path, where: str, limits: bool) -> None:
        if name in ("include", "limit"):
            if _ADDRESS.match(given):
                raise PackagesError(f"{where}: {given} is not fetched; put the file beside this one")
            self.read(path.parent / expanded(given), limits=limits or name == "limit")
        elif name == "editable":
            if limits:
                raise PackagesError(f"{where}: a constraint is no package to install")
            self._folder(given, path, where)
        elif name == "index":
            self._index = given
        elif name == "extra":
            self._extra[given] = None
        else:
            folder = local_address(given)
            at = None if folder is None else resolved(path.parent / expanded(folder))
            self._links[given if at is None else "file://" + quote(str(at))] = None

    def _requirement(self, text: str, path: Path, where: str, limits: bool) -> None:
        hashes = []
        for found in _OF_LINE.finditer(text):
            if found[1] != "hash":
                raise PackagesError(f"{where}: --{found[1]} is not known here; {KNOWN}")
            hashes.append(found[2])
        plain = _OF_LINE.sub("", text).strip()
        if limits:
            if not is_requirement(plain):
                raise PackagesError(f"{where}: {plain!r:.80} is no constraint")
            self._limits[plain] = None
            return
        if not is_requirement(plain):
            if _ADDRESS.match(plain) and not plain.startswith("file:"):
                raise PackagesError(f"{where}: write {plain} with the package's name: NAME @ {plain}")
            self._folder(plain, path, where)
            return
        if (address := address_of(plain)) and local_address(address) is not None:
            self._folder(address, path, where, extras_of(plain))
            return
        self._lines.append((plain, tuple(hashes), where))

    def _folder(self, given: str, path: Path, where: str, extras: Extras = frozenset()) -> None:
        """A package that lies here. Ranks import it from its folder, which travels."""
        extras |= extras_of(given)
        bare = given.partition("[")[0] if given.endswith("]") else given
        found = local_address(bare)
        if found is None:
            raise PackagesError(
                f"{where}: -e {given} is no folder; without -e, and as NAME @ {given}, it is installed"
            )
        folder = resolved(path.parent / expanded(found))
        if not is_dir(folder):
            there = (
                "is a file of this machine, and only folders of packages travel"
                if exists(folder)
                else "is not there"
            )
            raise PackagesError(f"{where}: {given} {there}: name the package, and the index that has it")
        if not is_package(folder):
            raise PackagesError(f"{where}: {folder} has neither pyproject.toml nor setup.py")
        self._folders[str(folder)] = self._folders.get(str(folder), frozenset()) | extras


def _option(word: str, where: str) -> tuple[str, str]:
    """What an option is to us, and what is given with it in the same word."""
    name, _, given = word.partition("=")
    if not word.startswith("--"):
        name, given = word[:2], word[2:].removeprefix("=")
    if name not in _OPTIONS:
        raise PackagesError(f"{where}: {name} is not known here; {KNOWN}")
    return _OPTIONS[name], given


def _split(text: str) -> tuple[str, str]:
    plain, _, marker = text.partition(";")
    return plain.strip(), marker.strip()


def _logical(path: Path) -> Iterator[tuple[int, str]]:
    """The lines, with the number of the first of those that are one by a backslash; comments are left out."""
    try:
        lines = read_text(path, "utf-8-sig").splitlines()
    except OSError as error:
        raise PackagesError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PackagesError(f"{path} is no text in UTF-8") from None
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
