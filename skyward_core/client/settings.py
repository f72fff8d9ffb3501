"""The person's settings, and what an app of theirs remembers from one start to the next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.store import state_folder
from skyward_core.store.debug_log import begin as begin_log
from skyward_core.store.user_settings import KEYS, SETTINGS, Notify, OwnSetting, OwnSettings, own_settings
from skyward_core.util.user_files import read_text

if TYPE_CHECKING:
    from skyward_core.store.settings_editing import TomlValue

__all__ = [
    "KEYS", "SETTINGS", "Notify", "OwnSetting", "OwnSettings", "begin_log", "change", "file", "forget", "given",
    "hold_logs",
    "own_settings", "remember", "remembered",
]  # fmt: skip


def file() -> Path:
    """Where the person's settings stand; there may be no such file yet."""
    from skyward_core.store.settings_editing import own_file

    return own_file()


def hold_logs(megabytes: float) -> None:
    """Have the lines of each pool's logs take no more than this in memory, in this process."""
    from skyward_core.views.log_buffer import Room

    Room.most = int(megabytes * 1e6)


def given() -> dict[str, Any]:
    """What the person has set, by table and name, whether it can be used or not.

    Raises:
        UsageError: their file cannot be read or used.
    """
    from skyward_core.store import settings_editing

    return settings_editing.given()


def change(name: str, value: TomlValue) -> None:
    """Set something, in the person's file, in which all else stays as it is.

    Args:
        name: a setting's; or ``keys.`` and the id of what a key does, which is written as it is.

    Raises:
        UsageError: it cannot be that, or the file cannot be used or changed.
        OSError: the file cannot be written; it is as it was.
    """
    from skyward_core.store import settings_editing

    settings_editing.change(name, value)


def forget(name: str) -> None:
    """Have the default hold again; raises as :func:`change`."""
    from skyward_core.store import settings_editing

    settings_editing.forget(name)


def remembered(name: str) -> str:
    """The text that :func:`remember` was last given for a name.

    Raises:
        OSError: there is none, or it cannot be read.
        UnicodeDecodeError: somebody else wrote it.
    """
    return read_text(_file(name))


def remember(name: str, text: str) -> None:
    """Keep a text in the person's own folder, for nobody else to read; the old one stays until the new one is whole.

    Raises:
        OSError: it cannot be written, or another process is just writing it.
    """
    from skyward_core.store.atomic_file import write_whole  # late: the app reads its keys while it starts

    write_whole(_file(name), text.encode())


def _file(name: str) -> Path:
    return state_folder.home() / f"{name}.json"
