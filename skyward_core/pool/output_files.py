"""Files that ranks wrote, fetched to the client."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from skyward_core.model.errors import LedgerError, PoolError, UsageError
from skyward_core.model.output_files import FetchedFile, Unfetched, WrittenFile
from skyward_core.pool.agent_link import Link
from skyward_core.protocol.frame_codec import WireError
from skyward_core.protocol.output_file_patterns import CHANGED_MESSAGE, matches, normalize_pattern
from skyward_core.store.ledger_rows import RemainingFiles
from skyward_core.transport.file_and_result_downloads import (
    PARTS,
    DownloadInProgress,
    IncomingOutput,
    check_folder_owner,
)
from skyward_core.util.byte_sizes import format_size
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import WrittenAnswer, WrittenKeys


CLOCK_TOLERANCE = 2.0  # seconds between two clocks that count as showing the same time
PATIENCE = 60.0  # seconds that a node may take to look through its disk
MAX_FILES = 200_000  # files of one node that are asked for, answer by answer
SILENCE_TIMEOUT = 6.0  # seconds without a word, though it was asked for one every 2 s, after which it is not waited for


class FileListing(NamedTuple):
    """What nodes have told.

    Attributes:
        files: by node and path. Where nodes share a disk, a file of it is the first one's.
        omitted_count: number of further files.
        folders: node -> the ranks' working folder there.
        failures: node -> why it did not tell.
    """

    files: list[WrittenFile]
    omitted_count: int
    folders: dict[int, str]
    failures: dict[int, str]

    @property
    def single_node_paths(self) -> frozenset[str]:
        """Paths that only one node has; none while one may have more."""
        if self.failures or self.omitted_count:
            return frozenset()
        return frozenset(path for path, n in Counter(file.path for file in self.files).items() if n == 1)


async def list_files(
    context: PoolContext,
    patterns: Sequence[str],
    run: str | None,
    nodes: Sequence[int] | None = None,
    *,
    whole: bool = True,
) -> FileListing:
    """Ask the nodes.

    Args:
        patterns: as ``output_file_patterns.pattern`` gives them; none for all files.
        run: during which they were written; None for the whole time of the pool.
        nodes: whom to ask; None for all.
        whole: whether nodes are asked again for what does not go into one answer.
    """
    links = [link for link in context.links if nodes is None or link.node in nodes]
    told = await asyncio.gather(*(_list_node(link, context, patterns, run, whole=whole) for link in links))
    view = context.view.runs.get(run or "")
    if view is not None and (view.kind != "broadcast" or view.nodes) and not all(each.forgotten for each in told):
        # Its calls went to some nodes only.
        told = [each._replace(why="") if each.forgotten else each for each in told]
    found = FileListing([], sum(each.more for each in told), {}, {})
    seen: dict[tuple[str, str], WrittenFile] = {}
    for link, each in zip(links, told, strict=True):
        if each.why:
            found.failures[link.node] = each.why
        elif each.folder:
            found.folders[link.node] = each.folder
        for file in each.files:
            key = file.path, file.version
            if key in seen:
                seen[key] = replace(seen[key], also=(*seen[key].also, file.node))
            elif matches(file.path, patterns):
                seen[key] = file
    found.files.extend(seen.values())
    found.files.sort(key=lambda file: (file.node, file.path))
    return found


class _NodeListing(NamedTuple):
    """By one node."""

    files: list[WrittenFile]
    more: int = 0
    folder: str = ""
    why: str = ""  # it did not
    forgotten: bool = False  # as it knows nothing of the run


async def _list_node(
    link: Link, context: PoolContext, patterns: Sequence[str], run: str | None, *, whole: bool
) -> _NodeListing:
    told = await _list_page(link, context, patterns, run, "")
    while whole and told.more and told.files and len(told.files) < MAX_FILES:
        last = told.files[-1].path
        next_ones = await _list_page(link, context, patterns, run, last)
        files = [each for each in next_ones.files if each.path > last]
        if not files:  # it says no more, for whatever reason
            break
        told = next_ones._replace(files=told.files + files)
    return told


async def _list_page(
    link: Link, context: PoolContext, patterns: Sequence[str], run: str | None, after: str
) -> _NodeListing:
    # A machine of the pool's own has nobody else's, whatever the clock said when the pool was made.
    since = 0.0 if context.ends_machines else link.to_node_time(context.row.created_at) - CLOCK_TOLERANCE
    when: dict[str, object] = {"run": run} if run else {"since": since}
    if after:
        when["after"] = after
    request = {"t": "written", "patterns": list(patterns)} | when
    try:
        answer = await link.wait_while_heard(_request(link, request), PATIENCE, SILENCE_TIMEOUT)
    except TimeoutError:
        return _NodeListing([], why=f"it {link.silence_text}")
    except (ConnectionError, WireError) as error:
        return _NodeListing([], why=str(error))
    if reason := answer.get("error"):
        return _NodeListing([], why=reason, forgotten=bool(answer.get("forgotten")))
    return _NodeListing([_written_file(each, link) for each in answer["files"]], answer["more"], answer["folder"])


async def _request(link: Link, request: dict[str, object]) -> WrittenAnswer:
    """What a node says; it is asked once more after each time that its link was down and has come up again."""
    while True:
        had = link.welcome
        try:
            answer: WrittenAnswer
            answer, _ = await link.ask(request)
            return answer
        except ConnectionError:
            if not link.is_reconnecting and link.welcome is had:
                raise
        while link.is_reconnecting:
            await asyncio.sleep(0.02)


def _written_file(told: WrittenKeys, link: Link) -> WrittenFile:
    return WrittenFile(told["path"], told["size"], link.to_client_time(told["at"]), link.node, told["version"])


@value
class FetchedRow(Value):
    """One file that has come.

    Attributes:
        target: where it was put, an absolute path.
        node, path, version: which file of which node it was.
        left: size and time of change that it had here when it was put there.
    """

    target: str
    node: int
    path: str
    version: str
    left: tuple[int, int]

    @property
    def is_unchanged(self) -> bool:
        """Whether it lies there as it was left."""
        return file_fingerprint(Path(self.target)) == tuple(self.left)


def file_fingerprint(path: Path) -> tuple[int, int] | None:
    """Size and time of change of a file; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class OutputRecord:
    """One pool's, a line for each file; several processes may add to it at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._lock = threading.Lock()  # files of different nodes are fetched in threads
        self._by_target: dict[str, FetchedRow] = {}
        # Whichever node named it: of a disk that nodes share, another one may, the next time.
        self._by_file: dict[tuple[str, str], list[FetchedRow]] = {}

    def latest_at(self, target: Path) -> FetchedRow | None:
        """What was put there last."""
        self._read()
        return self._by_target.get(str(target))

    def copies_of(self, file: WrittenFile) -> list[FetchedRow]:
        """Where the file is, as it is on its node now, and as it was left."""
        self._read()
        rows = self._by_file.get((file.path, file.version), ())
        return [row for row in rows if self._by_target.get(row.target) is row and row.is_unchanged]

    def add(self, file: WrittenFile, target: Path) -> None:
        """The file has been put there.

        Raises:
            OSError: it cannot be written down.
        """
        left = file_fingerprint(target)
        if left is None:
            return  # removed since
        row = FetchedRow(str(target), file.node, file.path, file.version, left)
        # What an earlier line lacks, that a crash or a full disk cut short, is not made up of this one.
        line = b"\n" + json.dumps(asdict(row)).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)

    def _read(self) -> None:
        """Read the lines that any process or thread has added."""
        with self._lock:
            self._read_new_lines()

    def _read_new_lines(self) -> None:
        try:
            with open(self._path, "rb") as source:
                source.seek(self._size)
                data = source.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._size += len(whole)
        for line in whole.splitlines():
            try:
                told = json.loads(line)
                row = FetchedRow(**(told | {"left": tuple(told["left"])}))
            except (ValueError, TypeError, KeyError):
                continue  # a crash, or a full disk, cut it short
            self._by_target[row.target] = row
            self._by_file.setdefault((row.path, row.version), []).append(row)


SPARE_BYTES = 1 << 20  # bytes of the client's disk that are left free
RETRY_PAUSE = 1.0  # seconds before a file that was just being written is looked at again
PROGRESS_INTERVAL = 0.2  # seconds between two words on how far it is
STALL_TIMEOUT = 60.0  # seconds without a byte after which a node is given up for now
TEARDOWN_STALL_TIMEOUT = 5.0  # the same where the pool is being torn down, and its agent says nothing at all
MIN_READ_RATE = (
    20e6  # bytes a second that a node reads at least of what it has sent before: it looks through that again
)

Progress = Callable[[int, int], None]
"""Told how many bytes have come, and of how many."""


class Destination(NamedTuple):
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
        alone, beside_others = self.possible_targets(file)
        return alone if file.path in self.alone else beside_others

    def possible_targets(self, file: WrittenFile) -> tuple[Path, Path]:
        """Where it may be: as one node alone has it, and as several have one of its name."""
        return self.folder / file.path, self.folder / self.by_node.get(file.node, "") / file.path


class OutputFetcher:
    """Of one pool, as one client has it.

    Args:
        tries: how often a file is begun that changes while it is read.
    """

    def __init__(self, context: PoolContext, record: OutputRecord, *, tries: int = 3) -> None:
        self._context = context
        self._record = record
        self._tries = tries
        self._downloads: dict[WrittenFile, IncomingOutput] = {}
        self._done_bytes = 0  # bytes
        self._failed_nodes: dict[int, str] = {}  # nodes, and why

    async def fetch(
        self, files: Sequence[WrittenFile], aim: Destination, progress: Progress | None = None
    ) -> list[FetchedFile]:
        """Bring the files; what cannot be had is told of, file by file."""
        by_node: dict[int, list[WrittenFile]] = {}
        for file in files:
            by_node.setdefault(file.node, []).append(file)
        work = asyncio.gather(*(self._fetch_node(each, aim) for each in by_node.values()))
        total = sum(file.size for file in files)
        if progress is not None:
            told = asyncio.ensure_future(self._report_progress(total, progress))
            work.add_done_callback(lambda _: told.cancel())
        return [one for part in await work for one in part]

    async def _report_progress(self, total: int, progress: Progress) -> None:
        while True:
            progress(self._done_bytes + sum(each.at for each in self._downloads.values()), total)
            await asyncio.sleep(PROGRESS_INTERVAL)

    async def _fetch_node(self, files: Iterable[WrittenFile], aim: Destination) -> list[FetchedFile]:
        return [await self._fetch_file(file, aim) for file in files]

    async def _fetch_file(self, file: WrittenFile, aim: Destination) -> FetchedFile:
        target = aim.target(file)
        error = ""
        for attempt in range(self._tries):
            if attempt:
                await asyncio.sleep(RETRY_PAUSE)
                found = await self._refresh(file)
                if found is None:
                    return FetchedFile(file, target, "it was removed on its node")
                file = found
            try:
                is_new = await self._try_fetch(file, target, aim)
            except OSError as failure:
                error = failure.strerror or str(failure)
                if error != CHANGED_MESSAGE:
                    break
                error = "it was written to while it was read: fetch it once nobody writes there"
            else:
                self._done_bytes += file.size
                return FetchedFile(file, target, is_new=is_new)
        return FetchedFile(file, target, error)

    async def _refresh(self, file: WrittenFile) -> WrittenFile | None:
        """The same file as it is now."""
        exactly = "".join(f"[{c}]" if c in "*?[" else c for c in file.path)
        found = await list_files(self._context, [exactly], None, [file.node])
        return next((replace(each, also=file.also) for each in found.files if each.path == file.path), None)

    async def _try_fetch(self, file: WrittenFile, target: Path, aim: Destination) -> bool:
        """One attempt; says whether it has come just now.

        Raises:
            OSError: it cannot be had, or put there.
        """
        incoming = await self._acquire_target(file, target, aim)
        if incoming is None:
            return False
        self._downloads[file] = incoming
        try:
            await self._download_with_retries(file, incoming)
            incoming.check()
            return await asyncio.to_thread(self._store, file, target, incoming)
        except OSError as error:
            if self._end_reason or error.errno == errno.ENOSPC or CHANGED_MESSAGE in (error.strerror, str(error)):
                incoming.drop()  # to be gone on with by nobody
            raise
        finally:
            del self._downloads[file]
            incoming.release()

    async def _acquire_target(self, file: WrittenFile, target: Path, aim: Destination) -> IncomingOutput | None:
        """Begin it, once no other client fetches it to the same place; None where it need not come.

        Raises:
            OSError: it cannot be put there, or whoever fetches it has got no further for long.
        """
        since, at = time.monotonic(), -1
        while not await asyncio.to_thread(self._is_fetched, file, target, aim):
            try:
                return await asyncio.to_thread(self._begin_download, file, target, aim.folder)
            except DownloadInProgress as others:
                if others.at != at:
                    since, at = time.monotonic(), others.at
                elif time.monotonic() - since > self._stall_timeout or self._end_reason:
                    raise
            await asyncio.sleep(PROGRESS_INTERVAL)
        return None

    @property
    def _end_reason(self) -> str:
        """How another client has ended the pool, or its limits have; "" where nobody has."""
        return "" if self._context.external_end is None else str(self._context.external_end.error())

    @property
    def _stall_timeout(self) -> float:
        return TEARDOWN_STALL_TIMEOUT if self._context.leaving else STALL_TIMEOUT

    def _is_fetched(self, file: WrittenFile, target: Path, aim: Destination) -> bool:
        """Whether it need not come: it has been fetched, perhaps before it was known whether others have one, too."""
        for row in self._record.copies_of(file):
            if row.target == str(target):
                return True
            before = Path(row.target)
            if before in aim.possible_targets(file) and not os.path.lexists(target):
                _make_folders(target, aim.folder)
                with suppress(FileNotFoundError):  # another client moves it just now
                    before.rename(target)
                self._record.add(file, target)
                return True
        self._may_replace(file, target)
        return False

    def _may_replace(self, file: WrittenFile, target: Path) -> bool:
        """Whether what is there may give way: an earlier state of the same file, as we left it.

        Raises:
            OSError: something else is there, that may be another.
        """
        if not os.path.lexists(target):
            return False
        row = self._record.latest_at(target)
        if row is not None and row.path == file.path and row.node in (file.node, *file.also):
            if row.is_unchanged:
                return True
            raise OSError(f"{target} has been changed here since it was fetched, and is not overwritten")
        if target.is_symlink() or not target.is_file() or target.stat().st_size != file.size:
            raise OSError(f"{target} is there, did not come from this file, and is not overwritten")
        return False  # it may be the same, which its hash will tell

    def _begin_download(self, file: WrittenFile, target: Path, folder: Path) -> IncomingOutput:
        _make_folders(target, folder)
        incoming = IncomingOutput(folder, f"{target}\0{file.node}", file.size, file.version)
        needed = file.size - incoming.at
        free = shutil.disk_usage(folder).free
        if needed and needed > free - SPARE_BYTES:
            incoming.drop()
            raise OSError(f"no room: it needs {needed:,} bytes, and {free:,} are free at {folder}")
        return incoming

    async def _download_with_retries(self, file: WrittenFile, incoming: IncomingOutput) -> None:
        """Have all bytes of it here, however often the link drops.

        Raises:
            OSError: it is no more as it was, cannot be written here, or nothing comes from there any more.
        """
        since, at = time.monotonic(), incoming.at
        while not (reason := self._end_reason or self._failed_nodes.get(file.node, "")):
            link = self._context.links[file.node]
            try:
                return await self._download_with_timeout(link, file.path, incoming)
            except ConnectionError as error:
                if incoming.at > at:
                    since, at = time.monotonic(), incoming.at
                if link.gone or self._context.detached or time.monotonic() - since > self._stall_timeout:
                    self._failed_nodes[file.node] = str(error)
                await asyncio.sleep(0.1)  # the link is on its way up again
        raise OSError(reason)

    async def _download_with_timeout(self, link: Link, path: str, incoming: IncomingOutput) -> None:
        """Take it, as long as some of it comes. A silent node is not asked again: it answers once it goes on.

        Raises:
            ConnectionError: the link is down, the node silent, or its disk does not answer; what has come is kept.
        """
        taking = asyncio.ensure_future(self._download(link, path, incoming))
        at, since = incoming.at, time.monotonic()
        try:
            while not taking.done():
                await asyncio.wait([taking], timeout=PROGRESS_INTERVAL * 5)
                if incoming.at != at:
                    at, since = incoming.at, time.monotonic()
                stalled = time.monotonic() - since
                if not taking.done() and min(link.silence_seconds, stalled) > max(SILENCE_TIMEOUT, self._stall_timeout):
                    raise ConnectionError(f"node {link.node} {link.silence_text}")
                if not taking.done() and stalled > STALL_TIMEOUT + at / MIN_READ_RATE:
                    raise ConnectionError(f"nothing of it has come from node {link.node} for {stalled:.0f} s")
            taking.result()
        finally:
            taking.cancel()

    async def _download(self, link: Link, path: str, incoming: IncomingOutput) -> None:
        # Standalone nodes listen nowhere.
        direct = self._context.registry.direct
        if self._context.is_standalone or not await direct.download_output(link, path, incoming):
            await link.fetch_output(path, incoming)

    def _store(self, file: WrittenFile, target: Path, incoming: IncomingOutput) -> bool:
        """Give it its name; says whether it was not there already."""
        instead = self._may_replace(file, target)
        if not instead and incoming.has_same_content(target):
            incoming.drop()
            self._record.add(file, target)
            return False
        try:
            incoming.move_to(target, file.changed_at, instead=instead)
        except FileExistsError as error:
            incoming.drop()
            raise OSError(f"{target} is there, is another file, and is not overwritten") from error
        self._record.add(file, target)
        return True


def _make_folders(target: Path, folder: Path) -> None:
    """Have the folders on the way to a file.

    Raises:
        OSError: they cannot be made, somebody else has made them, a link leads out of the folder, or it is ours.
    """
    if PARTS in target.relative_to(folder).parts:
        raise OSError(f"{PARTS} is where files are that are on their way: give that folder another name there")
    folder.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise OSError(f"a link on the way to {target} leads out of {folder}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise OSError(f"{target.parent} cannot be a folder: there is a file of that name") from error
    if target.parent != folder:
        check_folder_owner(folder / target.relative_to(folder).parts[0])


FOLDER = "outputs"  # of the client, in its working folder
QUIET_TIME = 3.0  # seconds without a change after which nobody is likely to be writing a file
FETCH_INTERVALS = (2.0, 15.0)  # seconds before the first and between later looks during a run
MAX_ENDED_RUNS = 32  # runs that wait to be looked at when they are over; of more, the pool's end sees to the older ones
MAX_NAMED_FILES = 5  # files that a receipt names, of each node's


class FetchResult(NamedTuple):
    """What came of fetching.

    Attributes:
        files: each that was meant.
        notes: what else there is to say, in words.
    """

    files: list[FetchedFile]
    notes: list[str]


class Outputs:
    """One pool's, as one client has it."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._record = OutputRecord(context.archive.folder / "outputs.jsonl")
        self._base = Path.cwd() / FOLDER
        self._patterns: Sequence[str] = context.row.spec.get("image", {}).get("outputs") or ()
        self._fetch_lock = asyncio.Lock()
        self._ended_runs: dict[str, None] = {}  # runs to be looked at for the last time
        self._wake = asyncio.Event()
        self._fetch_task: asyncio.Task[None] | None = None

    async def files(self, patterns: Sequence[str] = (), run: str | None = None, *, whole: bool = True) -> FileListing:
        """What there is; nothing where ranks work in this machine's own folders.

        Args:
            patterns: as ``output_file_patterns.pattern`` takes them; none for all files.
            run: during which they were written; None for the whole time of the pool.
            whole: whether nodes are asked again for what does not go into one answer.

        Raises:
            UsageError: a pattern leads out of the working folder.
        """
        wanted = _validate_patterns(patterns)
        if self._context.is_local:
            return FileListing([], 0, {}, {})
        return await list_files(self._context, wanted, run, whole=whole)

    async def unfetched(self) -> Unfetched:
        """What a teardown would find, as things stand."""
        found = await self.files()
        parts: dict[bool, list[WrittenFile]] = {True: [], False: []}
        for file in self._unfetched(found):
            parts[bool(self._patterns) and matches(file.path, self._patterns)].append(file)
        return Unfetched(
            parts[True],
            parts[False],
            found.omitted_count,
            self._context.ends_machines,
            int(self._context.options.keep_outputs),
            found.failures,
        )

    async def fetch(
        self,
        patterns: Sequence[str] = (),
        to: Path | None = None,
        run: str | None = None,
        progress: Progress | None = None,
    ) -> FetchResult:
        """Bring files here.

        Args:
            to: the folder that they come to; None for ``outputs/RUN``, or ``outputs/POOL``.

        Raises:
            UsageError: a pattern leads out of the working folder.
            PoolError: no node could be asked.
        """
        found = await self.files(patterns, run)
        notes = [f"node {node} cannot be asked for files: {reason}" for node, reason in found.failures.items()]
        if notes and not found.folders:
            raise PoolError(f"of pool {self._context.name}: {'; '.join(notes)}")
        if found.omitted_count:
            notes.append(
                f"{found.omitted_count:,} more files are there than nodes name at once: say which, by patterns"
            )
        return FetchResult(await self._fetch_files(found, found.files, run, to, progress), notes)

    async def _fetch_files(
        self,
        found: FileListing,
        files: Sequence[WrittenFile],
        run: str | None,
        to: Path | None = None,
        progress: Progress | None = None,
        *,
        tries: int = 3,
    ) -> list[FetchedFile]:
        aim = Destination(await asyncio.to_thread(self._folder, run, to) if files else Path(), self._node_folders())
        if not self._is_running(run):
            aim = aim._replace(alone=found.single_node_paths)
        async with self._fetch_lock:
            fetching = OutputFetcher(self._context, self._record, tries=tries)
            got = await fetching.fetch(files, aim, progress)
        for each in got:
            if each.is_new or (each.error and tries > 1):
                self._emit_fetched(run or "", each)
        return got

    def _folder(self, run: str | None, to: Path | None) -> Path:
        if to is not None:
            return to.absolute()
        folder = self._base / (run or self._context.row.key)
        folder.mkdir(parents=True, exist_ok=True)
        check_folder_owner(self._base)
        # What came from there is neither to be sent there again, nor to be committed.
        ignored = folder / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n", encoding="utf-8")
        return folder

    def _node_folders(self) -> dict[int, str]:
        """A folder for each node: of its rank, or of the node where several ranks share its working folder."""
        if len(self._context.links) == 1:
            return {}
        letter = "r" if self._context.ranks_per_node == 1 else "n"
        return {link.node: f"{letter}{link.node}" for link in self._context.links}

    def _is_running(self, run: str | None) -> bool:
        runs = self._context.view.runs
        meant = runs.values() if run is None else filter(None, (runs.get(run),))
        return any(each.state == "running" and each.ended < each.total for each in meant)

    def _emit_fetched(self, run: str, each: FetchedFile) -> None:
        file = each.file
        self._news.emit(
            events.OutputFetched(
                pool=self._context.name, run=run, node=file.node, path=file.path, size=file.size,
                target=str(each.target), error=each.error,
            )
        )  # fmt: skip

    # -- during runs -------------------------------------------------------------------------------------

    def start_fetching(self) -> None:
        """Fetch what the image names of every run, whoever began it, from now on, while it goes on and when it is over;
        of those that nodes remember, too, as they tell of them."""
        self._news.subscribe(self._on_event, None)

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.RunOpened | events.RunEnded) and not self._context.detached:
            if isinstance(event, events.RunEnded):
                self._ended_runs[event.run] = None
                if len(self._ended_runs) > MAX_ENDED_RUNS:
                    del self._ended_runs[next(iter(self._ended_runs))]
            self._wake.set()
            if self._fetch_task is None or self._fetch_task.done():
                self._fetch_task = asyncio.get_running_loop().create_task(self._fetch_in_background())

    @property
    def _active_runs(self) -> list[str]:
        runs = self._context.view.runs
        return [
            *self._context.registry.runs,
            *(run for run in runs if run not in self._context.registry.runs and self._is_running(run)),
        ]

    async def _fetch_in_background(self) -> None:
        try:
            await self._fetch_until_idle()
        except OSError as error:
            self._news.emit_warning(f"what ranks write cannot be fetched now: {error}")

    async def _fetch_until_idle(self) -> None:
        """Look at the runs that go on, ever more rarely, and at each that is over; end when none is left."""
        delay, longest = FETCH_INTERVALS
        while (self._ended_runs or self._active_runs) and not self._context.detached:
            if not self._ended_runs:
                self._wake.clear()
                try:
                    async with asyncio.timeout(delay):
                        await self._wake.wait()
                except TimeoutError:
                    delay = min(longest, delay * 1.5)
            while self._ended_runs:
                run = next(iter(self._ended_runs))
                del self._ended_runs[run]
                found = await self.files(self._patterns, run)
                await self._fetch_files(found, found.files, run)
            for run in self._active_runs:
                found = await self.files(self._patterns, run, whole=False)
                quiet = [file for file in found.files if file.age > QUIET_TIME]
                await self._fetch_files(found, quiet, run, tries=1)

    def stop_fetching(self) -> None:
        """This client leaves the pool; what is half here is gone on with when somebody fetches it again."""
        if self._fetch_task is not None:
            self._fetch_task.cancel()

    # -- at the end --------------------------------------------------------------------------------------

    async def save(self, *, give_up: bool, most: int | None = None) -> RemainingFiles:
        """Bring home what would go with the pool's machines, as far as its options say, and name what is left.

        Args:
            give_up: bring nothing home.
            most: bytes that are brought, in place of what the options say.
        """
        context = self._context
        if self._fetch_task is not None:
            if give_up or self._context.registry.runs:  # some that do not end: their nodes do not answer
                self._fetch_task.cancel()
            await asyncio.wait([self._fetch_task])
        if not await asyncio.to_thread(self._had_runs):
            return RemainingFiles()
        trouble = ""
        if self._patterns and not give_up:
            found = await self.files(self._patterns)
            trouble = await self._fetch_with_progress(found, self._unfetched(found))
        found = await self.files()
        if context.ends_machines and not give_up:
            room = int(context.options.keep_outputs) if most is None else most
            trouble = await self._fetch_with_progress(found, newest_within(self._unfetched(found), room)) or trouble
        left = self._unfetched(found)
        whose = {node: [file for file in left if file.node == node] for node in found.folders}
        said = [self._describe_unfetched(node, found.folders[node], files) for node, files in whose.items() if files]
        unasked = [
            f"node {node} could not be asked what its ranks wrote ({reason})" for node, reason in found.failures.items()
        ]
        notes = [trouble] if trouble else []
        if found.omitted_count:
            unasked.append(f"at least {found.omitted_count:,} more files of ranks that were not looked at")
        if context.ends_machines:
            return RemainingFiles(notes, lost=[*said, *unasked])
        stays = [(node, found.folders[node]) for node, files in whose.items() if files]
        more = unasked[-1:] if found.omitted_count else []
        return RemainingFiles([*(f"stays there: {each}" for each in [*said, *more]), *notes], stays=stays)

    def _had_runs(self) -> bool:
        """Whether there were ranks that could write."""
        try:
            return bool(self._context.ledger.runs(self._context.token))
        except LedgerError:
            return True

    async def _fetch_with_progress(self, found: FileListing, files: Sequence[WrittenFile]) -> str:
        """Fetch them, and have the pool say how far it is: nothing else happens meanwhile. Gives why that cannot be."""

        say = self._news.emit_teardown_progress

        def is_at(done: int, total: int) -> None:
            say(f"what its ranks wrote is brought here: {format_size(done)} of {format_size(total)}")

        if files:
            try:
                await self._fetch_files(found, files, None, progress=is_at)
            except OSError as error:
                return f"what ranks wrote could not be brought here: {error}"
            finally:
                say("")
        return ""

    def _unfetched(self, found: FileListing) -> list[WrittenFile]:
        return [file for file in found.files if not self._record.copies_of(file)]

    def _describe_unfetched(self, node: int, folder: str, files: Sequence[WrittenFile]) -> str:
        """What nobody has fetched of one node: how much, where, and its largest by name."""
        largest = sorted(files, key=lambda file: -file.size)[:MAX_NAMED_FILES]
        named = ", ".join(f"{sanitize_line(file.path)} ({format_size(file.size)})" for file in largest)
        more = f" and {len(files) - len(largest):,} more" if len(files) > len(largest) else ""
        many = f"{len(files):,} files" if len(files) > 1 else "1 file"
        where = f"node {node} ({self._context.machines[node].address}) in {folder}"
        return f"{many}, {format_size(sum(file.size for file in files))}, on {where}: {named}{more}"


def _validate_patterns(patterns: Sequence[str]) -> list[str]:
    try:
        return [normalize_pattern(each) for each in patterns]
    except ValueError as error:
        raise UsageError(str(error)) from error


def newest_within(files: Sequence[WrittenFile], most: int) -> list[WrittenFile]:
    """As many of the files as there is room for, the newest first."""
    chosen = []
    for file in sorted(files, key=lambda file: -file.changed_at):
        if file.size <= most:
            chosen.append(file)
            most -= file.size
    return chosen
