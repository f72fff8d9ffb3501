"""Download of output files, which are files that the ranks wrote: on request, during runs and at the teardown."""

from __future__ import annotations

import asyncio
import errno
import filecmp
import json
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.errors import LedgerError, PoolError, UsageError, convert_errors
from skyward_core.model.output_files import (
    CHANGED_MESSAGE,
    FetchedFile,
    Unfetched,
    WrittenFile,
    matches,
    normalize_pattern,
)
from skyward_core.model.specs import Options
from skyward_core.node.agent.output_checkpoint_and_source_files import FolderWalk, clear_checkpoints, file_version
from skyward_core.pool.agent_link import CLOCK_TOLERANCE, Link
from skyward_core.pool.checkpoint_sets import inspect_content
from skyward_core.protocol.frame_codec import WireError
from skyward_core.runtime.instance_info_and_attempt import CHECKPOINTS
from skyward_core.store.ledger_rows import REMAINS, PoolRow, RemainingFiles
from skyward_core.store.state_folder import pool_path
from skyward_core.transport.file_and_result_downloads import (
    PARTS,
    DownloadInProgress,
    IncomingOutput,
    check_folder_owner,
)
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views import events, group_pairs

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import WrittenAnswer, WrittenKeys
    from skyward_core.store.ledger import Ledger


EARLIER_SUFFIX = ".earlier"  # file name suffix of the last complete version of a file whose latest version is cut off
PATIENCE = 60.0  # seconds that a node may take to scan its disk
MAX_FILES = 200_000  # maximum number of listed files per node, over all pages
SILENCE_TIMEOUT = 6.0  # seconds without a frame; a node sends a frame at least every 2 s while it scans


class FileListing(NamedTuple):
    """Output files that the nodes have listed.

    Attributes:
        files: Files, sorted by node and path. A file on a shared disk belongs to the first node that lists it.
        omitted_count: Number of files that the nodes did not list.
        folders: Node -> working folder of its ranks.
        failures: Node -> reason why it sent no listing.
    """

    files: list[WrittenFile]
    omitted_count: int
    folders: dict[int, str]
    failures: dict[int, str]

    @property
    def single_node_paths(self) -> frozenset[str]:
        """Paths that exist on one node only. Empty while the listing is incomplete."""
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
    """List the files that the ranks wrote.

    Args:
        context: Pool to list the files of.
        patterns: Normalized patterns, as ``model.output_files.normalize_pattern`` returns them. Empty: all files.
        run: Only files that changed during this run. None: since the pool was created.
        nodes: Nodes to query. None: all.
        whole: Whether to request further pages if the files do not fit into one answer.

    Returns:
        The files, and the nodes that could not list their files.
    """
    links = [link for link in context.links if nodes is None or link.node in nodes]
    listings = await asyncio.gather(*(_list_node(link, context, patterns, run, whole=whole) for link in links))
    view = context.view.runs.get(run or "")
    if view is not None and (view.kind != "broadcast" or view.nodes) and not all(each.forgotten for each in listings):
        # Ignore nodes that do not know the run, because they had no call of it.
        listings = [each._replace(why="") if each.forgotten else each for each in listings]
    found = FileListing([], sum(each.more for each in listings), {}, {})
    seen: dict[tuple[str, str], WrittenFile] = {}
    for link, each in zip(links, listings, strict=True):
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
    """Answer of one node to a request to list its output files."""

    files: list[WrittenFile]
    more: int = 0
    folder: str = ""
    why: str = ""  # reason why the node sent no listing; "" if it did
    forgotten: bool = False  # whether the node answered that it does not know the run


async def _list_node(
    link: Link, context: PoolContext, patterns: Sequence[str], run: str | None, *, whole: bool
) -> _NodeListing:
    listing = await _list_page(link, context, patterns, run, "")
    while whole and listing.more and listing.files and len(listing.files) < MAX_FILES:
        last = listing.files[-1].path
        page = await _list_page(link, context, patterns, run, last)
        files = [each for each in page.files if each.path > last]
        if not files:  # stop at an empty page, even if the node claims to have more files
            break
        listing = page._replace(files=listing.files + files)
    return listing


async def _list_page(
    link: Link, context: PoolContext, patterns: Sequence[str], run: str | None, after: str
) -> _NodeListing:
    # A rented machine holds only files of this pool, so all of them count, even if its clock was wrong at the start.
    since = 0.0 if context.ends_machines else link.to_node_time(context.row.created_at) - CLOCK_TOLERANCE
    when: dict[str, object] = {"run": run} if run else {"since": since}
    if after:
        when["after"] = after
    request = {"t": "written", "patterns": list(patterns)} | when
    try:
        answer = await link.wait_while_heard(_request(link, request), PATIENCE, SILENCE_TIMEOUT)
    except TimeoutError:
        return _NodeListing([], why=f"the node {link.silence_text}")
    except (ConnectionError, WireError) as error:
        return _NodeListing([], why=str(error))
    if reason := answer.get("error"):
        return _NodeListing([], why=reason, forgotten=bool(answer.get("forgotten")))
    return _NodeListing([_written_file(each, link) for each in answer["files"]], answer["more"], answer["folder"])


