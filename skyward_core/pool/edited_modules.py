"""Detection of modules that the user edited after ranks loaded them.

Agents report the hash of each file that their workers have loaded
(``node/worker/call_unpickling_and_script_modules.py``). Before a run begins, the client compares the hashes with the
local files. It reads a file only if the file's modification time or size has changed.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import PoolContext
from skyward_core.util.content_hash import hash_bytes

if TYPE_CHECKING:
    from skyward_core.node.worker.call_unpickling_and_script_modules import LoadedModules


# inotify events: content, attributes, creation, deletion and moves in a folder, and the folder itself
_INOTIFY_MASK = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
MAX_WATCHED_FOLDERS = 256  # maximum watched folders; the kernel allows a user about 10,000 for all programs
READ_SIZE = 1 << 16  # bytes per read of events


class FolderWatch:
    """Detection of changes in folders, by inotify.

    Misses changes that another machine makes to a network folder, and changes to a file through another hard link.
    Callers must therefore compare the files from time to time.
    """

    def __init__(self) -> None:
        self._file = -1
        self._poll = select.poll()  # polling an inotify file without events is cheaper than a read that fails
        self._folders: set[str] = set()
        self._is_unavailable = False  # whether inotify is missing or its limits are reached

    def watch(self, paths: Iterable[str]) -> None:
        """Also watch the folders of the given files."""
        if self._is_unavailable:
            return
        folders = {os.path.dirname(each) for path in paths for each in (path, os.path.realpath(path))}  # noqa: PTH120
        for folder in folders - self._folders:
            if self._is_unavailable:
                return
            self._is_unavailable = len(self._folders) >= MAX_WATCHED_FOLDERS or not self._add_watch(folder)
            self._folders.add(folder)

    def _add_watch(self, folder: str) -> bool:
        import ctypes  # imported late, because the first checks for edits watch no folders

        libc = ctypes.CDLL(None, use_errno=True)
        try:
            if self._file < 0:
                self._file = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
                if self._file >= 0:
                    self._poll.register(self._file, select.POLLIN)
            return bool(self._file >= 0 and libc.inotify_add_watch(self._file, os.fsencode(folder), _INOTIFY_MASK) >= 0)
        except AttributeError:
            return False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has changed since the last call. False if changes cannot be detected."""
        if self._is_unavailable or self._file < 0:
            return False
        if not self._poll.poll(0):
            return True
        with suppress(BlockingIOError):
            while os.read(self._file, READ_SIZE):
                pass
        # Watch all folders again at the next call, because a watched folder may have been replaced.
        self._folders.clear()
        return False

    def close(self) -> None:
        self._is_unavailable = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


Stamp = tuple[int, int, int]
MAX_NAMED_MODULES = 3  # maximum number of edited modules that a message names
CHECK_SHARE = 50  # checks of the files take at most 1/50 of the client's time if inotify is not available
WATCH_AFTER_CHECKS = 20  # number of checks after which the folders are watched by inotify
# For watched folders checks may take 1/500 of the time, but run at least every 0.5 s. They find only changes that
# inotify misses.
RARE_SHARE, LONGEST_WAIT = 500, 0.5


