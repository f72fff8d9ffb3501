"""Copies of checkpoints on all nodes, from which the next attempt of a run continues.

The client downloads output files during a run (``output_files``). Before the next attempt it copies them to the nodes
that lack them: to machines that replaced lost ones, and to nodes whose ranks did not save. Files that ranks of a node
wrote themselves are never replaced.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import file_digest
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.output_files import matches
from skyward_core.model.specs import Options
from skyward_core.node.bootstrap.receive_working_folder import PARTIAL_SUFFIX
from skyward_core.pool.agent_link import CLOCK_TOLERANCE, Link
from skyward_core.pool.blob_distribution import BlobDistributor, BlobFile, drop_blobs
from skyward_core.pool.checkpoint_sets import (
    CheckpointFile,
    CheckpointSet,
    find_sets,
    inspect_content,
    select_latest,
    select_outdated,
)
from skyward_core.pool.checkpoint_store import CheckpointStore, LocalFile, StoredFile
from skyward_core.pool.direct_file_transfers import MIN_DIRECT_SIZE
from skyward_core.pool.output_files import (
    FetchedRow,
    FileListing,
    checkpoint_patterns,
    find_checkpoints,
    make_folders,
)
from skyward_core.pool.silent_and_missing_nodes import is_own_address
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.util.content_hash import NAME_LENGTH, hash_bytes
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.model.output_files import WrittenFile
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import FetchStatus, RestoreAnswer

PATIENCE = 30.0  # seconds to copy a file, in addition to the time for its bytes at MIN_RATE
MIN_RATE = 5e6  # bytes per second of a slow disk or network


class CheckpointCopies:
    """Copies of one pool's checkpoints on its nodes and in a store, made by one client.

    Attributes:
        resumed: Path -> checkpoint of the run that the option ``resume`` names.
        has_resumed: Whether the checkpoints in ``resumed`` are on the nodes.
        upload: Checkpoint that is being uploaded to the store, and the monotonic time of its start.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._restored: dict[tuple[Link, str], str] = {}  # node and path -> version that this client has copied there
        # Run -> path and time of the files in the newest saved checkpoints.
        self._saved: dict[str, frozenset[tuple[str, float]]] = {}
        # Content hash -> lock, so that the same content is not uploaded twice at once.
        self._copying = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self.resumed: dict[str, FetchedRow] = {}
        self._resume_lock, self.has_resumed = asyncio.Lock(), False
        # Folder on this machine with the checkpoints that were downloaded from the store.
        self._loaded: Path | None = None
        self.upload = "", 0.0

    async def restore(self, run: str) -> None:
        """Copy the newest complete checkpoints of a run to all nodes that lack them.

        Raises:
            OSError: If a file cannot be read, or a node did not store it. The other nodes have their copies.
            PoolError: If no node could list its files.
        """
        if self._context.is_local:
            return  # ranks of a local pool work in one folder, so each node already has all files
        outputs = self._context.outputs
        found = await outputs.download_checkpoints(run)
        rows = self.resumed | await asyncio.to_thread(outputs.checkpoints, run)
        await self._place(rows, found)

    async def _place(self, rows: Mapping[str, FetchedRow], found: FileListing) -> None:
        latest = await asyncio.to_thread(_select_latest, rows)
        failures: dict[Link, str] = {}
        for path, links in self._missing(found, latest).items():
            failures |= await self._copy(latest[path], [link for link in links if link not in failures], found)
        if failures:
            raise OSError("; ".join(f"node {link.node} {reason}" for link, reason in failures.items()))

    async def resume(self) -> None:
        """Copy the checkpoints of the run that the option ``resume`` names to the nodes, once.

        Raises:
            OSError: If the checkpoints cannot be read, or a node did not store them.
        """
        run = self._context.options.resume
        async with self._resume_lock:
            if run is None or self.has_resumed:
                return
            rows = await asyncio.to_thread(self._earlier_rows, run)
            if not rows and (store := self._store) is not None:
                self._loaded = await asyncio.to_thread(self._context.outputs.stored_copy_folder, run)
                loaded = await asyncio.to_thread(store.load, run, self._loaded)
                rows = {file.path: _stored_row(file, path) for file, path in loaded}
            if self._context.is_local:
                await asyncio.to_thread(_copy_missing, rows, Path(self._context.setup.cwd))
            else:
                self.resumed = rows
                await self._place(rows, FileListing([], 0, {}, {}))
            self.has_resumed = True
        if not rows:
            self._context.news.emit_warning(
                f"no checkpoints of run {run} are on this machine or in a store. Ranks find only those on their nodes"
            )

    async def remove_loaded(self) -> None:
        """After the end of the pool, delete the local folder with checkpoints that were downloaded from the store."""
        if self._loaded is not None:
            await asyncio.to_thread(shutil.rmtree, self._loaded, ignore_errors=True)

    def _earlier_rows(self, run: str) -> dict[str, FetchedRow]:
        """Return the checkpoints on this machine that an earlier run wrote."""
        ledger, row, found = self._context.ledger, self._context.ledger.run(run), dict[str, FetchedRow]()
        for pool in reversed([*ledger.live_pools(), *ledger.ended_pools(limit=-1)]):
            if pool.spec["options"].get("resume") == run or (row is not None and row.token == pool.token):
                found |= find_checkpoints(pool, run, is_local=False) or find_checkpoints(pool, run, is_local=True)
        return found

    @cached_property
    def _store(self) -> CheckpointStore | None:
        url = self._context.options.checkpoint_store
        return CheckpointStore(url) if url else None

    async def update(self, run: str, found: FileListing) -> None:
        """Handle new downloads of a run: report the newest complete checkpoint, copy it to the store and to a second
        machine, and delete the oldest ones.

        Args:
            run: Id of the run.
            found: Output files that the nodes list.
        """
        patterns = checkpoint_patterns(self._context.row.spec)
        if not patterns:
            return  # the pool's options name no checkpoint files
        rows = await asyncio.to_thread(self._context.outputs.checkpoints, run)
        sets = await asyncio.to_thread(_find_sets, rows)
        latest = select_latest(sets)
        content = frozenset((file.path, file.changed_at) for each in latest for file in each.files)
        if not content or self._saved.get(run) == content:
            return
        is_here = all(is_own_address(link.welcome["address"]) for link in self._context.present_links)
        place = events.THIS_MACHINE if is_here else "this client"
        try:
            if self._store is not None:
                options = self._context.options
                chosen = [rows[path] for path, _ in content]
                files = {row.path: LocalFile(Path(row.target), *row.left, row.sha256) for row in chosen}
                name = options.resume or run
                self.upload = f"checkpoint {latest[0].name} of run {run}", time.monotonic()
                if not await asyncio.to_thread(self._store.save, name, files, options.keep_checkpoints):
                    return  # save nothing now, because a file changed during the upload; the next scan saves it
                place = self._store.url
        except (OSError, UsageError) as error:
            self._context.news.emit_warning(f"checkpoints of run {run} are not saved: {error}")
            if self._context.is_local:
                return
        else:
            self._saved[run] = content
        finally:
            self.upload = "", 0.0
        for newest in [each for each in latest if matches(each.files[0].path, patterns)][:1]:
            self._context.news.emit(
                events.CheckpointSaved(
                    pool=self._context.name, run=run, name=newest.name, size=newest.size, saved_at=newest.changed_at,
                    place=place,
                )
            )  # fmt: skip
        limits = self._context.options.keep_checkpoints, int(self._context.options.checkpoint_limit)
        outdated = [rows[file.path] for each in select_outdated(sets, *limits) for file in each.files]
        await asyncio.to_thread(self._context.outputs.remove_outdated, outdated)
        is_running = (view := self._context.view.runs.get(run)) is not None and view.state == "running"
        if is_running and not self._context.is_local and self._context.options.uses_checkpoints:
            own = {path: rows[path] for path, _ in content}
            await self._copy_to_neighbour(own, [row.path for row in outdated], found)

    async def has_saved_since(self, run: str, since: float) -> bool:
        """Check whether ranks have changed a checkpoint file of a run after a Unix time.

        Raises:
            PoolError: If no node could list its files.
        """
        if self._context.is_local:
            rows = await asyncio.to_thread(find_checkpoints, self._context.row, run, is_local=True)
            return any(row.left[1] / 1e9 > since for row in rows.values())
        found = await self._context.outputs.files(checkpoint_patterns(self._context.row.spec), run)
        if found.failures and not found.folders:
            raise PoolError("; ".join(found.failures.values()))
        return any(file.changed_at > since for file in found.files)

    def _missing(self, found: FileListing, rows: Mapping[str, FetchedRow]) -> dict[str, list[Link]]:
        """Return, by path, the nodes that lack a file or have an earlier version of it."""
        torn = self._context.outputs.torn_versions
        there = {(node, file.path) for file in found.files for node in (file.node, *file.also)}
        missing = {
            path: [
                link
                for link in self._context.present_links
                if ((link.node, path) not in there or (link.node, path) in torn)
                and self._restored.get((link, path)) != row.version
            ]
            for path, row in rows.items()
        }
        return {path: links for path, links in missing.items() if links}

    async def _copy_to_neighbour(
        self, rows: Mapping[str, FetchedRow], outdated: Iterable[str], found: FileListing
    ) -> None:
        """Copy checkpoints to a second machine, because a machine may be lost while no client is connected."""
        links, machines = self._context.present_links, self._context.machines
        nodes: dict[str, set[int]] = {path: set() for path in rows}
        for (link, path), version in self._restored.items():
            if path in rows and rows[path].version == version:
                nodes[path].add(link.node)
        for file in found.files:
            nodes.get(file.path, set()).update((file.node, *file.also))
        failures: dict[Link, str] = {}
        for path, holders in nodes.items():
            hosts = {machines[node].address for node in holders}
            others = [link for link in links if machines[link.node].address not in hosts]
            if len(hosts) == 1 and others:
                after = [link for link in others if link.node > min(holders)]
                neighbour = (after or others)[0]
                old = [each for each in outdated if (neighbour, each) in self._restored]
                failures |= await self._copy(rows[path], [neighbour], found, old)
        if failures:
            reasons = "; ".join(f"node {link.node} {reason}" for link, reason in failures.items())
            self._context.news.emit_warning(f"checkpoints are on one machine only: {reasons}")

    async def _copy(
        self, row: FetchedRow, links: Sequence[Link], found: FileListing, outdated: Sequence[str] = ()
    ) -> dict[Link, str]:
        """Copy a file to nodes, and delete outdated copies there. Return the reasons of failures."""
        size, changed_at = row.left
        limit = PATIENCE + size / MIN_RATE
        origin = next((file for file in found.files if (file.path, file.version) == (row.path, row.version)), None)
        failures: dict[Link, str] = {}
        request = {"t": "restore", "size": size, "path": row.path, "at": changed_at / 1e9, "outdated": list(outdated)}

        async def store(link: Link, name: str) -> None:
            torn = self._context.outputs.torn_versions.get((link.node, row.path))
            try:
                answer: RestoreAnswer
                async with asyncio.timeout(limit):
                    answer, _ = await link.ask(request | {"blob": name} | ({"instead": torn} if torn else {}))
                if reason := answer.get("error"):
                    raise OSError(reason)
            except TimeoutError:
                failures[link] = f"has not stored {row.path} after {limit:.0f} s. Check its disk"
            except OSError as error:
                failures[link] = f"cannot store {row.path}: {error}"
            else:
                self._restored[link, row.path] = row.version
                await drop_blobs(link, [name])

        rest = list(links)
        if origin is not None:
            # This name avoids a hash of the content, which would take as long as the transfer.
            name = hash_bytes(f"{origin.node}\0{row.path}\0{row.version}".encode(errors="surrogateescape"))
            async with self._copying[name]:
                rest = await self._pull(BlobFile(name, Path(row.target), size), origin, links, limit)
                await asyncio.gather(*(store(link, name) for link in links if link not in rest))
        if rest:
            name = (await asyncio.to_thread(_hash_of, row))[:NAME_LENGTH]
            # The nodes move the uploaded blob to its path, so a second file with the same content needs its own upload.
            async with self._copying[name]:
                unsent = await self._send(BlobFile(name, Path(row.target), size), row.path, rest, limit)
                await asyncio.gather(*(store(link, name) for link in rest if link not in unsent))
            failures |= unsent
        return failures

    async def _pull(self, blob: BlobFile, origin: WrittenFile, links: Sequence[Link], limit: float) -> list[Link]:
        """Let nodes fetch a file from the node whose ranks wrote it. Return the nodes that have not fetched it."""
        direct = self._context.registry.direct
        holder = next((link for link in self._context.present_links if link.node in (origin.node, *origin.also)), None)
        if holder is None or blob.size < MIN_DIRECT_SIZE or self._context.is_standalone:
            return list(links)
        request = {"t": "pull", "hash": blob.name, "size": blob.size, "from": await direct.address_of(holder)}
        request["output"] = {"path": origin.path, "version": origin.version}

        async def pull(link: Link) -> bool:
            answer: FetchStatus
            try:
                async with asyncio.timeout(limit):
                    if request["from"] is None or await direct.address_of(link) is None:
                        return False
                    answer, _ = await link.ask(request)
            except OSError:
                return False
            return "error" not in answer

        done = await asyncio.gather(*map(pull, links))
        return [link for link, is_done in zip(links, done, strict=True) if not is_done]

    async def _send(self, blob: BlobFile, path: str, links: Sequence[Link], limit: float) -> dict[Link, str]:
        """Send a file to nodes together, or one after the other if this fails. Return the reasons of failures."""
        try:
            async with asyncio.timeout(limit):
                await BlobDistributor(self._context, self._context.registry.direct).send(links, [blob])
        except OSError as error:
            if len(links) == 1:
                return {links[0]: f"did not receive {path}: {str(error) or f'not complete after {limit:.0f} s'}"}
            alone = [await self._send(blob, path, [link], limit) for link in links]
            return {link: reason for each in alone for link, reason in each.items()}
        return {}


