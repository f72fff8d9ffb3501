"""What clients ask for that agents do among themselves: listening for peers, fetching blobs from them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...wire.frames import Header
from .config import AgentConfig
from .connection import Connection

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentKnown
    from ...wire.client_frame_types import ClientPeers, ClientPull

_ROOT = str(Path(__file__).parents[3])
_CODE = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from skyward_core.node.agent.blob_server import main; main(int(sys.argv[1]))"
)


class Exchange:
    """Each client brings certificates of its own, and its listener ends when it leaves."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._helpers: dict[Connection, _Helper] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, connection: Connection, header: ClientPeers | ClientPull) -> None:
        """Do what a "peers" or "pull" request asks for, and answer it."""
        task = asyncio.create_task(self._answer(connection, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def leave(self, connection: Connection) -> None:
        """A client is gone."""
        if (helper := self._helpers.pop(connection, None)) is not None:
            helper.close()

    async def _answer(self, connection: Connection, header: ClientPeers | ClientPull) -> None:
        answer: Header
        try:
            if header["t"] == "peers":
                answer = await self._listen(connection, header)
            else:
                answer = await self._pull(connection, header)
        except OSError as error:
            answer = {"error": str(error)}
        connection.send({"t": "known", "id": header["id"]} | answer)

    async def _listen(self, connection: Connection, papers: ClientPeers) -> Header:
        self.leave(connection)  # with those certificates that it brought before
        helper = await _Helper.start()
        if not connection.open:
            helper.close()
            return {}
        self._helpers[connection] = helper
        place = {
            "blobs": str(self._config.blobs),
            "spool": str(self._config.spool),
            "address": self._config.address,
            "work": self._config.cwd,
        }
        return await helper.ask(papers | place)

    async def _pull(self, connection: Connection, header: ClientPull) -> Header:
        blob = self._config.blobs / header["hash"]
        if blob.is_file() and blob.stat().st_size == header["size"]:
            return {}
        if connection not in self._helpers or header["from"] is None:
            raise OSError("it is not there")
        return await self._helpers[connection].ask(header)


class _Helper:
    """The process that talks to peers on behalf of one client; see :func:`.blob_server.main`. It ends with us."""

    def __init__(self) -> None:
        self._connection = Connection(self._answered, self._lost)
        self._waiting: dict[int, asyncio.Future[AgentKnown]] = {}
        self._next_id = 0

    @classmethod
    async def start(cls) -> _Helper:
        """Have one running.

        Raises:
            OSError: no process can be started.
        """
        self = cls()
        ours = _start_process()
        await asyncio.get_running_loop().create_connection(lambda: self._connection, sock=ours)
        return self

    async def ask(self, header: ClientPull | Header) -> Header:
        """Pass a request on, and wait for its answer.

        Raises:
            OSError: the process has ended before it answered.
        """
        self._next_id += 1
        waiting: asyncio.Future[AgentKnown] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_id] = waiting
        if not self._connection.open:
            self._lost(self._connection)
        self._connection.send(header | {"id": self._next_id})
        answer = await waiting
        return {key: value for key, value in answer.items() if key not in ("t", "id")}

    def _answered(self, connection: Connection, header: AgentKnown, body: bytes) -> None:
        waiting = self._waiting.pop(header["id"], None)
        if waiting is not None and not waiting.done():
            waiting.set_result(header)

    def _lost(self, connection: Connection) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(OSError("its process that talks to peers has ended"))
        self._waiting.clear()

    def close(self) -> None:
        self._connection.close()


def _start_process() -> socket.socket:
    """Our end of the socket that the new process has the other end of."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I", "-S", "-c", _CODE, str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    process.returncode = 0  # the agent collects every child itself
    return ours
