"""What a script says of its own packages: the block ``# /// script`` of PEP 723."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skyward_core.model.errors import ScriptError
from skyward_core.tasks.packages.requires_python import VersionError, satisfies
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.user_files import expand_user, parse_toml, read_text, resolve_path

_BLOCK_START = re.compile(r"# /// ([a-zA-Z0-9-]+)")
_BLOCK_END = "# ///"
_PACKAGE_START = re.compile(r"[A-Za-z0-9]")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_UV_KEYS = ("index", "index-url", "extra-index-url", "find-links", "no-index", "sources")


@value
class InlineMetadata(Value):
    """A script's block.

    Attributes:
        requires_python: versions that it takes, such as ">=3.12"; "" for any.
        environment: what it asks for, as the keys of an image (``pip``, ``pip_indexes``) and of
            ``package_indexes.places`` (``index``, ``find_links``, ``no_index``).
    """

    requires_python: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)


def read_inline_metadata(script: Path) -> InlineMetadata | None:
    """The block of a script; None where it has none, or is no text.

    Raises:
        ScriptError: it has two, or what is there is no TOML, asks for what makes no sense, or for what is not done.
    """
    try:
        text = read_text(script, "utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None  # whoever parses the script tells
    blocks = list(find_blocks(text))
    if not blocks:
        return None

    def wrong(reason: str) -> ScriptError:
        return ScriptError(f"The inline metadata of {script} (# /// script) cannot be used: {reason}")

    if len(blocks) > 1:
        raise wrong(f"there are {len(blocks)} such blocks; leave one")
    try:
        said = parse_toml("\n".join(line[2:] if line.startswith("# ") else line[1:] for line in blocks[0]))
    except ValueError as error:
        raise wrong(f"it is no TOML: {error}") from error
    try:
        return parse_tables(said, resolve_path(script).parent)
    except MetadataError as error:
        raise wrong(str(error)) from None


def find_blocks(text: str) -> Iterator[list[str]]:
    """Return the lines of each block, as the specification's expression finds them.

    That expression takes time by the square of the number of lines, in which no other thread runs.
    """
    comments: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line == "#" or line.startswith("# "):
            comments.append(line)
            continue
        begins = [(at, found[1]) for at, each in enumerate(comments) if (found := _BLOCK_START.fullmatch(each))]
        ends = [at for at, each in enumerate(comments) if each == _BLOCK_END]
        if begins and ends and ends[-1] > begins[0][0] + 1 and begins[0][1] == "script":
            yield comments[begins[0][0] + 1 : ends[-1]]
        comments = []


class MetadataError(ValueError):
    """In words."""


def parse_tables(said: Mapping[str, Any], folder: Path) -> InlineMetadata:
    """What such tables ask for.

    Args:
        said: ``requires-python``, ``dependencies`` and ``tool``.
        folder: where paths in them start.

    Raises:
        Wrong: they make no sense, or ask for what is not done.
    """
    requires = _get_typed(said, "requires-python", str, 'a text such as ">=3.12"', "")
    try:
        satisfies("3.11.0", requires)
    except VersionError as error:
        raise MetadataError(f"requires-python: {error}") from None
    pip = _get_texts(said, "dependencies")
    for each in pip:
        if not _PACKAGE_START.match(each.strip()) or "\n" in each:  # installers would take it for an option or a file
            raise MetadataError(f"dependencies: {each!r} is no requirement, which begins with a package's name")
    tools = _get_typed(said, "tool", dict, "a table", {})
    uv = _get_typed(tools, "uv", dict, "a table", {}, "[tool]")
    for name in uv:
        if name not in _UV_KEYS:
            raise MetadataError(f"[tool.uv] {name} is not known here; {', '.join(_UV_KEYS)} are")
    return InlineMetadata(requires, {"pip": pip} | _parse_indexes(uv, folder))


def _parse_indexes(uv: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Where packages come from."""
    indexes = _get_typed(uv, "index", list, "a list of tables", [], "[tool.uv]")
    packages = _parse_sources(uv, {str(each.get("name")) for each in indexes if isinstance(each, dict)})
    default = _get_typed(uv, "index-url", str, "a text", "", "[tool.uv]")
    found: list[dict[str, Any]] = []
    for each in indexes:
        url = each.get("url") if isinstance(each, dict) else None
        if not isinstance(url, str):
            raise MetadataError("[[tool.uv.index]] needs a url")
        own = packages.get(str(each.get("name")), [])
        if each.get("default"):
            default = url
        if own or not (each.get("explicit") or each.get("default")):
            found.append({"url": url, "packages": own})
    found += [{"url": url, "packages": []} for url in _get_texts(uv, "extra-index-url", "[tool.uv]")]
    places: dict[str, Any] = {"pip_indexes": found} if found else {}
    if default:
        places["index"] = default
    if links := [_format_location(each, folder) for each in _get_texts(uv, "find-links", "[tool.uv]")]:
        places["find_links"] = links
    if _get_typed(uv, "no-index", bool, "true or false", False, "[tool.uv]"):
        places["no_index"] = True
    return places


def _parse_sources(uv: Mapping[str, Any], names: set[str]) -> dict[str, list[str]]:
    """The packages of each index that is kept to some."""
    packages: dict[str, list[str]] = {}
    for package, source in _get_typed(uv, "sources", dict, "a table", {}, "[tool.uv]").items():
        index = source.get("index") if isinstance(source, dict) and len(source) == 1 else None
        if not isinstance(index, str):
            raise MetadataError(
                f"[tool.uv.sources] {package}: only {{ index = ... }} is known here; write an address as a dependency, "
                f'"{package} @ https://..."'
            )
        if index not in names:
            raise MetadataError(f"[tool.uv.sources] {package}: no [[tool.uv.index]] is called {index!r}")
        packages.setdefault(index, []).append(package)
    return packages


def _format_location(text: str, folder: Path) -> str:
    """An address as it is, a folder as one: installers take spaces and commas for the end of an address."""
    if _URL.match(text):
        return text
    return "file://" + quote(str(folder / expand_user(text)))


def _get_texts(table: Mapping[str, Any], name: str, where: str = "") -> list[str]:
    texts: list[str] = _get_typed(table, name, list, "a list of texts", [], where)
    if not all(isinstance(each, str) for each in texts):
        raise MetadataError(f"{where} {name} should be a list of texts".strip())
    return texts


def _get_typed(
    table: Mapping[str, Any], name: str, kind: Callable[..., Any], words: str, default: Any, where: str = ""
) -> Any:
    given = table.get(name, default)
    if type(given) is not kind:
        raise MetadataError(f"{where} {name} should be {words}".strip())
    return given