class EditedModules:
    """Edited modules of the scripts of one pool."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._folder = context.setup.cwd  # path of the client's working folder
        self._loaded: dict[int, Mapping[str, str]] = {}
        self._watched: dict[str, set[str]] = {}
        self._read: dict[str, tuple[Stamp, str]] = {}
        self._handled: dict[str, str | Stamp | None] = {}
        # Tracker of the modules that this process has loaded; None if no node has copies of their files.
        self._own: LoadedModules | None = None
        self._reload_task: asyncio.Task[None] | None = None
        self._next_look = 0.0  # `time.perf_counter()` at which all sent files are checked next
        self._watch, self._watch_of_sent = FolderWatch(), FolderWatch()
        self._check_count = self._sent_check_count = 0
        self._last_checked: object = None  # function and script objects of the last check that found no edits
        # `time.perf_counter()` until which the last result counts if inotify reports no changes.
        self._clean_until = 0.0
        # Value of `_sent` at the last check that found none of these files edited.
        self._current: Mapping[str, tuple[int, int]] | None = None
        self._current_until = 0.0

    def update_loaded(self, link: Link, files: Mapping[str, str]) -> None:
        """Replace the list of files that a node's workers have loaded."""
        is_local, is_shared = self._is_ours(link), link.transport.shares_files
        self._loaded[link.node] = {
            name: digest for name, digest in files.items() if is_local and (is_shared or name[0] != "/")
        }
        self._watched = {}
        for each in self._loaded.values():
            for name, digest in each.items():
                self._watched.setdefault(os.path.join(self._folder, name), set()).add(digest)  # noqa: PTH118  faster than pathlib

    def _is_ours(self, link: Link) -> bool:
        """Check whether a node loads the files that the user edits on this machine, or copies of these files."""
        if link.transport.shares_files:
            return True
        copy = link.welcome.get("cwd", "")
        if not (copy and self._folder):
            return False
        from skyward_core.node.worker.call_unpickling_and_script_modules import (
            LoadedModules,  # imported late: only pools whose nodes have copies of the files need this class
        )
        from skyward_core.transport.working_folder_upload import copy_name

        if Path(copy).name != copy_name(Path(self._folder).resolve()):
            return False
        self._own = self._own or LoadedModules([str(Path(self._folder).resolve()), self._folder])
        return True

    @property
    def has_edits(self) -> bool:
        """Whether a run must wait for :meth:`reload`: modules were edited or are being reloaded."""
        return self._reload_task is not None or not self._is_current()

    def _is_current(self) -> bool:
        """Check whether the ranks have loaded the current local files.

        As long as inotify reports no change, the files are compared only rarely.
        """
        own, begun = self._own, time.perf_counter()
        if own is None and not self._watched:
            return True
        if own is not None:
            own.scan()
        checked = (self._watched, own and own.files, self._sent)
        # Read the events before the check, so that changes during the check count for the next check.
        quiet = self._watch.is_quiet or not (self._watched or (own is not None and own.files))
        if quiet and begun < self._clean_until and _are_same(checked, self._last_checked):
            return own is None or not self._has_unsent_edits(self._sent or {})
        self._check_count += 1
        if self._check_count > WATCH_AFTER_CHECKS:
            self._watch.watch([*self._watched, *(self._path(name) for name in (own.files if own else ()))])
        if any(map(self._is_edited, self._watched)) or (own is not None and self._is_unsent(own)):
            self._last_checked = None
            return False
        now = time.perf_counter()
        self._last_checked, self._clean_until = checked, now + _next_check_delay(now - begun)
        return True

    @property
    def _sent(self) -> Mapping[str, tuple[int, int]] | None:
        """Files of the working folder that hosts received last. None: nothing was sent yet."""
        return next((link.transport.sent for link in self._context.links if not link.gone), None)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)  # noqa: PTH118  faster than pathlib

    def close(self) -> None:
        """Stop watching the folders of loaded and sent files."""
        self._watch.close()
        self._watch_of_sent.close()

    async def reload(self) -> None:
        """Send the edited files and restart the ranks' processes, once for all waiting runs.

        Raises:
            OSError: If a node cannot be reached now.
            PoolError: If the working folder cannot be sent.
        """
        if self._reload_task is None:
            self._reload_task = asyncio.ensure_future(self._reload())
        await asyncio.shield(self._reload_task)

    async def _reload(self) -> None:
        try:
            edited = sorted(path for path in self._watched if self._is_edited(path))
            if edited:
                names = [os.path.relpath(path, self._folder) for path in edited[:MAX_NAMED_MODULES]]
                names += [f"{len(edited) - MAX_NAMED_MODULES} more"] if len(edited) > MAX_NAMED_MODULES else []
                verb = "was" if len(edited) == 1 else "were"
                self._context.news.emit_warning(
                    f"{', '.join(names)} {verb} edited: restarting the ranks' processes to load the changes"
                )
            await self._context.startup.send_folder()
            for name in self._own.files if self._own is not None else ():
                self._handled[name] = _stamp(self._path(name))
            if edited:
                await self._context.setup.restart_processes()
                # Restart the ranks once per content of a file. If they still report another hash, they would restart
                # forever.
                self._handled |= {path: self._read[path][1] for path in edited}
                self._loaded.clear()
                self._watched = {}
        finally:
            self._reload_task = None

    def _is_edited(self, path: str) -> bool:
        if (seen := _stamp(path)) is None:
            return False  # an editor may be replacing the missing file, so it does not count as edited
        if (known := self._read.get(path)) is None or known[0] != seen:
            try:
                known = self._read[path] = seen, hash_bytes(Path(path).read_bytes())
            except OSError:
                return False
        return self._watched[path] != {known[1]} and self._handled.get(path) != known[1]

    def _is_unsent(self, own: LoadedModules) -> bool:
        """Check whether this client still has to send its loaded modules, or newer versions of them."""
        sent = self._sent
        if sent is None:
            return True
        return any(self._differs(name, sent) for name in own.files) or self._has_unsent_edits(sent)

    def _has_unsent_edits(self, sent: Mapping[str, tuple[int, int]]) -> bool:
        """Check whether a sent module was edited, including modules that no process has loaded so far.

        A rank may load such a module in the next run.
        """
        begun = time.perf_counter()
        if begun < self._next_look:
            return False
        quiet = self._watch_of_sent.is_quiet
        if quiet and begun < self._current_until and sent is self._current:
            return False
        names = [name for name in sent if name.endswith(".py")]
        self._sent_check_count += 1
        if self._sent_check_count > WATCH_AFTER_CHECKS and not (quiet and sent is self._current):
            self._watch_of_sent.watch(map(self._path, names))
        found = any(self._differs(name, sent) for name in names)
        now = time.perf_counter()
        self._next_look = now + CHECK_SHARE * (now - begun)
        self._current, self._current_until = None if found else sent, now + _next_check_delay(now - begun)
        return found

    def _differs(self, name: str, sent: Mapping[str, tuple[int, int]]) -> bool:
        now = _stamp(self._path(name))
        return now is not None and sent.get(name) != now[:2] and self._handled.get(name) != now


def _next_check_delay(took: float) -> float:
    """Return the seconds until the next check of quiet folders, given the duration of the last check."""
    return max(CHECK_SHARE * took, min(RARE_SHARE * took, LONGEST_WAIT))


def _are_same(asked: tuple[object, ...], before: object) -> bool:
    """Check whether all objects are identical to the objects of the last check. A changed value is a new object."""
    return isinstance(before, tuple) and all(map(is_, asked, before))


def _stamp(path: str) -> Stamp | None:
    """Return the modification time, size and inode of a file. None if it is not a regular file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if stat.S_ISREG(found.st_mode) else None