async def _request(link: Link, request: dict[str, object]) -> WrittenAnswer:
    """Send a request to a node and return its answer. Repeat the request whenever the link has been restored."""
    while True:
        welcome = link.welcome
        try:
            answer: WrittenAnswer
            answer, _ = await link.ask(request)
            return answer
        except ConnectionError:
            if not link.is_reconnecting and link.welcome is welcome:
                raise
        while link.is_reconnecting:
            await asyncio.sleep(0.02)


def _written_file(keys: WrittenKeys, link: Link) -> WrittenFile:
    return WrittenFile(keys["path"], keys["size"], link.to_client_time(keys["at"]), link.node, keys["version"])


@value
class FetchedRow(Value):
    """A downloaded file, as recorded on disk.

    Attributes:
        target: Absolute local path.
        node, path, version: Node, path and content version of the original.
        left: Size and modification time in ns of the local copy after the download.
        sha256: SHA-256 of the content; "" if unknown.
    """

    target: str
    node: int
    path: str
    version: str
    left: tuple[int, int]
    sha256: str = ""

    @property
    def is_unchanged(self) -> bool:
        """Whether the local copy is unchanged since the download."""
        return file_fingerprint(Path(self.target)) == tuple(self.left)


def file_fingerprint(path: Path) -> tuple[int, int] | None:
    """Return a file's size and modification time in ns, or None if the file does not exist."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


class OutputRecord:
    """Record of one pool's downloaded files, one JSON line per file. Several processes may append at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._lock = threading.Lock()  # threads that fetch files from different nodes share this record
        self._by_target: dict[str, FetchedRow] = {}
        # Path and version -> downloaded copies. Without the node, because several nodes may list a file of a shared
        # disk.
        self._by_file: dict[tuple[str, str], list[FetchedRow]] = {}

    def latest_at(self, target: Path) -> FetchedRow | None:
        """Return the record of the last download to a local path."""
        self._read()
        return self._by_target.get(str(target))

    def copies_of(self, file: WrittenFile) -> list[FetchedRow]:
        """Return the unchanged local copies of a file's present version."""
        self._read()
        rows = self._by_file.get((file.path, file.version), ())
        return [row for row in rows if self._by_target.get(row.target) is row and row.is_unchanged]

    def rows(self) -> list[FetchedRow]:
        """Return the records of all downloaded files whose local copies are unchanged."""
        self._read()
        return [row for row in self._by_target.values() if row.is_unchanged]

    def add(self, file: WrittenFile, target: Path, sha256: str = "") -> None:
        """Record a downloaded file.

        Raises:
            OSError: If the record cannot be written.
        """
        left = file_fingerprint(target)
        if left is None:
            return  # do not record the file, because it was deleted right after its download
        row = FetchedRow(str(target), file.node, file.path, file.version, left, sha256)
        # The leading newline separates this line from an earlier line that a crash or a full disk truncated.
        line = b"\n" + json.dumps(asdict(row)).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        finally:
            os.close(descriptor)

    def _read(self) -> None:
        """Read the lines that this or another process has added since the last call."""
        with self._lock, suppress(FileNotFoundError), open(self._path, "rb") as source:
            source.seek(self._size)
            self._add_lines(source.read())

    def _add_lines(self, data: bytes) -> None:
        whole = data[: data.rfind(b"\n") + 1]
        self._size += len(whole)
        for line in whole.splitlines():
            try:
                data_row = json.loads(line)
                row = FetchedRow(**(data_row | {"left": tuple(data_row["left"])}))
            except (ValueError, TypeError, KeyError):
                continue  # skip a line that a crash or a full disk has truncated
            self._by_target[row.target] = row
            self._by_file.setdefault((row.path, row.version), []).append(row)


SPARE_BYTES = 1 << 20  # bytes of the client's disk that a download leaves free
RETRY_PAUSE = 1.0  # seconds before the next try to download a file that changed during the download
PROGRESS_INTERVAL = 0.2  # seconds between two calls of the progress callback
STALL_TIMEOUT = 60.0  # seconds without a byte after which a node is skipped
TEARDOWN_STALL_TIMEOUT = 5.0  # seconds after which a teardown skips a node whose agent does not respond at all
# Bytes per second of a node's slowest expected disk. Before a node resumes a file, it reads the part that it has sent
# already, and sends nothing during this time.
MIN_READ_RATE = 20e6

# Called with the downloaded bytes and the total bytes.
Progress = Callable[[int, int], None]


class Destination(NamedTuple):
    """Local paths for downloaded files.

    Attributes:
        folder: Folder for all files.
        by_node: Node -> name of its subfolder. Empty if the pool has one node.
        alone: Paths that exist on one node only. They are stored without a node's subfolder.
    """

    folder: Path
    by_node: dict[int, str]
    alone: frozenset[str] = frozenset()

    def target(self, file: WrittenFile) -> Path:
        """Return the local path of a file."""
        alone, beside_others = self.possible_targets(file)
        return alone if file.path in self.alone else beside_others

    def possible_targets(self, file: WrittenFile) -> tuple[Path, Path]:
        """Return two local paths of a file: without and with the subfolder of its node."""
        return self.folder / file.path, self.folder / self.by_node.get(file.node, "") / file.path


