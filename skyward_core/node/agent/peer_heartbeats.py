"""Heartbeats between the agents of a gang whose run may restart, and the decision which silent nodes are lost.

Each agent connects to some other agents, and sends them a signed heartbeat per second. A sign of life of a machine is a
heartbeat, or an acknowledgement by its kernel. Therefore a machine with a frozen, slow or dead agent is not mistaken
for a lost machine. Agents send heartbeats only during a run that may restart.

An agent that observes others is a witness. One witness proves nothing, because its own connection may be cut. So a node
is lost only if two witnesses at different places miss it for :data:`LOSS_SECONDS`, no witness has seen a newer sign of
life, and both still see most of the gang (:func:`judge_nodes`, a pure function). The client decides, or the first
node's agent while no client is connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.gang_state import sign_body
from skyward_core.protocol.frame_codec import encode_json
from skyward_core.protocol.frame_schemas_and_size_limits import validate_peer_frame

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import GangPeers, PeerHeartbeat

SUSPECT_SECONDS = 2.0  # seconds without a sign of life after which a node is suspected to be lost
LOSS_SECONDS = 4.0  # seconds without a sign of life after which an observing node counts a node as missing
# maximum age in seconds of an observing node's report; an older report does not count, because the observer itself may
# be disconnected
MAX_REPORT_AGE = 2.0
MIN_WITNESSES = 2

LossState = Literal["present", "suspected", "lost"]


class Witness(NamedTuple):
    """Observations of one witness: how long each node of a gang has been silent.

    Attributes:
        name: The witness in messages, such as "client" or "node 2".
        place: Place that a single fault can cut off. Witnesses at the same place count once.
        silences: Node -> seconds between its last sign of life and the observation. Omits nodes that the witness has
            never reached, because a firewall may separate them.
        node: Node of the witness; -1 if the witness is not a member of the gang.
        age: Seconds since the observation.
    """

    name: str
    place: str
    silences: Mapping[int, float]
    node: int = -1
    age: float = 0.0

    @property
    def is_credible(self) -> bool:
        """Whether the observations are recent, and include signs of life of at least half of the gang.

        A witness that sees fewer nodes is probably disconnected itself.
        """
        is_member = self.node >= 0
        seen = sum(each < LOSS_SECONDS for each in self.silences.values()) + is_member
        return self.age <= MAX_REPORT_AGE and 2 * seen >= len(self.silences) + is_member


class LossVerdict(NamedTuple):
    """Decision whether one node is lost, with the observations that it is based on.

    Attributes:
        state: "present", "suspected" or "lost".
        silences: Name of each witness -> seconds since the node's last sign of life, now.
    """

    state: LossState
    silences: Mapping[str, float]

    @property
    def text(self) -> str:
        """All witnesses' observations of the node, in one line."""
        return "no sign of life: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.silences.items())


def judge_nodes(nodes: Iterable[int], witnesses: Sequence[Witness]) -> dict[int, LossVerdict]:
    """Decide for each node of a gang whether it is present, suspected or lost.

    Args:
        nodes: The nodes.
        witnesses: All known observations. A node's observations of itself are ignored.
    """
    return {node: _judge(node, [each for each in witnesses if each.node != node]) for node in nodes}


def _judge(node: int, witnesses: Sequence[Witness]) -> LossVerdict:
    informed = [each for each in witnesses if node in each.silences]
    silences = {each.name: each.silences[node] + each.age for each in informed}
    # The shortest silence counts even if its observer is not credible, because a dead machine sends no sign of life.
    quietest = min(silences.values(), default=0.0)
    credible = [each for each in informed if each.is_credible]

    def is_missed(seconds: float) -> bool:
        places = {each.place for each in credible if each.silences[node] >= seconds}
        return quietest >= seconds and len(places) >= MIN_WITNESSES

    state: LossState = "present"
    if is_missed(LOSS_SECONDS):
        state = "lost"
    elif is_missed(SUSPECT_SECONDS):
        state = "suspected"
    return LossVerdict(state, silences)


INTERVAL = 1.0  # seconds between two heartbeats of an agent
MAX_DELAY = 1.0  # seconds; if a timer fires later than this, the agent was paused and could receive no signs of life
# seconds of silence until the agent opens a new connection; on the old one, TCP retransmits at ever longer intervals
PROBE_SILENCE = 1.5
CONNECT_TIMEOUT = 2.0  # seconds for a connection to another node to be established
# seconds for which an agent sends heartbeats after its last call, because other nodes may still need them to decide
LINGER = 30.0
# number of nodes that an agent watches: the next ones in the gang. In addition, all agents watch the first node.
SUCCESSORS = 3


def sign_heartbeat(key: str, header: PeerHeartbeat) -> str:
    """Return the signature of a heartbeat, made with the secret key of the gang."""
    text = encode_json([header["node"], header["count"], sorted(header["silences"].items())])
    return sign_body(key, "heartbeat", header["epoch"], text.encode())


