"""A file that is written anew: as a whole, or not at all, and nothing is left beside it for ever."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Put a file in the place of what is there, which stays until this one is whole.

    It is written beside that, always by the same name, and locked meanwhile: what a killed process leaves of one is
    what the next one writes in.

    Args:
        mode: permissions of the file, less what the umask takes away.

    Raises:
        OSError: it cannot be written, or somebody else is just writing it.
    """
    draft = path.with_name(f"{path.name}.draft")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, mode), "wb") as file:
        _lock_draft(file.fileno(), draft)
        try:
            file.truncate()
            file.write(data)
            file.flush()
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _lock_draft(descriptor: int, draft: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had it locked when we opened it may have put it in its place since.
        if os.path.samestat(os.fstat(descriptor), draft.stat()):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise BlockingIOError(f"{draft} is just being written by another process")