class OutputFetcher:
    """Downloads of one pool's output files.

    Args:
        context: Pool to download from.
        record: Record of downloaded files.
        tries: Number of tries for a file that changes while it is read.
        keeps_whole: Whether to keep the earlier version of a file if a later one is cut off, because its writer was
            killed.

    Attributes:
        torn: Files that are cut off and were therefore not stored.
    """

    def __init__(
        self, context: PoolContext, record: OutputRecord, *, tries: int = 3, keeps_whole: bool = False
    ) -> None:
        self._context = context
        self._record = record
        self._tries = tries
        self._keeps_whole = keeps_whole
        self.torn: list[WrittenFile] = []
        self._downloads: dict[WrittenFile, IncomingOutput] = {}
        self._done_bytes = 0
        self._failed_nodes: dict[int, str] = {}  # node -> reason why no further files are requested from it

    async def fetch(
        self, files: Sequence[WrittenFile], aim: Destination, progress: Progress | None = None
    ) -> list[FetchedFile]:
        """Download files from all nodes in parallel. Failures are reported per file."""
        by_node = group_pairs((file.node, file) for file in files)
        work = asyncio.gather(*(self._fetch_node(each, aim) for each in by_node.values()))
        total = sum(file.size for file in files)
        if progress is not None:
            reporter = asyncio.ensure_future(self._report_progress(total, progress))
            work.add_done_callback(lambda _: reporter.cancel())
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
                    return FetchedFile(file, target, "the node no longer has the file")
                file = found
            try:
                is_new = await self._try_fetch(file, target, aim)
            except OSError as failure:
                error = failure.strerror or str(failure)
                if error != CHANGED_MESSAGE:
                    break
                error = "the file changed during the download; fetch it again after the last write"
            else:
                self._done_bytes += file.size
                return FetchedFile(file, target, is_new=is_new)
        return FetchedFile(file, target, error)

    async def _refresh(self, file: WrittenFile) -> WrittenFile | None:
        """Query the present size and version of a file. Return None if the file was removed."""
        exactly = "".join(f"[{c}]" if c in "*?[" else c for c in file.path)
        found = await list_files(self._context, [exactly], None, [file.node])
        return next((replace(each, also=file.also) for each in found.files if each.path == file.path), None)

    async def _try_fetch(self, file: WrittenFile, target: Path, aim: Destination) -> bool:
        """Download a file once.

        Returns:
            Whether the file is new on this machine.

        Raises:
            OSError: If the file cannot be read or stored.
        """
        incoming = await self._acquire_target(file, target, aim)
        if incoming is None:
            return False
        self._downloads[file] = incoming
        try:
            await self._download_with_retries(file, incoming)
            return await asyncio.to_thread(self._store, file, target, incoming)
        except OSError as error:
            if self._end_reason or error.errno == errno.ENOSPC or CHANGED_MESSAGE in (error.strerror, str(error)):
                incoming.drop()  # delete a partial file that cannot be resumed
            raise
        finally:
            del self._downloads[file]
            incoming.release()

    async def _acquire_target(self, file: WrittenFile, target: Path, aim: Destination) -> IncomingOutput | None:
        """Start a download. First wait for other clients' downloads to the same path. Return None if the file is
        already here.

        Raises:
            OSError: If the file cannot be stored, or the other client's download makes no progress.
        """
        since, at = time.monotonic(), -1
        while not await asyncio.to_thread(self._is_fetched, file, target, aim):
            try:
                return await asyncio.to_thread(self._begin_download, file, target, aim.folder)
            except DownloadInProgress as other:
                if other.at != at:
                    since, at = time.monotonic(), other.at
                elif time.monotonic() - since > self._stall_timeout or self._end_reason:
                    raise
            await asyncio.sleep(PROGRESS_INTERVAL)
        return None

    @property
    def _end_reason(self) -> str:
        """Error text if another client or the pool's limits ended the pool; else ""."""
        return "" if self._context.external_end is None else str(self._context.external_end.error())

    @property
    def _stall_timeout(self) -> float:
        return TEARDOWN_STALL_TIMEOUT if self._context.leaving else STALL_TIMEOUT

    def _is_fetched(self, file: WrittenFile, target: Path, aim: Destination) -> bool:
        """Check whether the file is already on this machine. Move it to ``target`` from its other possible path."""
        for row in self._record.copies_of(file):
            if row.target == str(target):
                return True
            before = Path(row.target)
            if before in aim.possible_targets(file) and not os.path.lexists(target):
                make_folders(target, aim.folder)
                # The earlier copy is missing if another client has just moved it to the same target.
                with suppress(FileNotFoundError):
                    before.rename(target)
                self._record.add(file, target, row.sha256)
                return True
        self._may_replace(file, target)
        return False

    def _may_replace(self, file: WrittenFile, target: Path) -> bool:
        """Check whether the local file is an unmodified earlier version of the same file.

        Raises:
            OSError: If another file or a modified file has this path.
        """
        if not os.path.lexists(target):
            return False
        row = self._record.latest_at(target)
        if row is not None and row.path == file.path and row.node in (file.node, *file.also):
            if row.is_unchanged:
                return True
            raise OSError(f"not overwriting {target}: the file was modified after the download")
        if target.is_symlink() or not target.is_file() or target.stat().st_size != file.size:
            raise OSError(f"not overwriting {target}: it is another file")
        return False  # the local file has the size of the node's file, so only a comparison of hashes can decide

    def _begin_download(self, file: WrittenFile, target: Path, folder: Path) -> IncomingOutput:
        make_folders(target, folder)
        incoming = IncomingOutput(folder, f"{target}\0{file.node}", file.size, file.version)
        needed = file.size - incoming.at
        free = shutil.disk_usage(folder).free
        if needed and needed > free - SPARE_BYTES:
            incoming.drop()
            raise OSError(f"not enough disk space in {folder}: {needed:,} bytes needed, {free:,} free")
        return incoming

    async def _download_with_retries(self, file: WrittenFile, incoming: IncomingOutput) -> None:
        """Download all bytes of a file and resume after each loss of the link.

        Raises:
            OSError: If the file changed, cannot be written here, or the node stopped sending.
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
                await asyncio.sleep(0.1)  # pause before the next try, because the link is still reconnecting
        raise OSError(reason)

    async def _download_with_timeout(self, link: Link, path: str, incoming: IncomingOutput) -> None:
        """Download as long as bytes arrive. Send a silent node no second request, because it answers when it resumes.

        Raises:
            ConnectionError: If the link is down, the node is silent or its disk does not respond. The received part
                remains for the next attempt.
        """
        download = asyncio.ensure_future(self._download(link, path, incoming))
        at, since = incoming.at, time.monotonic()
        try:
            while not download.done():
                await asyncio.wait([download], timeout=PROGRESS_INTERVAL * 5)
                if incoming.at != at:
                    at, since = incoming.at, time.monotonic()
                stalled = time.monotonic() - since
                if not download.done() and min(link.silence_seconds, stalled) > max(
                    SILENCE_TIMEOUT, self._stall_timeout
                ):
                    raise ConnectionError(f"node {link.node} {link.silence_text}")
                if not download.done() and stalled > STALL_TIMEOUT + at / MIN_READ_RATE:
                    raise ConnectionError(f"node {link.node} has sent nothing for {stalled:.0f} s")
            download.result()
        finally:
            download.cancel()

    async def _download(self, link: Link, path: str, incoming: IncomingOutput) -> None:
        # Download over the link, because standalone nodes open no port for direct downloads.
        direct = self._context.registry.direct
        if self._context.is_standalone or not await direct.download_output(link, path, incoming):
            await link.fetch_output(path, incoming)

    def _store(self, file: WrittenFile, target: Path, incoming: IncomingOutput) -> bool:
        """Move a complete download to its path. Return whether the content at this path has changed."""
        incoming.check()
        instead = self._may_replace(file, target)
        if not instead and target.is_file() and filecmp.cmp(incoming.path, target, shallow=False):
            incoming.drop()
            self._record.add(file, target, incoming.sha256)
            return False
        if instead and (problem := inspect_content(incoming.path, target.name)[0]):
            if self._keeps_whole:
                incoming.drop()
                self.torn.append(file)
                raise OSError(f"the file {problem}; the earlier version was kept")
            instead = not self._set_aside(file, target)
        try:
            incoming.move_to(target, file.changed_at, instead=instead)
        except FileExistsError as error:
            incoming.drop()
            raise OSError(f"not overwriting {target}: it is another file") from error
        self._record.add(file, target, incoming.sha256)
        return True

    def _set_aside(self, file: WrittenFile, target: Path) -> bool:
        """Rename the whole earlier version of a file that is cut off now, because no other whole version may exist."""
        row = self._record.latest_at(target)
        if row is None or inspect_content(target, target.name)[0]:
            return False
        aside = target.replace(target.with_name(f"{target.name}{EARLIER_SUFFIX}"))
        self._record.add(replace(file, version=row.version), aside, row.sha256)
        return True


def make_folders(target: Path, folder: Path) -> None:
    """Create the folders that will contain a file.

    Raises:
        OSError: If they cannot be created, belong to another user, contain a link that leads outside, or include the
            folder for partial downloads.
    """
    if PARTS in target.relative_to(folder).parts:
        raise OSError(f"the folder name {PARTS} is reserved for partial downloads; rename the folder on the node")
    folder.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise OSError(f"a symbolic link in {target} leads out of {folder}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise OSError(f"cannot create the folder {target.parent}: a file of that name exists") from error
    if target.parent != folder:
        check_folder_owner(folder / target.relative_to(folder).parts[0])


RECORD = "outputs.jsonl"  # name of the record of downloaded files, which is in the folder of the pool
FOLDER = "outputs"  # name of the default download folder, which is in the client's working folder
QUIET_TIME = 2.0  # seconds without a change after which a file counts as complete
FETCH_INTERVALS = (2.0, 15.0)  # seconds: delay of the first scan during a run, maximum delay of later scans
CHECKPOINT_INTERVAL = 5.0  # seconds; maximum delay of later scans if runs may restart, because work would be lost
UPLOAD_TIMEOUT = 300.0  # seconds for which a teardown waits for the upload of a checkpoint to a store
MAX_ENDED_RUNS = 32  # maximum number of ended runs that await a scan; the teardown fetches the files of older runs
MAX_NAMED_FILES = 5  # maximum number of files that a receipt names per node


def output_patterns(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the patterns of the files to download during runs of a pool.

    Args:
        spec: Description of the pool; see :meth:`PoolSpec.describe`.
    """
    return *(spec.get("image", {}).get("outputs") or ()), *checkpoint_patterns(spec)


