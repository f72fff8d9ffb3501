"""Distribution of blobs from the client to all nodes, and their deletion when no run needs them.

Nodes keep blobs for later runs, but unused blobs must not fill their disks. The client therefore deletes its older
unused blobs beyond ``MAX_UNUSED_BYTES``; the latest blob stays, whatever its size. Nodes do not delete blobs that other
clients may need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.pool.agent_link import Link
from skyward_core.pool.direct_file_transfers import MIN_DIRECT_SIZE, DirectConnections
from skyward_core.protocol.frame_codec import Header
from skyward_core.transport.background_loop import run_all
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import AgentKnown, AgentWelcome, FetchStatus


@value
class BlobFile(Value):
    """A file of the client to upload. ``name`` is the hash of its content."""

    name: str
    path: Path
    size: int


class BlobDistributor:
    """Distribution of files to all nodes of one pool: from the client to the first node, and then from node to node.

    Args:
        context: The pool.
        direct: Direct connections of the client.
    """

    def __init__(self, context: PoolContext, direct: DirectConnections) -> None:
        self._context = context
        self._cluster = context.options.cluster  # pool option `cluster`; without it nodes do not listen for their peers
        self._direct = direct
        # Node -> welcome frame of the connection during which the node could not reach a peer.
        self._without_peers: dict[int, AgentWelcome] = {}

    async def send(self, links: Sequence[Link], parcels: Sequence[BlobFile]) -> None:
        """Upload files to all nodes as ``blobs/<name>``.

        Args:
            links: Links to the nodes.
            parcels: Files to upload.

        Raises:
            OSError: If a node got a file neither from a peer nor from the client.
        """
        small = sum(parcel.size for parcel in parcels) < MIN_DIRECT_SIZE
        if small or any(link.transport.shares_files for link in links):
            await run_all(link.transport.put(p.path, p.name) for p in parcels for link in links)
        else:
            await run_all(self._send_blob(links, parcel) for parcel in parcels)

    async def _send_blob(self, links: Sequence[Link], parcel: BlobFile) -> None:
        complete = [asyncio.Event() for _ in links]

        async def distribute(at: int) -> None:
            above = (at - 1) // 2
            if not (
                at and self._cluster and await self._fetch_from_peer(links[at], links[above], parcel, complete[above])
            ):
                await self._upload(links[at], parcel)
            complete[at].set()

        await run_all(distribute(at) for at in range(len(links)))

    async def _upload(self, link: Link, parcel: BlobFile) -> None:
        """Upload a file to one node, unless the node has it."""
        if "error" not in await _request(link, _pull_frame(parcel, None)):
            return
        if not (self._cluster and await self._direct.upload(link, parcel.path, parcel.name)):
            await link.transport.put(parcel.path, parcel.name)

    async def _fetch_from_peer(self, link: Link, above: Link, parcel: BlobFile, complete: asyncio.Event) -> bool:
        """Let a node fetch a file from the node ``above``, its parent in the distribution tree.

        The parent may still be receiving the file.

        Returns:
            Whether the node has fetched the file.
        """
        while self._without_peers.get(link.node) is not link.welcome:
            here, place = await asyncio.gather(self._direct.address_of(link), self._direct.address_of(above))
            if here is None or place is None:
                break
            last = complete.is_set()
            answer = await _request(link, _pull_frame(parcel, place))
            if "error" not in answer:
                return True
            if last or answer.get("unreachable"):
                # Skip the peers for the next file, so that it does not wait for the same time-out.
                self._without_peers[link.node] = link.welcome
                self._context.news.emit_node_note(link, f"gets files from the client: {answer['error']}")
            else:
                await complete.wait()  # the parent node is still receiving the file; wait until it has the whole file
        return False


def _pull_frame(parcel: BlobFile, place: tuple[str, int] | None) -> Header:
    return {"t": "pull", "hash": parcel.name, "size": parcel.size, "from": place}


async def _request(link: Link, request: Header) -> FetchStatus:
    """Send a request to a node and return its answer.

    If the link is lost, return an error frame, because the caller can still upload the file through the transport.
    """
    answer: AgentKnown
    try:
        answer, _ = await link.ask(request)
    except ConnectionError as error:
        return {"error": str(error)}
    return answer


MAX_UNUSED_BYTES = 128 << 20  # bytes of unused blobs that remain on the nodes for later runs of this client


class BlobCache:
    """Blobs of one client on the nodes of one pool; see the module docstring for the rules of deletion.

    Attributes:
        users: Blob -> runs that need it.
    """

    def __init__(self, context: PoolContext, direct: DirectConnections) -> None:
        self._context = context
        self._distributor = BlobDistributor(context, direct)
        self._sizes: dict[str, int] = {}  # name -> size of each blob, least recently used first
        self.users: dict[str, set[str]] = {}
        self._drops: set[asyncio.Task[None]] = set()

    async def ensure_uploaded(self, run: str, parcels: Sequence[BlobFile]) -> frozenset[Link]:
        """Upload the blobs that a run needs to all present nodes, and keep them until the run is released.

        Args:
            run: Id of the run.
            parcels: Blobs to upload.

        Returns:
            The links to the nodes that have the blobs.

        Raises:
            OSError: If a node could not get a blob.
        """
        for parcel in parcels:
            self._sizes.pop(parcel.name, None)
            self._sizes[parcel.name] = parcel.size
            self.users.setdefault(parcel.name, set()).add(run)
        if self._drops:
            # Wait for active deletions, because a blob that is being deleted must not count as present.
            await asyncio.wait(self._drops)
        links = self._context.present_links
        await self._distributor.send(links, parcels)
        return frozenset(links)

    def release(self, run: str) -> None:
        """Release the blobs of an ended run. Delete unused blobs beyond ``MAX_UNUSED_BYTES``."""
        for users in self.users.values():
            users.discard(run)
        idle = [name for name in self._sizes if not self.users[name]]
        over = sum(self._sizes[name] for name in idle) - MAX_UNUSED_BYTES
        latest = next(reversed(self._sizes), None)
        dropped = []
        for name in idle:
            if over <= 0 or name == latest:
                break
            over -= self._sizes.pop(name)
            del self.users[name]
            dropped.append(name)
        if dropped:
            for link in self._context.present_links:
                task = asyncio.ensure_future(drop_blobs(link, dropped))
                self._drops.add(task)
                task.add_done_callback(self._drops.discard)


async def drop_blobs(link: Link, names: Sequence[str]) -> None:
    """Delete blobs from a node because no run needs them."""
    with suppress(ConnectionError):  # if the link is down, the blobs remain on the node until the teardown
        await link.ask({"t": "drop", "blobs": names})
