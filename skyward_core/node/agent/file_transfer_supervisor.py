"""Processes that the agent starts to transfer files between nodes, for a client or for a restart without a client."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.protocol.frame_codec import Header

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentKnown, ClientPeers, ClientPull


_ROOT = str(Path(__file__).parents[3])
_CODE = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from skyward_core.node.agent.file_transfer_server import main; main(int(sys.argv[1]))"
)


class PeerTransfers:
    """File server processes of the agent, one for each client because each client has its own certificates.

    While no client is connected, nodes exchange checkpoints by the process of the last client, which has the key None.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._processes: dict[Connection | None, _PeerProcess] = {}

    @property
    def retained_port(self) -> int:
        """Port of the process of the last client; 0 if it was not retained."""
        return self._processes[None].port if None in self._processes else 0

    def on_client_gone(self, connection: Connection | None, *, retains: bool = False) -> None:
        """Stop the server process of a disconnected client, or retain it for runs that may restart without a client."""
        if (helper := self._processes.pop(connection, None)) is None:
            return
        if retains:
            self.on_client_gone(None)
            self._processes[None] = helper
        else:
            helper.close()

    async def answer(self, connection: Connection, header: ClientPeers | ClientPull) -> None:
        """Answer a client's request to start its server ("peers"), or to fetch a blob from another node ("pull")."""
        fields: Header
        try:
            fields = await (
                self._listen(connection, header) if header["t"] == "peers" else self.pull(connection, header)
            )
        except OSError as error:
            fields = {"error": str(error)}
        connection.send({"t": "known", "id": header["id"]} | fields)

    async def _listen(self, connection: Connection, credentials: ClientPeers) -> Header:
        self.on_client_gone(connection)  # Stop the file server process that uses the client's earlier certificates.
        helper = await _PeerProcess.start()
        if not connection.is_open:
            helper.close()
            return {}
        self._processes[connection] = helper
        blobs, spool, work = str(self._config.blobs), str(self._config.spool), self._config.cwd
        paths = {"blobs": blobs, "spool": spool, "address": self._config.address, "work": work}
        answer = await helper.request(credentials | paths)
        helper.port = answer.get("port", 0)
        return answer

    async def pull(self, connection: Connection | None, header: ClientPull) -> Header:
        """Fetch a blob or a checkpoint from another node. Return the process's answer.

        Raises:
            OSError: If the node has no process for the client.
        """
        blob = self._config.blobs / header["hash"]
        if blob.is_file() and blob.stat().st_size == header["size"]:
            return {}
        if connection not in self._processes or header["from"] is None:
            raise OSError("the node does not have the blob")
        return await self._processes[connection].request(header)


class _PeerProcess:
    """Process that exchanges files with peers for a client; see ``file_transfer_server.main``. Ends with the agent.

    Attributes:
        port: Port at which it listens for other nodes; 0 if it does not listen.
    """

    def __init__(self) -> None:
        self.port = 0
        self._connection = Connection(self._on_answer, self._on_lost)
        self._pending: dict[int, asyncio.Future[AgentKnown]] = {}
        self._next_id = 0

    @classmethod
    async def start(cls) -> _PeerProcess:
        """Start the process.

        Raises:
            OSError: If no process can be started.
        """
        self = cls()
        ours = _spawn_peer_process()
        await asyncio.get_running_loop().create_connection(lambda: self._connection, sock=ours)
        return self

    async def request(self, header: ClientPull | Header) -> Header:
        """Forward a client's request to the process, and wait for its answer.

        Raises:
            OSError: If the process ends before it answers.
        """
        self._next_id += 1
        waiting: asyncio.Future[AgentKnown] = asyncio.get_running_loop().create_future()
        self._pending[self._next_id] = waiting
        if not self._connection.is_open:
            self._on_lost(self._connection)
        self._connection.send(header | {"id": self._next_id})
        return {key: value for key, value in (await waiting).items() if key not in ("t", "id")}

    def _on_answer(self, connection: Connection, header: AgentKnown, body: bytes) -> None:
        waiting = self._pending.pop(header["id"], None)
        if waiting is not None and not waiting.done():
            waiting.set_result(header)

    def _on_lost(self, connection: Connection) -> None:
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(OSError("the file transfer process of the node exited"))
        self._pending.clear()

    def close(self) -> None:
        self._connection.close()


def _spawn_peer_process() -> socket.socket:
    """Start the process, and return this agent's end of the socket pair that connects them."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I", "-S", "-c", _CODE, str(theirs.fileno())]
        # The process changes the niceness of its session.
        nothing, files = subprocess.DEVNULL, [theirs.fileno()]
        process = subprocess.Popen(command, stdin=nothing, pass_fds=files, start_new_session=True)
    process.returncode = 0  # The agent reaps all child processes itself, so subprocess must not wait for this one.
    return ours
