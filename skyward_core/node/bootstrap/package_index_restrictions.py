"""Package indexes that are restricted to some packages, and the installer settings that enforce the restriction.

By default installers take a package from the index with the newest version. A stranger could publish a package on the
public index under the name of a private package, and packages for specific devices would come from the wrong index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

Index = Mapping[str, Any]
# Key of an image for pinned packages: groups of requirement lines, each with the ``index`` they come from.
PINNED = "pinned"
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_LOGIN = re.compile(r"(?P<scheme>https?://)(?P<info>[^\s/?#]+)@(?P<host>[^\s/?#:@]+)")


def index_name(number: int) -> str:
    """Return the name that uv uses for an index of an image."""
    return f"image{number}"


def normalize_name(name: str) -> str:
    """Return a package's normalized name, which is equal for all spellings."""
    return re.sub(r"[-_.]+", "-", name).lower()


def package_name(requirement: str) -> str:
    """Return the package name of a requirement; "" for a URL or a file."""
    found = _NAME.match(requirement)
    return normalize_name(found[1]) if found and "@" not in requirement.split(";")[0] else ""


def map_packages_to_indexes(indexes: Sequence[Index]) -> dict[str, int]:
    """Return, for each restricted package, the number of the index that must supply it."""
    return {
        normalize_name(package): number
        for number, index in reversed(list(enumerate(indexes)))
        for package in index.get("packages") or ()
    }


def group_by_index(requirements: Sequence[str], indexes: Sequence[Index]) -> dict[int, list[str]]:
    """Group the requirements of restricted packages by the number of their index."""
    index_of, found = map_packages_to_indexes(indexes), dict[int, list[str]]()
    for requirement in requirements:
        if (package := package_name(requirement)) in index_of:
            found.setdefault(index_of[package], []).append(requirement)
    return found


def iterate_pinned_groups(image: Mapping[str, Any]) -> Iterator[tuple[list[str], int | str | None]]:
    """Yield the pinned requirements of an image in groups, each with the only index that they may come from.

    The index is a number for an index of the image, a name for one of :func:`lock_indexes`, or None for the default
    indexes.
    """
    indexes = image.get("pip_indexes") or ()
    named = lock_indexes(image)
    for group in image.get(PINNED) or ():
        lines = list(group["lines"])
        if group["index"]:
            yield lines, next(name for name, address in named.items() if address == group["index"])
            continue
        own = group_by_index(lines, indexes)
        restricted = {line for each in own.values() for line in each}
        yield [line for line in lines if line not in restricted], None
        yield from ((restricted_lines, number) for number, restricted_lines in own.items())


def lock_indexes(image: Mapping[str, Any]) -> dict[str, str]:
    """Return the package indexes of a project's lock file, by name."""
    groups = image.get(PINNED) or ()
    return {f"OF_LOCK_{number}": group["index"] for number, group in enumerate(groups) if group["index"]}


def unnamed_packages(requirements: Sequence[str], indexes: Sequence[Index]) -> list[str]:
    """Return restricted packages that no requirement names. As dependencies, they could come from other indexes."""
    named = set(map(package_name, requirements))
    return [package for package in map_packages_to_indexes(indexes) if package not in named]


def format_constraints(versions: Mapping[str, str], excluded: Sequence[str]) -> str:
    """Return constraints that require exact versions of some packages and exclude other packages."""
    return "".join(
        [f"{package}=={version}\n" for package, version in versions.items()] + [f"{each}<0\n" for each in excluded]
    )


def format_pyproject(requirements: Sequence[str], indexes: Sequence[Index]) -> str:
    """Return a pyproject.toml that restricts indexes to their packages for uv, without credentials."""
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
    """Yield the environment variables with uv's credentials for the indexes in :func:`format_pyproject`."""
    for number, index in enumerate(indexes):
        if index.get("packages") and (found := _LOGIN.search(index["url"])):
            user, _, password = found["info"].partition(":")
            yield f"UV_INDEX_{index_name(number).upper()}_USERNAME", unquote(user)
            yield f"UV_INDEX_{index_name(number).upper()}_PASSWORD", unquote(password)


def index_variables(image: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the environment variables that apply a script's index options to pip and uv.

    ``index`` replaces the public index, ``find_links`` adds locations, and ``no_index`` disables all indexes.
    """
    if index := image.get("index"):
        yield "PIP_INDEX_URL", index
        yield "UV_DEFAULT_INDEX", index
    if links := list(image.get("find_links") or ()):
        for name, between in (("PIP_FIND_LINKS", " "), ("UV_FIND_LINKS", ",")):
            existing = variables.get(name)
            yield name, between.join([*links, *([existing] if existing else [])])
    if image.get("no_index"):
        yield "PIP_NO_INDEX", "1"  # uv has no such variable, so its command line contains --no-index.


def split_credentials(addresses: str, logins: dict[str, tuple[str, str]]) -> str:
    """Remove the credentials from addresses and add them to ``logins`` by host.

    Credentials of a second user of the same host remain in the address.
    """

    def move(match: re.Match[str]) -> str:
        user, _, password = match["info"].partition(":")
        login = unquote(user), unquote(password)
        return match[0] if logins.setdefault(match["host"], login) != login else f"{match['scheme']}{match['host']}"

    return _LOGIN.sub(move, addresses)


def _remove_credentials(url: str) -> str:
    return _LOGIN.sub(lambda match: f"{match['scheme']}{match['host']}", url)