class CheckpointCopy(NamedTuple):
    """A set of checkpoint files, the places that have all of its files, and the folder of its files on the client."""

    set: CheckpointSet
    places: list[str]
    folder: str

    def to_json(self) -> dict[str, Any]:
        """Return the copy as JSON types."""
        fields = {"name": self.set.name, "files": len(self.set.files), "size": self.set.size, "folder": self.folder}
        state = {"complete": not self.set.problem, "problem": self.set.problem, "places": self.places}
        return fields | {"saved_at": self.set.changed_at} | state


class CheckpointListing(NamedTuple):
    """Checkpoints of a run, the newest first, and the reasons why some places could not be queried."""

    copies: list[CheckpointCopy]
    problems: list[str]


def list_copies(row: PoolRow, run: str, found: FileListing, *, is_local: bool) -> CheckpointListing:
    """List the checkpoints of a run on this machine, on nodes and in the store.

    Args:
        row: Pool of the run.
        run: Id of the run.
        found: Output files that the nodes list.
        is_local: Whether the ranks work in the user's own folder.
    """
    here = find_checkpoints(row, run, is_local=is_local)
    options = Options.from_json(row.spec["options"])
    versions: dict[str, dict[str, list[tuple[int, float]]]] = {}  # place -> path -> size and time of each version
    for file in found.files:
        for node in (file.node, *file.also):
            versions.setdefault(f"node {node}", {})[file.path] = [(file.size, file.changed_at)]
    problems = [f"node {node} could not list its files: {reason}" for node, reason in found.failures.items()]
    if options.checkpoint_store:
        try:
            versions["store"] = CheckpointStore(options.checkpoint_store).stored_versions(options.resume or run)
        except (OSError, UsageError) as error:
            problems.append(str(error))
    elsewhere = {file.path: CheckpointFile(file.path, file.size, file.changed_at) for file in found.files}
    copies = []
    for each in _find_sets(here, {path: file for path, file in elsewhere.items() if path not in here}):
        targets = [here[file.path].target for file in each.files if file.path in here]
        places = ["client"] if len(targets) == len(each.files) else []
        places += [place for place, there in versions.items() if _has_all(there, each, exact=place == "store")]
        folder = os.path.commonpath([str(Path(target).parent) for target in targets]) if targets else ""
        copies.append(CheckpointCopy(each, places, folder))
    return CheckpointListing(copies, problems)