def checkpoint_patterns(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the patterns of the files of which only the newest complete sets are kept."""
    options = spec.get("options", {})
    own = options.get("on_loss") == "restart" or options.get("checkpoint_store") or options.get("resume")
    return *(spec.get("image", {}).get("checkpoints") or ()), *([f"{CHECKPOINTS}/**"] if own else ())


def find_checkpoints(row: PoolRow, run: str, *, is_local: bool, quiet: float = 0.0) -> dict[str, FetchedRow]:
    """Return the newest unchanged copy of each checkpoint of a run on this machine, also of files on lost machines.

    Args:
        row: Pool of the run.
        run: Id of the run. The folders of other runs are omitted.
        is_local: Whether the ranks work in the user's own folder.
        quiet: Minimum seconds since the last change of a file, if the ranks work in the user's own folder.

    Returns:
        The files, by path below the ranks' working folder.
    """
    folder = f"{CHECKPOINTS}/{row.spec['options'].get('resume') or run}/"
    rows = _own_files(row, quiet) if is_local else OutputRecord(pool_path(row.key) / RECORD).rows()
    patterns = output_patterns(row.spec)
    own = (each for each in rows if each.path.startswith(folder) or not each.path.startswith(f"{CHECKPOINTS}/"))
    found = group_pairs((each.path, each) for each in own if patterns and matches(each.path, patterns))
    return {path: _select_newest(copies) for path, copies in found.items()}


def _select_newest(copies: list[FetchedRow]) -> FetchedRow:
    """Return the newest copy, if possible one that is not cut off."""
    copies.sort(key=lambda row: row.left[1], reverse=True)
    whole = (row for row in copies if len(copies) > 1 and not inspect_content(Path(row.target), row.path)[0])
    return next(whole, copies[0])


def _own_files(row: PoolRow, quiet: float) -> Iterator[FetchedRow]:
    folder, patterns = row.spec.get("cwd", ""), checkpoint_patterns(row.spec)
    for path, found in FolderWalk(folder, {}, {}, patterns).files() if folder and patterns else ():
        if found.st_mtime <= time.time() - quiet:
            left = found.st_size, found.st_mtime_ns
            yield FetchedRow(f"{folder}/{path}", 0, path, file_version(found), left)


def checkpoint_folders(row: PoolRow, ledger: Ledger) -> list[str]:
    """Return the folders of ``sky.checkpoint_dir()`` of a pool's runs, relative to the working folder of the ranks."""
    options = Options.from_json(row.spec["options"])
    runs = ledger.runs(row.token) if options.uses_checkpoints else ()
    return sorted({f"{CHECKPOINTS}/{options.resume or each.run}" for each in runs})


def delete_checkpoints(row: PoolRow, folders: Iterable[str], *, is_local: bool, only_look: bool) -> int:
    """Delete the checkpoints that an ended pool has left on this machine. Changed downloads stay.

    Args:
        row: The pool.
        folders: Folders from :func:`checkpoint_folders`.
        is_local: Whether the ranks worked in the user's own folder.
        only_look: Delete nothing; only return the size.

    Returns:
        Bytes of the files.
    """
    base = Path(row.spec.get("cwd", "")) / ("" if is_local else FOLDER)
    rows = _own_files(row, 0.0) if is_local else OutputRecord(pool_path(row.key) / RECORD).rows()
    found = [each for each in rows if _checkpoint_folder(each.path) in folders and base in Path(each.target).parents]
    for path in [Path(each.target) for each in found if not only_look]:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # rmdir fails if the folder contains other files, which must stay
            for parent in path.relative_to(base).parents[:-1]:
                (base / parent).rmdir()
    return sum(each.left[0] for each in found)


class FetchResult(NamedTuple):
    """Result of a download.

    Attributes:
        files: Each requested file.
        notes: Messages to the user.
    """

    files: list[FetchedFile]
    notes: list[str]


class Outputs:
    """Output files of one pool, for one client.

    Attributes:
        torn_versions: Node and path -> version of a file that is cut off, so that its earlier version was kept.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._record = OutputRecord(context.archive.folder / RECORD)
        self._base = Path.cwd() / FOLDER
        self._patterns: Sequence[str] = output_patterns(context.row.spec)
        self._fetch_lock = asyncio.Lock()
        self.torn_versions: dict[tuple[int, str], str] = {}
        # Path and version of files of outdated checkpoints, which are not downloaded again.
        self._outdated = set[tuple[str, str]]()
        # Ids of ended runs whose files must be listed once more; a dict keeps their order.
        self._ended_runs: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._fetch_task: asyncio.Task[None] | None = None

    async def files(self, patterns: Sequence[str] = (), run: str | None = None, *, whole: bool = True) -> FileListing:
        """List output files. Empty for local pools, whose ranks work in this machine's own folders.

        Args:
            patterns: Patterns, as ``model.output_files.normalize_pattern`` accepts them. Empty: all files.
            run: Only files that changed during this run. None: since the pool was created.
            whole: Whether to request further pages if the files do not fit into one answer.

        Returns:
            The files, and the nodes that could not list their files.

        Raises:
            UsageError: If a pattern leads out of the working folder.
        """
        with convert_errors("", UsageError, ValueError):
            valid_patterns = [normalize_pattern(each) for each in patterns]
        if self._context.is_local:
            return FileListing([], 0, {}, {})
        return await list_files(self._context, valid_patterns, run, whole=whole)

    async def unfetched(self) -> Unfetched:
        """List the files that a teardown would find unfetched now."""
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
        patterns: Sequence[str] | None = (),
        to: Path | None = None,
        run: str | None = None,
        progress: Progress | None = None,
    ) -> FetchResult:
        """Download output files of the pool.

        Args:
            patterns: Patterns of the files. Empty: all files. None: the outputs and checkpoints that runs download.
            to: Destination folder. None: ``outputs/RUN`` or ``outputs/POOL``.
            run: Only files that changed during this run. None: since the pool was created.
            progress: Called with the downloaded bytes and the total bytes.

        Returns:
            The files and notes to the user.

        Raises:
            UsageError: If a pattern leads out of the working folder.
            PoolError: If no node could list its files.
        """
        if patterns is None and not self._patterns:
            return FetchResult([], [])
        found = await self.files(self._patterns if patterns is None else patterns, run)
        notes = [f"node {node} could not list its files: {reason}" for node, reason in found.failures.items()]
        if notes and not found.folders:
            raise PoolError(f"Cannot fetch files of pool {self._context.name}: {'; '.join(notes)}")
        if found.omitted_count:
            notes.append(
                f"{found.omitted_count:,} more files exist than nodes can list: narrow the selection with patterns"
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
        keeps_whole: bool = False,
    ) -> list[FetchedFile]:
        torn = self.torn_versions.items() if keeps_whole else ()
        files = [file for file in files if ((file.node, file.path), file.version) not in torn]
        destination = Destination(
            await asyncio.to_thread(self._folder, run, to) if files else Path(), self._node_folders()
        )
        if not self._is_running(run):
            destination = destination._replace(alone=found.single_node_paths)
        async with self._fetch_lock:
            fetcher = OutputFetcher(self._context, self._record, tries=tries, keeps_whole=keeps_whole)
            fetched = await fetcher.fetch(files, destination, progress)
        self.torn_versions |= {(file.node, file.path): file.version for file in fetcher.torn}
        for each in fetched:
            if each.is_new or (each.error and tries > 1):
                self._emit_fetched(run or "", each)
        return fetched

    def _folder(self, run: str | None, to: Path | None) -> Path:
        if to is not None:
            return to.absolute()
        folder = self._base / (run or self._context.row.key)
        folder.mkdir(parents=True, exist_ok=True)
        check_folder_owner(self._base)
        # A .gitignore file prevents downloads from being committed, or uploaded to the next pool.
        ignored = folder / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n", encoding="utf-8")
        return folder

    def _node_folders(self) -> dict[int, str]:
        """Return a subfolder per node, named after the node's only rank, or after the node if it has several ranks."""
        if len(self._context.links) == 1:
            return {}
        letter = "r" if self._context.ranks_per_node == 1 else "n"
        return {link.node: f"{letter}{link.node}" for link in self._context.links}

    def _is_running(self, run: str | None) -> bool:
        runs = self._context.view.runs
        selected = runs.values() if run is None else filter(None, (runs.get(run),))
        return any(each.state == "running" and each.ended < each.total for each in selected)

    def _emit_fetched(self, run: str, each: FetchedFile) -> None:
        file = each.file
        self._news.emit(
            events.OutputFetched(
                pool=self._context.name, run=run, node=file.node, path=file.path, size=file.size,
                target=str(each.target), error=each.error,
            )
        )  # fmt: skip

    # -- checkpoints ---------------------------------------------------------------------------------------

    async def download_checkpoints(self, run: str) -> FileListing:
        """Download the output files that the ranks of a run have written, and return the listing.

        Raises:
            PoolError: If no node could list its files.
        """
        found = await self.files(self._patterns)
        if found.failures and not found.folders:
            raise PoolError(f"Cannot list the checkpoints of run {run}: {'; '.join(found.failures.values())}")
        await self._fetch_files(found, self._wanted(found.files), run, keeps_whole=True)
        return found

    def checkpoints(self, run: str) -> dict[str, FetchedRow]:
        """Return the checkpoints of a run on this machine; see :func:`find_checkpoints`."""
        quiet = QUIET_TIME if self._is_running(run) else 0.0
        return find_checkpoints(self._context.row, run, is_local=self._context.is_local, quiet=quiet)

    def stored_copy_folder(self, run: str) -> Path:
        """Return a new path for a copy from a store, beside the downloads of other clients."""
        return self._folder(run, None) / f"store-{secrets.token_hex(4)}"

    def remove_outdated(self, rows: Iterable[FetchedRow]) -> None:
        """Delete downloaded files of checkpoints that are not kept, and do not download them again."""
        patterns = checkpoint_patterns(self._context.row.spec)
        for row in rows:
            if not self._context.is_local and patterns and matches(row.path, patterns) and row.is_unchanged:
                self._outdated.add((row.path, row.version))
                # Delete only copies in the download folder, because the user may have fetched others elsewhere.
                if Path(row.target).is_relative_to(self._base):
                    Path(row.target).unlink(missing_ok=True)

    def _wanted(self, files: Iterable[WrittenFile]) -> list[WrittenFile]:
        return [file for file in files if (file.path, file.version) not in self._outdated]

    # -- during runs ---------------------------------------------------------------------------------------

    def start_fetching(self) -> None:
        """Start to fetch the files that match the image's output patterns, during each run and after its end.

        Includes runs of other clients and earlier runs that the nodes report.
        """
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
        # The teardown does not wait for runs in the view: a run whose client died between two attempts never ends.
        runs = self._context.view.runs if self._context.view.state != "stopping" else ()
        return [
            *self._context.registry.runs,
            *(run for run in runs if run not in self._context.registry.runs and self._is_running(run)),
        ]

    async def _fetch_in_background(self) -> None:
        warned = ""
        while (self._ended_runs or self._active_runs) and not self._context.detached:
            try:
                await self._fetch_until_idle()
            except OSError as error:  # for example, a file was deleted between the listing and its download
                if str(error) != warned:
                    warned = str(error)
                    self._news.emit_warning(f"cannot fetch output files now: {error}")
                await asyncio.sleep(FETCH_INTERVALS[0])

    async def _fetch_until_idle(self) -> None:
        """Scan active runs, and each ended run once. Return when no run remains.

        The interval of the scans grows while no file changes.
        """
        delay, longest = FETCH_INTERVALS
        longest = min(longest, CHECKPOINT_INTERVAL) if self._context.options.on_loss == "restart" else longest
        while (self._ended_runs or self._active_runs) and not self._context.detached:
            if not self._ended_runs:
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._wake.wait()
                delay = min(longest, delay * 1.5)
            while self._ended_runs:
                run = next(iter(self._ended_runs))
                del self._ended_runs[run]
                found = await self.files(self._patterns, run)
                await self._fetch_files(found, self._wanted(found.files), run)
                await self._context.checkpoints.update(run, found)
            for run in self._active_runs:
                found = await self.files(self._patterns, run, whole=False)
                delay = FETCH_INTERVALS[0] if any(file.age <= QUIET_TIME for file in found.files) else delay
                quiet = [file for file in self._wanted(found.files) if file.age > QUIET_TIME]
                await self._fetch_files(found, quiet, run, tries=1, keeps_whole=True)
                await self._context.checkpoints.update(run, found)

    async def finish_local_runs(self) -> str:
        """Wait until the checkpoints of a local pool are saved in the store, and remove empty folders for them.

        Return a description of the checkpoint that was not saved in time, or "".
        """
        late = await self._finish_fetching()
        clear_checkpoints(self._context.setup.cwd, self._checkpoint_folders())
        return late

    async def _finish_fetching(self) -> str:
        """Wait until the files of ended runs are saved. Describe a checkpoint that was not saved in time; else ""."""
        begun, task = time.monotonic(), self._fetch_task
        while task is not None and not task.done():
            await asyncio.wait([task], timeout=1.0)
            name, since = self._context.checkpoints.upload
            if name and time.monotonic() - max(begun, since) > UPLOAD_TIMEOUT:
                task.cancel()
                return f"{name} was not uploaded within {UPLOAD_TIMEOUT:.0f} s. Its copies on this machine are complete"
        return ""

    def stop_fetching(self) -> None:
        """Stop the background downloads. The next download resumes partial files."""
        if self._fetch_task is not None:
            self._fetch_task.cancel()

    # -- at the teardown -----------------------------------------------------------------------------------

    async def save(self, *, give_up: bool, most: int | None = None) -> RemainingFiles:
        """Fetch the files that would be lost with the pool's machines, and describe the remaining ones.

        Args:
            give_up: Fetch nothing.
            most: Maximum bytes to fetch. None: as the pool's options state.

        Returns:
            The remaining files, for the receipt.
        """
        context = self._context
        # All runs have been stopped. A run is still registered only if its nodes do not answer, so do not wait for it.
        if self._fetch_task is not None and (give_up or self._context.registry.runs):
            self._fetch_task.cancel()
        late = await self._finish_fetching()
        if not await asyncio.to_thread(self._had_runs):
            return RemainingFiles()
        trouble = late
        if self._patterns and not give_up:
            found = await self.files(self._patterns)
            trouble = await self._fetch_with_progress(found, self._unfetched(found)) or trouble
        found = await self.files()
        if context.ends_machines and not give_up:
            room = int(context.options.keep_outputs) if most is None else most
            trouble = await self._fetch_with_progress(found, newest_within(self._unfetched(found), room)) or trouble
        remaining = self._unfetched(found)
        by_node = {node: [file for file in remaining if file.node == node] for node in found.folders}
        descriptions = [
            self._describe_unfetched(node, found.folders[node], files) for node, files in by_node.items() if files
        ]
        unlisted = [f"node {node} could not list its files ({reason})" for node, reason in found.failures.items()]
        notes = [trouble] if trouble else []
        if found.omitted_count:
            unlisted.append(f"at least {found.omitted_count:,} more files that were not listed")
        if context.ends_machines:
            return RemainingFiles(notes, lost=[*descriptions, *unlisted])
        if not give_up:
            await self._clear_nodes(found, remaining)
        places = [(node, found.folders[node]) for node, files in by_node.items() if files]
        more = unlisted[-1:] if found.omitted_count else []
        return RemainingFiles([*(f"{REMAINS}{each}" for each in [*descriptions, *more]), *notes], places=places)

    async def _clear_nodes(self, found: FileListing, remaining: Sequence[WrittenFile]) -> None:
        """Delete the folders of ``sky.checkpoint_dir()`` on hosts, except those with a file that this machine lacks."""
        unfetched = {_checkpoint_folder(file.path) for file in remaining}
        rows = await asyncio.to_thread(self._record.rows)
        here = {row.path for row in rows} | self._context.checkpoints.resumed.keys()
        folders = [each for each in self._checkpoint_folders() if each not in unfetched]

        async def clear(link: Link) -> None:
            own = {file.path: file.version for file in found.files if link.node in (file.node, *file.also)}
            files = [{"path": path} for path in here - own.keys()]
            files += [{"path": path, "version": version} for path, version in own.items()]
            files = [file for file in files if _checkpoint_folder(file["path"]) in folders]
            with suppress(OSError):  # ignore a failure: the node then keeps its checkpoint folders
                async with asyncio.timeout(TEARDOWN_STALL_TIMEOUT):
                    await link.ask({"t": "clear", "folders": folders, "files": files})

        if folders and not (found.failures or found.omitted_count):
            copies = [row.target for row in rows if _checkpoint_folder(row.path) in folders]
            with suppress(OSError):  # if the local copies cannot be flushed to disk, the nodes keep their files
                await asyncio.to_thread(_flush_to_disk, copies)
                await asyncio.gather(*map(clear, self._context.present_links))

    def _checkpoint_folders(self) -> list[str]:
        self._news.records.flush()  # without a flush, the ledger may not contain a short run yet
        with suppress(LedgerError):
            return checkpoint_folders(self._context.row, self._context.ledger)
        return []

    def _had_runs(self) -> bool:
        """Check whether any run could have written files."""
        with suppress(LedgerError):
            return bool(self._context.ledger.runs(self._context.token))
        return True

    async def _fetch_with_progress(self, found: FileListing, files: Sequence[WrittenFile]) -> str:
        """Fetch files and publish the progress of the teardown. Return the error, or ""."""

        report = self._news.emit_teardown_progress

        def show_progress(done: int, total: int) -> None:
            report(f"downloading output files: {format_size(done)} of {format_size(total)}")

        if files:
            try:
                await self._fetch_files(found, files, None, progress=show_progress)
            except OSError as error:
                return f"output files could not be downloaded: {error}"
            finally:
                report("")
        return ""

    def _unfetched(self, found: FileListing) -> list[WrittenFile]:
        return [file for file in self._wanted(found.files) if not self._record.copies_of(file)]

    def _describe_unfetched(self, node: int, folder: str, files: Sequence[WrittenFile]) -> str:
        """Describe a node's unfetched files: number, size, place and the largest by name."""
        largest = sorted(files, key=lambda file: -file.size)[:MAX_NAMED_FILES]
        named = ", ".join(f"{sanitize_line(file.path)} ({format_size(file.size)})" for file in largest)
        more = f" and {len(files) - len(largest):,} more" if len(files) > len(largest) else ""
        many = f"{len(files):,} files" if len(files) > 1 else "1 file"
        where = f"node {node} ({self._context.machines[node].address}) in {folder}"
        return f"{many}, {format_size(sum(file.size for file in files))}, on {where}: {named}{more}"


def _flush_to_disk(paths: Sequence[str]) -> None:
    """Flush files and their folders, so that a power cut cannot delete the only copies."""
    for path in dict.fromkeys([*paths, *(str(Path(each).parent) for each in paths)]):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checkpoint_folder(path: str) -> str:
    return "/".join(path.split("/", 2)[:2])


def newest_within(files: Sequence[WrittenFile], most: int) -> list[WrittenFile]:
    """Return the files that fit into ``most`` bytes in total, chosen from the newest on."""
    chosen = []
    for file in sorted(files, key=lambda file: -file.changed_at):
        if file.size <= most:
            chosen.append(file)
            most -= file.size
    return chosen
