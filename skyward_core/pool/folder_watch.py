"""Whether anything happened in some folders, asked of the kernel (inotify) in place of each of their files: a look at a
file takes as long as five of these questions, and a project may have hundreds of them."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from contextlib import suppress

# Of what is in a folder: written to, given other times, or another one in its place; and the folder itself.
_HAPPENS = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
MOST = 256  # folders; a person has some 10,000 or more for all programs
ROOM = 1 << 16  # bytes read at once; when more happens than fits, another read says so


class FolderWatch:
    """Sees what happens on this machine. What another one does to a network folder, and what is done to a file by
    another name of it, it does not: so whoever asks has to look by himself now and then."""

    def __init__(self) -> None:
        self._file = -1
        self._poll = select.poll()  # asks quicker than a read that finds nothing
        self._folders: set[str] = set()
        self._blind = False  # this system has no such thing, or no more of it for us

    def see_to(self, paths: Iterable[str]) -> None:
        """Watch the folders of these files from now on, too."""
        if self._blind:
            return
        folders = {os.path.dirname(each) for path in paths for each in (path, os.path.realpath(path))}  # noqa: PTH120
        for folder in folders - self._folders:
            if self._blind:
                return
            self._blind = len(self._folders) >= MOST or not self._added(folder)
            self._folders.add(folder)

    def _added(self, folder: str) -> bool:
        import ctypes  # by now there have been many calls: nobody waits for a start

        libc = ctypes.CDLL(None, use_errno=True)
        try:
            if self._file < 0:
                self._file = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
                if self._file >= 0:
                    self._poll.register(self._file, select.POLLIN)
            return bool(
                self._file >= 0 and libc.inotify_add_watch(self._file, os.fsencode(folder), _HAPPENS) >= 0
            )
        except AttributeError:
            return False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has happened since the last time that this was asked; False where nobody can tell."""
        if self._blind or self._file < 0:
            return False
        if not self._poll.poll(0):
            return True
        with suppress(BlockingIOError):
            while os.read(self._file, ROOM):
                pass
        self._folders.clear()  # one may be another by now
        return False

    def close(self) -> None:
        """Watch no more."""
        self._blind = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
