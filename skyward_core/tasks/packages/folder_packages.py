"""Packages that lie in folders: what they are called and depend on, as far as their files say so unbuilt.

Installers would get what such a package depends on as they build it. Ours import it from its folder, so that it is had
by what this reads. A name that the package of a folder has is looked for in no index, where a stranger's may have it.
"""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...model.value import Value, value
from ...node.boot.indexes import normal, package_of
from ...store.user_files import is_file, read_text, resolved
from ..parsing import parsed
from .packages import PackagesError, address_of, is_package, is_requirement, local_address
from .toml_file import tables

Extras = frozenset[str]
_EXTRAS = re.compile(r"[A-Za-z0-9._-]+\s*\[([^\]]*)\]")


@value
class FolderPackages(Value):
    """Some of them, and those that they depend on.

    Attributes:
        folders: where they lie, those first that were asked for.
        names: what they are called.
        requirements: what else they depend on.
    """

    folders: tuple[str, ...]
    names: frozenset[str]
    requirements: tuple[str, ...]

    def added_to(self, requirements: Iterable[str]) -> tuple[str, ...]:
        """Requirements with those of the packages, and without the packages themselves."""
        both = dict.fromkeys([*requirements, *self.requirements])
        return tuple(each for each in both if package_of(each) not in self.names)


def extras_of(requirement: str) -> Extras:
    """Those that stand in brackets behind a name, or behind a path."""
    found = _EXTRAS.match(requirement) or re.search(r"\[([^\]]*)\]$", requirement)
    return (
        frozenset(normal(each.strip()) for each in found[1].split(",") if each.strip())
        if found
        else frozenset()
    )


def with_dependencies(asked: Mapping[str, Extras]) -> FolderPackages:
    """What comes of packages in folders.

    Args:
        asked: folders, and which of their extras.

    Raises:
        PackagesError: a file of theirs cannot be read, or asks for what is not done.
    """
    left = list(asked.items())
    seen: dict[str, set[str]] = {}
    names: set[str] = set()
    requirements: dict[str, None] = {}
    while left:
        folder, extras = left.pop(0)
        new = {"", *extras} - seen.get(folder, set())
        seen.setdefault(folder, set()).update(new)
        package = _Package(Path(folder))
        names |= {package.name} - {""}
        for text in package.depends_on(new):
            if package_of(text) == package.name != "":
                left.append((folder, extras_of(text)))
            elif there := package.local(text):
                left.append((there, extras_of(text)))
            else:
                requirements[text] = None
    return FolderPackages(tuple(seen), frozenset(names), tuple(requirements))


class _Package:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "pyproject.toml"
        said = tables(self._file) if is_file(self._file) else {}
        self._tool = _table(said.get("tool"))
        self._project = _table(said.get("project"))
        self._older = {} if self._project else _older(folder)
        self.name = normal(str(self._project.get("name") or self._older.get("name") or ""))

    def depends_on(self, extras: Iterable[str]) -> list[str]:
        """What is asked for under each of the extras; "" is what is always asked for."""
        found: list[str] = []
        for extra in sorted(extras):
            asked = self._extra(extra) if extra else self._always()
            for each in asked:
                if not isinstance(each, str) or "\n" in each or not is_requirement(each):
                    raise PackagesError(f"{self._folder}: {each!r:.80} is no requirement")
            found += asked
        return found

    def local(self, requirement: str) -> str:
        """The folder of a package that it depends on; "" where it comes from elsewhere."""
        address = local_address(address_of(requirement)) if address_of(requirement) else None
        sources = _table(_table(self._tool.get("uv")).get("sources"))
        source = next(
            (given for name, given in sources.items() if normal(name) == package_of(requirement)), None
        )
        if address is None and source is None:
            return ""
        path = source.get("path") if isinstance(source, dict) else address
        folder = resolved(self._folder / str(path))
        if path is None or not is_package(folder):
            raise PackagesError(
                f"{self._folder} depends on {requirement!r:.80}, which it has from a place that is not known here: "
                "use a lock"
            )
        return str(folder)

    def _always(self) -> list[Any]:
        if "dependencies" not in (self._project.get("dynamic") or ()):
            return _texts(self._project.get("dependencies") or self._older.get("install_requires"))
        dynamic = _table(_table(_table(self._tool.get("setuptools")).get("dynamic")).get("dependencies"))
        try:
            files = [read_text(self._folder / str(name)) for name in _texts(dynamic.get("file"))]
        except (OSError, UnicodeDecodeError) as error:
            raise PackagesError(f"{self._file}: its dependencies cannot be read: {error}") from None
        return [line for text in files for line in _lines(text) if not line.startswith("-")]

    def _extra(self, extra: str) -> list[Any]:
        offered = _table(self._project.get("optional-dependencies") or self._older.get("extras_require"))
        for name, given in offered.items():
            if normal(str(name)) == extra:
                return _texts(given)
        if not self._project:
            return []  # only building it would tell
        raise PackagesError(f"{self._file} has no extra {extra}")


def _table(given: object) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _texts(given: object) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given] if isinstance(given, str) else []


def _lines(text: str) -> list[str]:
    plain = (re.sub(r"(^|\s)#.*$", "", each).strip() for each in text.splitlines())
    return [each for each in plain if each]


def _older(folder: Path) -> dict[str, Any]:
    """What ``setup.cfg`` and ``setup.py`` say in so many words; what only running the latter would tell is left out."""
    found: dict[str, Any] = {}
    config = configparser.ConfigParser(interpolation=None)
    try:
        if is_file(folder / "setup.cfg"):
            config.read_string(read_text(folder / "setup.cfg"))
        module = parsed(read_text(folder / "setup.py")) if is_file(folder / "setup.py") else None
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError, configparser.Error) as error:
        raise PackagesError(f"{folder}: setup.cfg or setup.py cannot be read: {error}") from None
    for node in ast.walk(module) if module else ():
        called = node.func if isinstance(node, ast.Call) else None
        if (
            isinstance(node, ast.Call)
            and (getattr(called, "id", "") or getattr(called, "attr", "")) == "setup"
        ):
            for keyword in node.keywords:
                try:
                    found[keyword.arg or ""] = ast.literal_eval(keyword.value)
                except (ValueError, RecursionError):
                    continue
    if name := config.get("metadata", "name", fallback=""):
        found["name"] = name
    if own := _lines(config.get("options", "install_requires", fallback="")):
        found["install_requires"] = own
    if config.has_section("options.extras_require"):
        found["extras_require"] = {
            extra: _lines(given) for extra, given in config.items("options.extras_require")
        }
    return found
