"""Inline metadata of a script: the packages in its ``# /// script`` block (PEP 723)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skyward_core.model.errors import ScriptError, convert_errors
from skyward_core.tasks.python_compatibility import VersionError, satisfies
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.safe_file_access import expand_user, parse_toml, read_text, resolve_path

_BLOCK_START = re.compile(r"# /// ([a-zA-Z0-9-]+)")
_BLOCK_END = "# ///"
_PACKAGE_START = re.compile(r"[A-Za-z0-9]")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")
_UV_KEYS = ("index", "index-url", "extra-index-url", "find-links", "no-index", "sources")


@value
class InlineMetadata(Value):
    """Inline metadata block of a script.

    Attributes:
        requires_python: Allowed Python versions, such as ">=3.12"; "" for any.
        environment: Requested packages, with the keys of an image (``pip``, ``pip_indexes``) and of
            ``package_index_restrictions.index_variables`` (``index``, ``find_links``, ``no_index``).
    """

    requires_python: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)


def read_inline_metadata(script: Path) -> InlineMetadata | None:
    """Return the inline metadata of a script. None if the script has no block, or is not a text file.

    Raises:
        ScriptError: If the script has several blocks, or if its block is not TOML, is invalid or requests something
            unsupported.
    """
    try:
        text = read_text(script, "utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None  # the later parser of the script reports a file that cannot be read
    blocks = list(find_blocks(text))
    if not blocks:
        return None

    def wrong(reason: str) -> ScriptError:
        return ScriptError(f"The inline metadata of {script} (# /// script) cannot be used: {reason}")

    if len(blocks) > 1:
        raise wrong(f"it has {len(blocks)} blocks. Keep only one")
    try:
        tables = parse_toml("\n".join(line[2:] if line.startswith("# ") else line[1:] for line in blocks[0]))
    except ValueError as error:
        raise wrong(f"it is not TOML: {error}") from error
    try:
        return parse_tables(tables, resolve_path(script).parent)
    except MetadataError as error:
        raise wrong(str(error)) from None


def find_blocks(text: str) -> Iterator[list[str]]:
    """Yield the lines of each block, as the regular expression of PEP 723 finds them.

    The regular expression itself would take quadratic time and block all other threads.
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
    """Inline metadata that is invalid or unsupported. The message describes the problem."""


def parse_tables(tables: Mapping[str, Any], folder: Path) -> InlineMetadata:
    """Return the inline metadata of parsed TOML tables.

    Args:
        tables: ``requires-python``, ``dependencies`` and ``tool``.
        folder: Folder to which relative paths refer.

    Raises:
        MetadataError: If the tables are invalid or request something unsupported.
    """
    requires = _get_typed(tables, "requires-python", str, 'a text such as ">=3.12"', "")
    with convert_errors("requires-python", MetadataError, VersionError):
        satisfies("3.11.0", requires)
    pip = _get_texts(tables, "dependencies")
    for each in pip:
        # Reject a text that pip or uv would interpret as an option or a file name.
        if not _PACKAGE_START.match(each.strip()) or "\n" in each:
            raise MetadataError(f"dependencies: {each!r} is not a requirement: it must begin with a package name")
    tools = _get_typed(tables, "tool", dict, "a table", {})
    uv = _get_typed(tools, "uv", dict, "a table", {}, "[tool]")
    for name in uv:
        if name not in _UV_KEYS:
            raise MetadataError(f"[tool.uv] {name} is not supported; supported: {', '.join(_UV_KEYS)}")
    return InlineMetadata(requires, {"pip": pip} | _parse_indexes(uv, folder))


def _parse_indexes(uv: Mapping[str, Any], folder: Path) -> dict[str, Any]:
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
    """Return the packages of each index that is restricted to some packages."""
    packages: dict[str, list[str]] = {}
    for package, source in _get_typed(uv, "sources", dict, "a table", {}, "[tool.uv]").items():
        index = source.get("index") if isinstance(source, dict) and len(source) == 1 else None
        if not isinstance(index, str):
            raise MetadataError(
                f"[tool.uv.sources] {package}: only {{ index = ... }} is supported. Write an address as a dependency: "
                f'"{package} @ https://..."'
            )
        if index not in names:
            raise MetadataError(f"[tool.uv.sources] {package}: no [[tool.uv.index]] is called {index!r}")
        packages.setdefault(index, []).append(package)
    return packages


def _format_location(text: str, folder: Path) -> str:
    """Return a URL unchanged, and a folder as a file URL, because installers end an address at a space or comma."""
    return text if _URL.match(text) else "file://" + quote(str(folder / expand_user(text)))


def _get_texts(table: Mapping[str, Any], name: str, where: str = "") -> list[str]:
    texts: list[str] = _get_typed(table, name, list, "a list of texts", [], where)
    if not all(isinstance(each, str) for each in texts):
        raise MetadataError(f"{where} {name} must be a list of texts".strip())
    return texts


def _get_typed(
    table: Mapping[str, Any], name: str, kind: Callable[..., Any], words: str, default: Any, where: str = ""
) -> Any:
    given = table.get(name, default)
    if type(given) is not kind:
        raise MetadataError(f"{where} {name} must be {words}".strip())
    return given


def has_own_block(script: Path) -> bool:
    """Check whether a script contains a block of inline metadata (PEP 723), which may be invalid."""
    try:
        return read_inline_metadata(script) is not None
    except ScriptError:
        return True
