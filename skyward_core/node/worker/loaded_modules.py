"""Which modules of the person's own this process has loaded, and from what: by that an edit is seen, and another
process takes this one's place (``pool/edited_modules.py``)."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator

_open = open  # user code may put something else in the place of what is built in
OURS = __name__.partition(".")[0]
INSTALLED = ("/site-packages/", "/dist-packages/")
UNSURE = ""  # what stands for a file that changed while it may have been loaded
SLACK = 20_000_000  # nanoseconds by which a file's time may be behind the clock
MOST = 2000  # files; what is more is no script's


class LoadedModules:
    """Modules below some folders, unless they were installed there.

    Args:
        folders: whole paths, the working folder's first. What lies in that one is called by its path from there: the
            client has it elsewhere.

    Attributes:
        files: their files, and the hash of each one's content when it was loaded.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self.files: dict[str, str] = {}
        home, *others = folders
        self._home = home and home.rstrip("/") + "/"
        self._folders = tuple(folder.rstrip("/") + "/" for folder in (home, *others) if folder)
        self._seen: set[str] = set()
        self._count = 0
        self._lock = threading.Lock()
        self._since = time.time_ns()

    def look(self) -> bool:
        """Look whether there are more. Between two looks is when those were loaded that the second one finds, so that
        this is for the beginning of what loads some, and for its end."""
        with self._lock:
            files, now = self.files, len(sys.modules)
            if now != self._count:
                self._count = now
                for path in self._new():
                    name = path.removeprefix(self._home)
                    if name not in files and len(files) < MOST:
                        files = files | {name: self._hash(path)}
            found, self.files = files is not self.files, files
            self._since = time.time_ns()
            return found

    def _new(self) -> Iterator[str]:
        for name in list(sys.modules):
            if name in self._seen:
                continue
            self._seen.add(name)
            if name.partition(".")[0] == OURS:
                continue
            path = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
            if type(path) is not str or not path.endswith(".py"):
                continue
            if path.startswith(self._folders) and not any(part in path for part in INSTALLED):
                yield path

    def _hash(self, path: str) -> str:
        from ...wire.content_name import name_of  # few ranks load such modules before their first call

        try:
            # A pipe that was put in its place since would have us wait for who writes.
            with _open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                changed = os.fstat(file.fileno()).st_ctime_ns
                return UNSURE if changed > self._since - SLACK else name_of(file.read())
        except OSError:
            return UNSURE
