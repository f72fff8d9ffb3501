"""Atomic replacement of files: readers see the old or the new content, and no temporary file accumulates."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file's content atomically.

    The new content is first written to a locked draft file of a fixed name. The draft of a killed process is reused.

    Args:
        path: Path of the file.
        data: New content.
        mode: Permissions, reduced by the umask.

    Raises:
        OSError: If the file cannot be written, or another process is writing it.
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
        # Another process may have moved this draft into place before the lock was acquired.
        if os.path.samestat(os.fstat(descriptor), draft.stat()):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise BlockingIOError(f"another process is writing {draft}")
