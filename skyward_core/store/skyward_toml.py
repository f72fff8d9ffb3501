"""Host groups, pools and providers of ``skyward.toml``, merged from the state folder and the working folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyward_core.model.errors import UsageError
from skyward_core.store.state_folder import SETTINGS_FILE, state_home
from skyward_core.util.safe_file_access import MAX_SETTINGS_BYTES, exists, parse_toml, read_text


@dataclass
class Settings:
    """Tables of a ``skyward.toml``. Other tables are ignored.

    Attributes:
        hosts: Host groups by name. In the file, a single host may stand for a list.
        pools: Pools by name, validated where they are used.
        providers: Settings of providers, by name.
    """

    hosts: dict[str, list[str]] = field(default_factory=dict)
    pools: dict[str, Any] = field(default_factory=dict)
    providers: dict[str, Any] = field(default_factory=dict)


def host_groups() -> dict[str, list[str]]:
    """Return the host groups of ``skyward.toml`` in the state folder and in the working folder. The working folder
    takes precedence.

    Raises:
        UsageError: If a file cannot be read or is invalid.
    """
    return {name: hosts for _, each in read_settings_files() for name, hosts in each.hosts.items()}


def pool_tables() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables ``pools`` and ``providers`` of ``skyward.toml`` in the state folder and the working folder.

    The working folder's values take precedence.

    Raises:
        UsageError: If a file cannot be read or is invalid.
    """
    pools: dict[str, Any] = {}
    providers: dict[str, Any] = {}
    for _, each in read_settings_files():
        pools, providers = _merge_tables(pools, each.pools), _merge_tables(providers, each.providers)
    return pools, providers


def _merge_tables(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return the union of two nested tables, in which the values of ``above`` take precedence."""
    both = {
        key: _merge_tables(below[key], value)
        for key, value in above.items()
        if isinstance(below.get(key), dict) and isinstance(value, dict)
    }
    return below | above | both


def read_settings_files() -> Iterator[tuple[Path, Settings]]:
    """Yield the path and the content of each ``skyward.toml``, the one with lower precedence first.

    Raises:
        UsageError: If another user could have written the file in the working folder. Its host groups determine which
            machines receive the user's code.
    """
    own = state_home() / SETTINGS_FILE
    for path in (own, Path(SETTINGS_FILE)):
        if exists(path):
            from skyward_core.node.bootstrap.host_inspection import distrust_reason

            if path != own and (reason := distrust_reason(str(path.absolute()))):
                raise UsageError(
                    f"Refusing to read {path.absolute()}: {reason}. Move the settings to {own}, or run from a "
                    "folder that only you can write to."
                )
            yield path.absolute(), _read_settings_file(path)


def _read_settings_file(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        UsageError: If the file cannot be read, is not TOML or has invalid values. The message names the place.
    """
    from pydantic import TypeAdapter, ValidationError  # imported late, because most users have no settings file

    try:
        content = parse_toml(read_text(path, most=MAX_SETTINGS_BYTES))
        if isinstance(hosts := content.get("hosts"), dict):
            content["hosts"] = {name: [each] if isinstance(each, str) else each for name, each in hosts.items()}
        return TypeAdapter(Settings).validate_python(content)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error}") from error
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UsageError(f"Invalid settings in {path}: {'; '.join(wrong)}") from error
    except ValueError as error:  # the file is not valid TOML or not UTF-8 text
        raise UsageError(f"Cannot parse {path}: {error}") from error
