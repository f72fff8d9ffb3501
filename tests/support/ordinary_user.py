"""Code that runs with an ordinary user's rights although tests run as root: in a child process."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from pathlib import Path

STRANGER = 65534
_VERSION = 0x20080522  # of the structure, for 64 capabilities


def close_to_users(folder: Path) -> Path:
    """Create a folder that ordinary users cannot enter."""
    folder.mkdir()
    (folder / "x").write_text("x")
    if os.getuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
        folder.chmod(0o700)
    else:
        folder.chmod(0)
    return folder


def give_rights_up() -> None:
    """Make file permissions apply to this process from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def as_ordinary_user(work: Callable[[], None]) -> None:
    """Run a function in a child process with an ordinary user's rights.

    Raises:
        AssertionError: If the function raises. The message has the error.
    """
    read, write = os.pipe()
    if not (pid := os.fork()):
        status = 1
        try:
            os.close(read)
            give_rights_up()
            work()
            status = 0
        except BaseException:  # noqa: BLE001  told to the parent
            os.write(write, traceback.format_exc()[-60_000:].encode())
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as file:
        output = file.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, output
