"""Bringing files that ranks wrote to a folder of the client: each once, whole, and over nothing else."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...model.written_file import FetchedFile, WrittenFile
from ...transport.incoming_output import PARTS, IncomingOutput, OnItsWay, refuse_others
from ...wire.output_names import CHANGED
from ..context import PoolContext
from ..links.direct import Direct
from ..links.link import Link
from .listing import FROZEN, listing
from .record import OutputRecord

SPARE = 1 << 20  # bytes of the client's disk that are left free
PAUSE = 1.0  # seconds before a file that was just being written is looked at again
TICK = 0.2  # seconds between two words on how far it is
STUCK = 60.0  # seconds without a byte after which a node is given up for now
HURRIED = 5.0  # the same where the pool is being torn down, and its agent says nothing at all
SLOWEST = (
    20e6  # bytes a second that a node reads at least of what it has sent before: it looks through that again
)

Progress = Callable[[int, int], None]
"""Told how many bytes have come, and of how many."""


class Aim(NamedTuple):
    """Where files go.

    Attributes:
        folder: below which they all are.
        by_node: the folder of each node's files in it; none where the pool has one node.
        alone: paths that are put straight into the folder, as one node alone has them.
    """

    folder: Path
    by_node: dict[int, str]
    alone: frozenset[str] = frozenset()

    def target(self, file: WrittenFile) -> Path:
        """Of one file."""
        alone, beside_others = self.places(file)
        return alone if file.path in self.alone else beside_others

    def places(self, file: WrittenFile) -> tuple[Path, Path]:
        """Where it may be: as one node alone has it, and as several have one of its name."""
        return self.folder / file.path, self.folder / self.by_node.get(file.node, "") / file.path


class Fetching:
    """Of one pool, as one client has it.

    Args:
        tries: how often a file is begun that changes while it is read.
    """

    def __init__(self, context: PoolContext, direct: Direct, record: OutputRecord, *, tries: int = 3) -> None:
        self._context = context
        self._direct = direct
        self._record = record
        self._tries = tries
        self._arriving: dict[WrittenFile, IncomingOutput] = {}
        self._done = 0  # bytes
        self._given_up: dict[int, str] = {}  # nodes, and why

    async def fetch(
        self, files: Sequence[WrittenFile], aim: Aim, progress: Progress | None = None
    ) -> list[FetchedFile]:
        """Bring the files; what cannot be had is told of, file by file."""
        by_node: dict[int, list[WrittenFile]] = {}
        for file in files:
            by_node.setdefault(file.node, []).append(file)
        work = asyncio.gather(*(self._of_node(each, aim) for each in by_node.values()))
        total = sum(file.size for file in files)
        if progress is not None:
            told = asyncio.ensure_future(self._tell(total, progress))
            work.add_done_callback(lambda _: told.cancel())
        return [one for part in await work for one in part]

    async def _tell(self, total: int, progress: Progress) -> None:
        while True:
            progress(self._done + sum(each.at for each in self._arriving.values()), total)
            await asyncio.sleep(TICK)

    async def _of_node(self, files: Iterable[WrittenFile], aim: Aim) -> list[FetchedFile]:
        return [await self._one(file, aim) for file in files]

    async def _one(self, file: WrittenFile, aim: Aim) -> FetchedFile:
        target = aim.target(file)
        error = ""
        for attempt in range(self._tries):
            if attempt:
                await asyncio.sleep(PAUSE)
                found = await self._again(file)
                if found is None:
                    return FetchedFile(file, target, "it was removed on its node")
                file = found
            try:
                is_new = await self._bring_once(file, target, aim)
            except OSError as failure:
                error = failure.strerror or str(failure)
                if error != CHANGED:
                    break
                error = "it was written to while it was read: fetch it once nobody writes there"
            else:
                self._done += file.size
                return FetchedFile(file, target, is_new=is_new)
        return FetchedFile(file, target, error)

    async def _again(self, file: WrittenFile) -> WrittenFile | None:
        """The same file as it is now."""
        exactly = "".join(f"[{c}]" if c in "*?[" else c for c in file.path)
        found = await listing(self._context, [exactly], None, [file.node])
        return next((replace(each, also=file.also) for each in found.files if each.path == file.path), None)

    async def _bring_once(self, file: WrittenFile, target: Path, aim: Aim) -> bool:
        """One attempt; says whether it has come just now.

        Raises:
            OSError: it cannot be had, or put there.
        """
        incoming = await self._begin_alone(file, target, aim)
        if incoming is None:
            return False
        self._arriving[file] = incoming
        try:
            await self._bring(file, incoming)
            incoming.check()
            return await asyncio.to_thread(self._put, file, target, incoming)
        except OSError as error:
            if self._over or error.errno == errno.ENOSPC or CHANGED in (error.strerror, str(error)):
                incoming.drop()  # to be gone on with by nobody
            raise
        finally:
            del self._arriving[file]
            incoming.leave()

    async def _begin_alone(self, file: WrittenFile, target: Path, aim: Aim) -> IncomingOutput | None:
        """Begin it, once no other client fetches it to the same place; None where it need not come.

        Raises:
            OSError: it cannot be put there, or whoever fetches it has got no further for long.
        """
        since, at = time.monotonic(), -1
        while not await asyncio.to_thread(self._is_there, file, target, aim):
            try:
                return await asyncio.to_thread(self._begin, file, target, aim.folder)
            except OnItsWay as others:
                if others.at != at:
                    since, at = time.monotonic(), others.at
                elif time.monotonic() - since > self._patience or self._over:
                    raise
            await asyncio.sleep(TICK)
        return None

    @property
    def _over(self) -> str:
        """How another client has ended the pool, or its limits have; "" where nobody has."""
        return "" if self._context.ending is None else str(self._context.ending.error())

    @property
    def _patience(self) -> float:
        return HURRIED if self._context.leaving else STUCK

    def _is_there(self, file: WrittenFile, target: Path, aim: Aim) -> bool:
        """Whether it need not come: it has been fetched, perhaps before it was known whether others have one, too."""
        for row in self._record.of(file):
            if row.target == str(target):
                return True
            before = Path(row.target)
            if before in aim.places(file) and not os.path.lexists(target):
                _make_way(target, aim.folder)
                with suppress(FileNotFoundError):  # another client moves it just now
                    before.rename(target)
                self._record.add(file, target)
                return True
        self._refuse_another(file, target)
        return False

    def _refuse_another(self, file: WrittenFile, target: Path) -> bool:
        """Whether what is there may give way: an earlier state of the same file, as we left it.

        Raises:
            OSError: something else is there, that may be another.
        """
        if not os.path.lexists(target):
            return False
        row = self._record.at(target)
        if row is not None and row.path == file.path and row.node in (file.node, *file.also):
            if row.is_there:
                return True
            raise OSError(f"{target} has been changed here since it was fetched, and is not overwritten")
        if target.is_symlink() or not target.is_file() or target.stat().st_size != file.size:
            raise OSError(f"{target} is there, did not come from this file, and is not overwritten")
        return False  # it may be the same, which its hash will tell

    def _begin(self, file: WrittenFile, target: Path, folder: Path) -> IncomingOutput:
        _make_way(target, folder)
        incoming = IncomingOutput(folder, f"{target}\0{file.node}", file.size, file.version)
        needed = file.size - incoming.at
        free = shutil.disk_usage(folder).free
        if needed and needed > free - SPARE:
            incoming.drop()
            raise OSError(f"no room: it needs {needed:,} bytes, and {free:,} are free at {folder}")
        return incoming

    async def _bring(self, file: WrittenFile, incoming: IncomingOutput) -> None:
        """Have all bytes of it here, however often the link drops.

        Raises:
            OSError: it is no more as it was, cannot be written here, or nothing comes from there any more.
        """
        since, at = time.monotonic(), incoming.at
        while not (why := self._over or self._given_up.get(file.node, "")):
            link = self._context.links[file.node]
            try:
                return await self._unless_it_freezes(link, file.path, incoming)
            except ConnectionError as error:
                if incoming.at > at:
                    since, at = time.monotonic(), incoming.at
                if link.gone or self._context.detached or time.monotonic() - since > self._patience:
                    self._given_up[file.node] = str(error)
                await asyncio.sleep(0.1)  # the link is on its way up again
        raise OSError(why)

    async def _unless_it_freezes(self, link: Link, path: str, incoming: IncomingOutput) -> None:
        """Take it, as long as some of it comes. A silent node is not asked again: it answers once it goes on.

        Raises:
            ConnectionError: the link is down, the node silent, or its disk does not answer; what has come is kept.
        """
        taking = asyncio.ensure_future(self._by_the_best_way(link, path, incoming))
        at, since = incoming.at, time.monotonic()
        try:
            while not taking.done():
                await asyncio.wait([taking], timeout=TICK * 5)
                if incoming.at != at:
                    at, since = incoming.at, time.monotonic()
                stalled = time.monotonic() - since
                if not taking.done() and min(link.quiet, stalled) > max(FROZEN, self._patience):
                    raise ConnectionError(f"node {link.node} {link.silence}")
                if not taking.done() and stalled > STUCK + at / SLOWEST:
                    raise ConnectionError(f"nothing of it has come from node {link.node} for {stalled:.0f} s")
            taking.result()
        finally:
            taking.cancel()

    async def _by_the_best_way(self, link: Link, path: str, incoming: IncomingOutput) -> None:
        # Standalone nodes listen nowhere.
        if self._context.alone or not await self._direct.take(link, path, incoming):
            await link.take(path, incoming)

    def _put(self, file: WrittenFile, target: Path, incoming: IncomingOutput) -> bool:
        """Give it its name; says whether it was not there already."""
        instead = self._refuse_another(file, target)
        if not instead and incoming.is_like(target):
            incoming.drop()
            self._record.add(file, target)
            return False
        try:
            incoming.put(target, file.changed_at, instead=instead)
        except FileExistsError as error:
            incoming.drop()
            raise OSError(f"{target} is there, is another file, and is not overwritten") from error
        self._record.add(file, target)
        return True


def _make_way(target: Path, folder: Path) -> None:
    """Have the folders on the way to a file.

    Raises:
        OSError: they cannot be made, somebody else has made them, a link leads out of the folder, or it is ours.
    """
    if PARTS in target.relative_to(folder).parts:
        raise OSError(
            f"{PARTS} is where files are that are on their way: give that folder another name there"
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise OSError(f"a link on the way to {target} leads out of {folder}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise OSError(f"{target.parent} cannot be a folder: there is a file of that name") from error
    if target.parent != folder:
        refuse_others(folder / target.relative_to(folder).parts[0])
