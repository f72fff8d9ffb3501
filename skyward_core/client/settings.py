"""The person's settings, and what an app of theirs remembers from one start to the next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.store import state_folder
from skyward_core.store.debug_log import start_logging as begin_log
from skyward_core.store.user_settings import (
    KEYS_TABLE,
    SETTINGS,
    NotifySettings,
    UserSetting,
    UserSettings,
    load_user_settings,
)
from skyward_core.util.user_files import read_text

if TYPE_CHECKING:
    from skyward_core.store.settings_editing import TomlValue

__all__ = [
    "KEYS_TABLE",
    "SETTINGS",
    "NotifySettings",
    "UserSetting",
    "UserSettings",
    "begin_log",
    "change",
    "limit_log_memory",
    "load_state",
    "load_user_settings",
    "reset",
    "save_state",
    "settings_path",
    "user_values",
]  # fmt: skip


def settings_path() -> Path:
    """Where the person's settings stand; there may be no such file yet."""
    from skyward_core.store.settings_editing import user_settings_file

    return user_settings_file()


def limit_log_memory(megabytes: float) -> None:
    """Have the lines of each pool's logs take no more than this in memory, in this process."""
    from skyward_core.views.log_buffer import MemoryBudget

    MemoryBudget.total_bytes = int(megabytes * 1e6)


def user_values() -> dict[str, Any]:
    """What the person has set, by table and name, whether it can be used or not.

    Raises:
        UsageError: their file cannot be read or used.
    """
    from skyward_core.store import settings_editing

    return settings_editing.read_settings()


def change(name: str, value: TomlValue) -> None:
    """Set something, in the person's file, in which all else stays as it is.

    Args:
        name: a setting's; or ``keys.`` and the id of what a key does, which is written as it is.

    Raises:
        UsageError: it cannot be that, or the file cannot be used or changed.
        OSError: the file cannot be written; it is as it was.
    """
    from skyward_core.store import settings_editing

    settings_editing.set_setting(name, value)


def reset(name: str) -> None:
    """Have the default hold again; raises as :func:`change`."""
    from skyward_core.store import settings_editing

    settings_editing.reset_setting(name)


def load_state(name: str) -> str:
    """The text that :func:`remember` was last given for a name.

    Raises:
        OSError: there is none, or it cannot be read.
        UnicodeDecodeError: somebody else wrote it.
    """
    return read_text(_state_path(name))


def save_state(name: str, text: str) -> None:
    """Keep a text in the person's own folder, for nobody else to read; the old one stays until the new one is whole.

    Raises:
        OSError: it cannot be written, or another process is just writing it.
    """
    from skyward_core.store.atomic_file import write_atomic  # late: the app reads its keys while it starts

    write_atomic(_state_path(name), text.encode())


def _state_path(name: str) -> Path:
    return state_folder.state_home() / f"{name}.json"
