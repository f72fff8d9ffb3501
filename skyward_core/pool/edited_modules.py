"""Modules edited since ranks loaded them.

Agents tell which files their workers have loaded, and each one's hash at that time (``node/worker/script_modules.py``).
Before a run begins, each of them is looked at here, where the person edits them; its content is read where its time or
size is new.
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
    from skyward_core.node.worker.script_modules import LoadedModules


# Of what is in a folder: written to, given other times, or another one in its place; and the folder itself.
_INOTIFY_MASK = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
MOST = 256  # folders; a person has some 10,000 or more for all programs
READ_SIZE = 1 << 16  # bytes read at once; when more happens than fits, another read says so


class FolderWatch:
    """Sees what happens on this machine. What another one does to a network folder, and what is done to a file by
    another name of it, it does not: so whoever asks has to look by himself now and then."""

    def __init__(self) -> None:
        self._file = -1
        self._poll = select.poll()  # asks quicker than a read that finds nothing
        self._folders: set[str] = set()
        self._is_unavailable = False  # this system has no such thing, or no more of it for us

    def watch(self, paths: Iterable[str]) -> None:
        """Watch the folders of these files from now on, too."""
        if self._is_unavailable:
            return
        folders = {os.path.dirname(each) for path in paths for each in (path, os.path.realpath(path))}  # noqa: PTH120
        for folder in folders - self._folders:
            if self._is_unavailable:
                return
            self._is_unavailable = len(self._folders) >= MOST or not self._add_watch(folder)
            self._folders.add(folder)

    def _add_watch(self, folder: str) -> bool:
        import ctypes  # by now there have been many calls: nobody waits for a start

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
        """Whether nothing has happened since the last time that this was asked; False where nobody can tell."""
        if self._is_unavailable or self._file < 0:
            return False
        if not self._poll.poll(0):
            return True
        with suppress(BlockingIOError):
            while os.read(self._file, READ_SIZE):
                pass
        self._folders.clear()  # one may be another by now
        return False

    def close(self) -> None:
        """Watch no more."""
        self._is_unavailable = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


Stamp = tuple[int, int, int]
MAX_NAMED_MODULES = 3  # names of edited modules that are told
CHECK_SHARE = 50  # a look at what nobody tells us of takes at most one part in so many of the time
WATCH_AFTER_CHECKS = 20  # looks after which there are so many that their folders are watched
# The same where the kernel has told of no change: then a look is for what another machine does to a network folder, and
# may wait so many seconds for that.
RARE_SHARE, LONGEST_WAIT = 500, 0.5


class EditedModules:
    """Edited modules of one pool's scripts."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._folder = context.setup.cwd  # the working folder, here
        self._loaded: dict[int, Mapping[str, str]] = {}
        self._watched: dict[str, set[str]] = {}
        self._read: dict[str, tuple[Stamp, str]] = {}
        self._handled: dict[str, str | Stamp | None] = {}
        self._own: LoadedModules | None = None  # what this process has loaded itself, where nodes have copies of it
        self._reload_task: asyncio.Task[None] | None = None
        self._next_look = 0.0  # at all that was sent
        self._watch, self._watch_of_sent = FolderWatch(), FolderWatch()
        self._check_count = self._sent_check_count = 0
        self._last_checked: object = None  # what was looked at when all was as it was sent
        self._clean_until = 0.0  # for so long, where its folders are quiet
        # What was sent, when all of it was as it was sent.
        self._current: Mapping[str, tuple[int, int]] | None = None
        self._current_until = 0.0

    def update_loaded(self, link: Link, files: Mapping[str, str]) -> None:
        """All that a node's workers have loaded."""
        ours, everywhere = self._is_ours(link), link.transport.shares_files
        self._loaded[link.node] = {
            name: digest for name, digest in files.items() if ours and (everywhere or name[0] != "/")
        }
        self._watched = {}
        for each in self._loaded.values():
            for name, digest in each.items():
                self._watched.setdefault(os.path.join(self._folder, name), set()).add(digest)  # noqa: PTH118  quick

    def _is_ours(self, link: Link) -> bool:
        """Whether what a node loads is what the person edits here: the same files, or copies of ours."""
        if link.transport.shares_files:
            return True
        copy = link.welcome.get("cwd", "")
        if not (copy and self._folder):
            return False
        from skyward_core.node.worker.script_modules import LoadedModules  # not for pools of this machine
        from skyward_core.transport.working_folder_upload import copy_name

        if Path(copy).name != copy_name(Path(self._folder).resolve()):
            return False
        self._own = self._own or LoadedModules([str(Path(self._folder).resolve()), self._folder])
        return True

    @property
    def has_edits(self) -> bool:
        """Whether a run has to wait for :meth:`renewed`: some were edited, or are being seen to."""
        return self._reload_task is not None or not self._is_current()

    def _is_current(self) -> bool:
        """Whether ranks have what is here now. Calls come by the thousand: where the kernel tells of no change, files
        are looked at only now and then."""
        own, begun = self._own, time.perf_counter()
        if own is None and not self._watched:
            return True
        if own is not None:
            own.scan()
        asked = (self._watched, own and own.files, self._sent)
        # Asked before the look: what happens after it is for the next one.
        quiet = self._watch.is_quiet or not (self._watched or (own is not None and own.files))
        if quiet and begun < self._clean_until and _are_same(asked, self._last_checked):
            return own is None or not self._has_unsent_edits(self._sent or {})
        self._check_count += 1
        if self._check_count > WATCH_AFTER_CHECKS:
            self._watch.watch([*self._watched, *(self._path(name) for name in (own.files if own else ()))])
        if any(map(self._is_edited, self._watched)) or (own is not None and self._is_unsent(own)):
            self._last_checked = None
            return False
        now = time.perf_counter()
        self._last_checked, self._clean_until = asked, now + _next_check_delay(now - begun)
        return True

    @property
    def _sent(self) -> Mapping[str, tuple[int, int]] | None:
        """What of the working folder hosts were sent last; None before."""
        return next((link.transport.sent for link in self._context.links if not link.gone), None)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)  # noqa: PTH118  quick

    def close(self) -> None:
        """No run comes any more."""
        self._watch.close()
        self._watch_of_sent.close()

    async def reload(self) -> None:
        """Have ranks load them anew, once for all runs that wait for it.

        Raises:
            OSError: a node cannot be reached now.
            PoolError: the working folder cannot be sent.
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
                    f"{', '.join(names)} {verb} edited: fresh processes take the ranks' places, and load the new text"
                )
            await self._context.startup.send_folder()
            for name in self._own.files if self._own is not None else ():
                self._handled[name] = _stamp(self._path(name))
            if edited:
                await self._context.setup.restart_processes()
                # Should ranks load something else for all that, they would again and again.
                self._handled |= {path: self._read[path][1] for path in edited}
                self._loaded.clear()
                self._watched = {}
        finally:
            self._reload_task = None

    def _is_edited(self, path: str) -> bool:
        if (seen := _stamp(path)) is None:
            return False  # it is gone, or just being replaced
        if (known := self._read.get(path)) is None or known[0] != seen:
            try:
                known = self._read[path] = seen, hash_bytes(Path(path).read_bytes())
            except OSError:
                return False
        return self._watched[path] != {known[1]} and self._handled.get(path) != known[1]

    def _is_unsent(self, own: LoadedModules) -> bool:
        """Whether this client has sent nothing yet, or something else than what it has loaded is now."""
        sent = self._sent
        if sent is None:
            return True
        return any(self._differs(name, sent) for name in own.files) or self._has_unsent_edits(sent)

    def _has_unsent_edits(self, sent: Mapping[str, tuple[int, int]]) -> bool:
        """Whether a module was edited that nobody may have loaded yet: the next to load it may be a rank."""
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
    """Seconds until the next look at files whose folders are quiet, where one takes so long."""
    return max(CHECK_SHARE * took, min(RARE_SHARE * took, LONGEST_WAIT))


def _are_same(asked: tuple[object, ...], before: object) -> bool:
    """Whether these are the same objects: each is replaced where it changes."""
    return isinstance(before, tuple) and all(map(is_, asked, before))


def _stamp(path: str) -> Stamp | None:
    """By what it is seen that a file is as it was, without reading it; None where it is none (a pipe would have us wait
    for who writes)."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