def _has_all(there: Mapping[str, list[tuple[int, float]]], found: CheckpointSet, *, exact: bool) -> bool:
    """Check whether a place has all files of a set, by size and time. Clocks of nodes may differ by a tolerance."""
    tolerance = 1e-3 if exact else CLOCK_TOLERANCE
    return all(
        any(size == file.size and abs(at - file.changed_at) <= tolerance for size, at in there.get(file.path, ()))
        for file in found.files
    )


def _find_sets(
    rows: Mapping[str, FetchedRow], others: Mapping[str, CheckpointFile] | None = None
) -> list[CheckpointSet]:
    """Group checkpoint files on this machine and in other places into sets, the newest set first."""
    here = (
        CheckpointFile(row.path, row.left[0], row.left[1] / 1e9, *_inspect(row.target, row.path, row.left))
        for row in rows.values()
    )
    return find_sets([*here, *(others or {}).values()])


@lru_cache(10_000)
def _inspect(target: str, path: str, _: tuple[int, int]) -> tuple[str, tuple[str, ...]]:
    try:
        return inspect_content(Path(target), PurePosixPath(path).name)
    except OSError as error:
        return f"cannot be read: {error.strerror}", ()


def _select_latest(rows: Mapping[str, FetchedRow]) -> dict[str, FetchedRow]:
    """Return the files of the newest complete sets."""
    return {file.path: rows[file.path] for each in select_latest(_find_sets(rows)) for file in each.files}


def _stored_row(file: StoredFile, path: Path) -> FetchedRow:
    return FetchedRow(str(path), 0, file.path, file.sha256, (file.size, path.lstat().st_mtime_ns), file.sha256)


def _copy_missing(rows: Mapping[str, FetchedRow], folder: Path) -> None:
    """Copy the newest complete sets into the user's own folder. Existing files are kept."""
    for path, row in _select_latest(rows).items():
        target = folder / path
        if not os.path.lexists(target) and str(target) != row.target:
            make_folders(target, folder)
            draft = target.with_name(f"{target.name}{PARTIAL_SUFFIX}")
            shutil.copy2(row.target, draft)
            draft.rename(target)


def _hash_of(row: FetchedRow) -> str:
    if row.sha256:
        return row.sha256
    with open(row.target, "rb") as file:
        return file_digest(file, "sha256").hexdigest()
