"""Copies of checkpoints on all nodes, from which the next attempt of a run continues.

The client downloads output files during a run (``output_files``). Before the next attempt it copies them to the nodes
that lack them: to machines that replaced lost ones, and to nodes whose ranks did not save. Files that ranks of a node
wrote themselves are never replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from skyward_core.pool.agent_link import Link
from skyward_core.pool.blob_distribution import BlobDistributor, BlobFile, drop_blobs
from skyward_core.pool.output_files import FetchedRow, FileListing
from skyward_core.util.content_hash import ContentHash

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import RestoreAnswer

PIECE = 1 << 20  # bytes per read

# A folder with files of the first pattern is complete if it contains the file, which the framework writes last.
MARKERS = (
    ("*.distcp", ".metadata"),  # torch.distributed.checkpoint
    ("optimizer.pt", "trainer_state.json"),  # transformers.Trainer
)


def newest_copies(rows: Iterable[FetchedRow]) -> dict[str, FetchedRow]:
    """Return the newest downloaded version of each file, by path. Checkpoints without their marker are omitted."""
    newest: dict[str, FetchedRow] = {}
    for row in rows:
        other = newest.get(row.path)
        if other is None or row.left[1] > other.left[1]:
            newest[row.path] = row
    folders: dict[PurePosixPath, set[str]] = {}
    for path in newest:
        place = PurePosixPath(path)
        folders.setdefault(place.parent, set()).add(place.name)
    incomplete = {folder for folder, names in folders.items() if _is_incomplete(names)}
    return {path: row for path, row in newest.items() if PurePosixPath(path).parent not in incomplete}


def _is_incomplete(names: set[str]) -> bool:
    return any(
        marker not in names and any(PurePosixPath(name).match(pattern) for name in names) for pattern, marker in MARKERS
    )


class CheckpointCopies:
    """Copies of one pool's checkpoints on its nodes, made by one client."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._restored: dict[tuple[Link, str], str] = {}  # node and path -> version that this client has copied there

    async def restore(self, run: str) -> None:
        """Copy the newest checkpoints of a run to all nodes that lack them.

        Raises:
            OSError: If a file cannot be read, or a node cannot store it.
            PoolError: If no node could list its files.
        """
        if self._context.is_local:
            return  # all nodes work in the same folder
        found = await self._context.outputs.download_checkpoints(run)
        rows = newest_copies(await asyncio.to_thread(self._context.outputs.downloaded_checkpoints))
        for path, links in self._missing(found, rows).items():
            await self._copy(rows[path], links)

    def _missing(self, found: FileListing, rows: Mapping[str, FetchedRow]) -> dict[str, list[Link]]:
        """Return the nodes that lack each file or have an earlier copy of it, by path."""
        there = {(node, file.path) for file in found.files for node in (file.node, *file.also)}
        missing = {
            path: [
                link
                for link in self._context.present_links
                if (link.node, path) not in there and self._restored.get((link, path)) != row.version
            ]
            for path, row in rows.items()
        }
        return {path: links for path, links in missing.items() if links}

    async def _copy(self, row: FetchedRow, links: Sequence[Link]) -> None:
        target = Path(row.target)
        name = await asyncio.to_thread(_hash_file, target)
        size, changed_at = row.left
        distributor = BlobDistributor(self._context, self._context.registry.direct)
        await distributor.send(links, [BlobFile(name, target, size)])
        request = {"t": "restore", "blob": name, "size": size, "path": row.path, "at": changed_at / 1e9}
        for link in links:
            answer: RestoreAnswer
            answer, _ = await link.ask(request)
            if reason := answer.get("error"):
                raise OSError(f"node {link.node} cannot store {row.path}: {reason}")
            self._restored[link, row.path] = row.version
            await drop_blobs(link, [name])


def _hash_file(path: Path) -> str:
    digest = ContentHash()
    with open(path, "rb") as file:
        while data := file.read(PIECE):
            digest.update(data)
    return digest.hexdigest()
