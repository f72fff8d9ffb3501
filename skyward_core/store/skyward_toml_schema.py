"""Schema of ``skyward.toml``: host groups, pools and providers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError

from skyward_core.model.errors import UsageError
from skyward_core.util.untrusted_files import MAX_SETTINGS_BYTES, parse_toml, read_text


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Settings(BaseModel):
    """Tables of the file. Other tables are ignored.

    Attributes:
        hosts: Host groups by name. Each is a list of hosts or a single one.
        pools: Pools by name, validated where they are used.
        providers: Settings of providers, by name.
    """

    hosts: dict[str, Annotated[list[str], BeforeValidator(_as_list)]] = {}
    pools: dict[str, Any] = {}
    providers: dict[str, Any] = {}


def read_settings_file(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        UsageError: If the file cannot be read, is not TOML or has invalid values. The message names the place.
    """
    try:
        return Settings.model_validate(parse_toml(read_text(path, most=MAX_SETTINGS_BYTES)))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error}") from error
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UsageError(f"Invalid settings in {path}: {'; '.join(wrong)}") from error
    except ValueError as error:  # not TOML, or not text
        raise UsageError(f"Cannot parse {path}: {error}") from error
