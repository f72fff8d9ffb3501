"""What an ordinary user may do, where tests run as root: a child process that gives its rights up."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from pathlib import Path

STRANGER = 65534
_VERSION = 0x20080522  # of the structure, for 64 capabilities


def close_to_users(folder: Path) -> Path:
    """Make a folder that an ordinary user may not enter."""
    folder.mkdir()
    (folder / "x").write_text("x")
    if os.getuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
        folder.chmod(0o700)
    else:
        folder.chmod(0)
    return folder


def give_rights_up() -> None:
    """Have permissions of files hold for this process from now on, whoever it is."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, none = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def as_ordinary_user(work: Callable[[], None]) -> None:
    """Do something in a child process that has no more rights than an ordinary user.

    Raises:
        AssertionError: It raised something there; says what.
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
    with open(read, "rb") as told:
        said = told.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, said
