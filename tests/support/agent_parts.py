"""Parts of an agent without its process: clients that record what they receive, and slots that start no worker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.call_lifecycle import CallLifecycle
from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.connected_clients import ClientRegistry
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
from skyward_core.node.agent.worker_slot_queue_and_process import RankPhases
from skyward_core.protocol.frame_codec import Decoder, Header, encode_frame


class Peer(Connection):
    """Connection that records what is written to it."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None, lambda _: None)
        self.is_open = True
        self.frames: list[Header] = []

    def write(self, data: bytes) -> None:
        self.frames += [header for header, _ in Decoder().feed(data)]


class Socket(asyncio.Transport):
    """Replacement of a connection's socket."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[Header, bytes]] = []
        self.closed = False
        self._decoder = Decoder()

    def write(self, data: Any) -> None:
        self.frames += self._decoder.feed(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def close(self) -> None:
        self.closed = True


class Speaker:
    """Other end of one of the agent's connections: a client, or a process of the node."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.socket = Socket()
        connection.connection_made(self.socket)

    def add_note(self, header: Mapping[str, Any], body: bytes = b"") -> list[Header]:
        """Send a frame unchanged, and return the immediate answers."""
        data = encode_frame(header, body)
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))
        return self.take_frames()

    def take_frames(self) -> list[Header]:
        """Return the frames received since the last call."""
        frames, self.socket.frames = [header for header, _ in self.socket.frames], []
        return frames

    def leave(self) -> None:
        self.connection.connection_lost(None)


class Node:
    """Second of two nodes with two ranks each and two slots per rank. Its workers are never started."""

    def __init__(self, folder: Path, **config: Any) -> None:
        shape: dict[str, Any] = {"ranks_per_node": 2, "concurrency": 2, "idle_timeout": 600.0, "grace": 5.0} | config
        file = AgentConfig("p", 1, 2, str(folder), str(folder / "s"), **shape)
        file.spool.mkdir()
        file.blobs.mkdir()
        self.state = NodeState(file)
        self.audience, self.peer = ClientRegistry(), Peer()
        self.audience.add(self.peer)
        self.phases = RankPhases(self.audience.send_to_watchers)
        self.desk = CallLifecycle(self.state, self.audience)
        self.slots = SlotDispatcher(self.state, self.audience, self.desk, self.phases)
        self.places = [slot for slot in self.slots.slots if not slot.is_task_slot]

    def call(self, index: int, **header: Any) -> Call:
        fields: Any = header
        call = Call("r1", index, fields, b"", self.peer)
        self.state.registry.add(call)
        return call