class _Peer:
    """Another node that this agent watches, and the connection to its agent."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.seen_at: float | None = None  # time of the node's last sign of life, by the event loop's clock

    def close(self) -> None:
        """Close the connection with a reset, because an end of file would mean that this agent has ended."""
        if self.connecting is not None:
            self.connecting.cancel()
        if self.connection is not None:
            self.connection.reset()
        self.connecting = self.connection = None


class PeerHeartbeats:
    """Sender and receiver of one agent's heartbeats.

    :meth:`silences` returns this agent's own observations, and :meth:`witnesses` also those that other agents sent with
    their heartbeats. All agents send their observations to the gang's first node.
    """

    def __init__(self, state: NodeState, gang: GangPeers) -> None:
        self._state, self._gang, self._epoch = state, gang, state.gang.epoch
        self._peers: dict[int, _Peer] = {}
        # node -> arrival time of its last heartbeat, and the silences that it reported
        self._reports: dict[int, tuple[float, dict[int, float]]] = {}
        # node -> connection on which its last heartbeat arrived; this agent sends nothing on the connection
        self._incoming: dict[int, Connection] = {}
        # node -> number of its last heartbeat; only heartbeats with a higher number are accepted
        self._counts: dict[int, int] = {}
        self._count = 0
        self._resumed_at = 0.0  # time since which this agent has observed other nodes without being paused itself
        # last time at which a rank was running a call that may restart, so that heartbeats were needed
        self._needed_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Start the heartbeats if a rank runs a call that may restart, otherwise stop them. Called every second."""
        now, is_needed = asyncio.get_running_loop().time(), self._is_needed()
        if is_needed:
            self._needed_at = now
        if self._task is not None or not is_needed:
            if now - self._needed_at > LINGER:
                self.close()
            return
        here = self._state.config.node
        nodes = {node: (address, port) for node, address, port in self._gang["nodes"]}
        line = sorted(nodes)
        at = line.index(here) if here in nodes else 0
        chosen = {*[*line[at + 1 :], *line[:at]][:SUCCESSORS], line[0]} - {here}
        self._peers = {node: _Peer(nodes[node]) for node in sorted(chosen)}
        self._task = asyncio.create_task(self._beat())

    def _is_needed(self) -> bool:
        registry = self._state.registry
        return bool(registry.active) and any(
            call.outcome is None and "attempt" in call.header and call.header.get("epoch") == self._epoch
            for call in registry.calls.values()
        )

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._resumed_at = before = loop.time()
        while True:
            if loop.time() - before > INTERVAL + MAX_DELAY:
                self._resumed_at = loop.time()
            before = loop.time()
            frame = self._heartbeat()
            for node, peer in self._peers.items():
                silence = self._silence(node, peer)
                if peer.connection is not None and peer.connection.is_open and not (silence or 0.0) > PROBE_SILENCE:
                    peer.connection.send(frame)
                elif peer.connecting is None or peer.connecting.done():
                    peer.close()
                    peer.connecting = loop.create_task(self._connect(peer))
            await asyncio.sleep(INTERVAL)

    async def _connect(self, peer: _Peer) -> None:
        loop = asyncio.get_running_loop()
        connection = Connection(lambda *_: None, lambda _: None, validate_peer_frame, of_strangers=True)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await loop.create_connection(lambda: connection, *peer.address)
        except (ConnectionRefusedError, ConnectionResetError):
            peer.seen_at = loop.time()  # The refusal is a sign of life: the machine runs, although its agent has ended.
        except (OSError, TimeoutError):
            connection.abort()
        else:
            peer.seen_at, peer.connection = loop.time(), connection
            connection.send(self._heartbeat())

    def _heartbeat(self) -> PeerHeartbeat:
        self._count += 1
        frame: PeerHeartbeat = {
            "t": "heartbeat",
            "epoch": self._epoch,
            "node": self._state.config.node,
            "count": self._count,
            "silences": {str(node): round(silence, 1) for node, silence in self.silences().items()},
            "signature": "",
        }
        frame["signature"] = sign_heartbeat(self._gang["key"], frame)
        return frame

    # -- observations ------------------------------------------------------------------------------------

    def silences(self) -> dict[int, float]:
        """Return the seconds since the last sign of life of each watched node. Omits nodes that were never reached."""
        found = {node: self._silence(node, peer) for node, peer in self._peers.items()}
        return {node: silence for node, silence in found.items() if silence is not None}

    def _silence(self, node: int, peer: _Peer) -> float | None:
        now = asyncio.get_running_loop().time()
        if peer.connection is not None and (age := peer.connection.acknowledgement_age()) is not None:
            peer.seen_at = max(peer.seen_at or 0.0, now - age)
        if node in self._reports:
            peer.seen_at = max(peer.seen_at or 0.0, self._reports[node][0])
        return None if peer.seen_at is None else now - max(peer.seen_at, self._resumed_at)

    def witnesses(self) -> list[Witness]:
        """Return the observations of this agent, and those that other agents sent."""
        now, here = asyncio.get_running_loop().time(), self._state.config.node
        found = [(here, now, self.silences()), *((node, *report) for node, report in self._reports.items())]
        return [Witness(f"node {node}", f"node {node}", seen, node, now - at) for node, at, seen in found]

    def has_left(self, node: int) -> bool:
        """Check whether another node's agent has ended, so that its kernel has closed the connection to this agent.

        A firewall may refuse or reset a connection, but never closes it.
        """
        return node in self._incoming and self._incoming[node].has_eof

    def receive(self, header: PeerHeartbeat, connection: Connection) -> bool:
        """Store a heartbeat of another node. Return whether its signature is valid."""
        from hmac import compare_digest

        node = header["node"]
        is_new = header["count"] > self._counts.get(node, 0) and node != self._state.config.node
        if not is_new or header["epoch"] != self._epoch:
            return False
        if not compare_digest(header["signature"], sign_heartbeat(self._gang["key"], header)):
            return False
        self._counts[node], self._incoming[node] = header["count"], connection
        silences = {int(name): silence for name, silence in header["silences"].items()}
        self._reports[node] = asyncio.get_running_loop().time(), silences
        return True

    # -- end ---------------------------------------------------------------------------------------------

    def close(self, *, ends: bool = False) -> None:
        """Stop the heartbeats. ``ends``: whether they stop because this agent ends."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for peer in self._peers.values():
            if ends and peer.connection is not None:
                peer.connection.abort()
                peer.connection = None
            peer.close()
        self._peers = {}
