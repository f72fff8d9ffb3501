"""What any ``skyward.toml`` may hold: groups of hosts, and pools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ValidationError

from skyward_core.model.errors import UsageError
from skyward_core.util.user_files import MAX_SETTINGS_BYTES, parse_toml, read_text


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Settings(BaseModel):
    """The tables that are read; what else a file holds is somebody else's.

    Attributes:
        hosts: groups of hosts by name, each a list of hosts or a single one.
        pools: pools by name, as whoever asks for one reads them.
        providers: what those say where machines come from, by name.
    """

    hosts: dict[str, Annotated[list[str], BeforeValidator(_as_list)]] = {}
    pools: dict[str, Any] = {}
    providers: dict[str, Any] = {}


def read_settings_file(path: Path) -> Settings:
    """The settings in a file.

    Raises:
        UsageError: it cannot be read, is not TOML, or holds what cannot be used; says where.
    """
    try:
        return Settings.model_validate(parse_toml(read_text(path, most=MAX_SETTINGS_BYTES)))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UsageError(f"{path} cannot be used: {'; '.join(wrong)}") from error
    except ValueError as error:  # not TOML, or not even text
        raise UsageError(f"{path} does not parse: {error}") from error
