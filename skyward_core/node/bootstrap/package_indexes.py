"""Indexes that are kept to some packages: what installers are told, so that those come from there or not at all.

Installers take a package from whichever index has the newest, or answers: a stranger could offer the name of a private
package at the public index, and that of a build for another device comes from there by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

Index = Mapping[str, Any]
PINNED = "pinned"
"""An image's key for what is installed as it is: groups of lines, each with the ``index`` that they come from."""
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_LOGIN = re.compile(r"(?P<scheme>https?://)(?P<info>[^\s/?#]+)@(?P<host>[^\s/?#:@]+)")


def index_name(number: int) -> str:
    """What uv knows an image's index by."""
    return f"image{number}"


def normalize_name(name: str) -> str:
    """A package's name as all of its spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def package_name(requirement: str) -> str:
    """The package that a requirement is about; "" for a URL or a file, which comes from no index."""
    found = _NAME.match(requirement)
    return normalize_name(found[1]) if found and "@" not in requirement.split(";")[0] else ""


def map_packages_to_indexes(indexes: Sequence[Index]) -> dict[str, int]:
    """The packages to which indexes are kept, with the number of their index."""
    return {
        normalize_name(package): number
        for number, index in reversed(list(enumerate(indexes)))
        for package in index.get("packages") or ()
    }


def group_by_index(requirements: Sequence[str], indexes: Sequence[Index]) -> dict[int, list[str]]:
    """The requirements that come from indexes of their own, by the number of these."""
    home, found = map_packages_to_indexes(indexes), dict[int, list[str]]()
    for requirement in requirements:
        if (package := package_name(requirement)) in home:
            found.setdefault(home[package], []).append(requirement)
    return found


def iterate_pinned_groups(image: Mapping[str, Any]) -> Iterator[tuple[list[str], int | str | None]]:
    """What an image has pinned: lines, and what the index is called that they come from alone: an own one of the image
    by its number, one of :func:`lock_indexes` by its name there; None for wherever packages come from here."""
    indexes = image.get("pip_indexes") or ()
    named = lock_indexes(image)
    for group in image.get(PINNED) or ():
        lines = list(group["lines"])
        if group["index"]:
            yield lines, next(name for name, address in named.items() if address == group["index"])
            continue
        own = group_by_index(lines, indexes)
        taken = {line for each in own.values() for line in each}
        yield [line for line in lines if line not in taken], None
        for number, kept in own.items():
            yield kept, number


def lock_indexes(image: Mapping[str, Any]) -> dict[str, str]:
    """The indexes that a lock names, by what they are called."""
    groups = image.get(PINNED) or ()
    return {f"OF_LOCK_{number}": group["index"] for number, group in enumerate(groups) if group["index"]}


def unnamed_packages(requirements: Sequence[str], indexes: Sequence[Index]) -> list[str]:
    """Packages of such indexes that no requirement names: they may come in with others, and then from elsewhere."""
    named = set(map(package_name, requirements))
    return [package for package in map_packages_to_indexes(indexes) if package not in named]


def format_constraints(versions: Mapping[str, str], never: Sequence[str]) -> str:
    """What installers must not go beyond: the versions that are there, and of some packages none at all."""
    return "".join(
        [f"{package}=={version}\n" for package, version in versions.items()] + [f"{each}<0\n" for each in never]
    )


def format_pyproject(requirements: Sequence[str], indexes: Sequence[Index]) -> str:
    """A pyproject.toml that keeps indexes to their packages, for uv; credentials are not in it."""
    listed = ",\n".join(f"  {json.dumps(requirement)}" for requirement in requirements)
    sources = [
        f"{json.dumps(package)} = {{ index = {json.dumps(index_name(number))} }}\n"
        for package, number in map_packages_to_indexes(indexes).items()
    ]
    declared = [
        f"[[tool.uv.index]]\nname = {json.dumps(index_name(number))}\n"
        f"url = {json.dumps(_remove_credentials(index['url']))}\nexplicit = true\n"
        for number, index in enumerate(indexes)
        if index.get("packages")
    ]
    return "".join(
        [
            f'[project]\nname = "image"\nversion = "0"\ndependencies = [\n{listed}\n]\n[tool.uv.sources]\n',
            *sources,
            *declared,
        ]
    )


def index_credentials(indexes: Sequence[Index]) -> Iterator[tuple[str, str]]:
    """Variables by which uv learns who one is to the indexes of :func:`project`."""
    for number, index in enumerate(indexes):
        if index.get("packages") and (found := _LOGIN.search(index["url"])):
            user, _, password = found["info"].partition(":")
            yield f"UV_INDEX_{index_name(number).upper()}_USERNAME", unquote(user)
            yield f"UV_INDEX_{index_name(number).upper()}_PASSWORD", unquote(password)


def index_variables(image: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables by which installers look where a script says: ``index`` in place of the public one, ``find_links``
    beside what is given already, ``no_index`` nowhere else."""
    if index := image.get("index"):
        yield "PIP_INDEX_URL", index
        yield "UV_DEFAULT_INDEX", index
    if links := list(image.get("find_links") or ()):
        for name, between in (("PIP_FIND_LINKS", " "), ("UV_FIND_LINKS", ",")):
            given = variables.get(name)
            yield name, between.join([*links, *([given] if given else [])])
    if image.get("no_index"):
        yield "PIP_NO_INDEX", "1"  # uv knows no such variable


def split_credentials(addresses: str, taken: dict[str, tuple[str, str]]) -> str:
    """Addresses without their credentials, which are added to ``taken`` by host.

    A second user at the same host stays in the address.
    """

    def moved(match: re.Match[str]) -> str:
        user, _, password = match["info"].partition(":")
        login = unquote(user), unquote(password)
        if taken.setdefault(match["host"], login) != login:
            return match[0]
        return f"{match['scheme']}{match['host']}"

    return _LOGIN.sub(moved, addresses)


def _remove_credentials(url: str) -> str:
    return _LOGIN.sub(lambda match: f"{match['scheme']}{match['host']}", url)
