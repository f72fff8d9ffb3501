"""Where a rank stands in its pool."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..model.value import Value

VARIABLE = "COMPUTE_POOL"  # holds a rank's place, as JSON, for what it starts
LONGEST = (
    64 * 1024
)  # characters of it with everybody's ports; programs start with at most 128 KB in a variable


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Peer(Value):
    """A node of the pool.

    Attributes:
        node: its index.
        address: at which other nodes reach it.
        ports: one for each rank on it, by local rank, that was free there when the gang started; empty for a node
            that could not be asked.
    """

    node: int
    address: str
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Network(Value):
    """How a node is reached by its peers.

    Attributes:
        interface: name of the interface that has the node's address; empty where that is not known.
        gbps: what its driver says that it carries, in gigabits per second; None where it says nothing.
    """

    interface: str = ""
    gbps: float | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InstanceInfo(Value):
    """A rank's place in its pool.

    Attributes:
        node: index of this node, 0 to ``total_nodes - 1``; node 0 is the head node.
        total_nodes: nodes in the pool.
        rank: index of this process in the gang, 0 to ``world_size - 1``; ranks of a node are neighbours.
        world_size: ranks in the gang, ``total_nodes * ranks_per_node``.
        local_rank: index of this process on its node, 0 to ``ranks_per_node - 1``.
        ranks_per_node: ranks on each node.
        head_addr: address of the head node, as its peers reach it; empty where ranks stand alone.
        head_port: a port that was free on the head node when the gang started, for rendezvous; 0 where ranks stand
            alone.
        accelerators: GPUs of this node, as the NVIDIA driver lists them; of one that is cut (MIG) each slice counts.
            With ``ranks_per_node="gpu"`` a rank sees one of them, else all.
        peers: all nodes with their addresses, by node index; none where ranks stand alone.
        pool: name of the pool; empty off a pool.
        run: id of the run in progress; empty between runs and off a pool.
        total_accelerators: GPUs of all nodes; of this one alone where ranks stand alone.
        accelerator: the model of this node's GPUs ("NVIDIA H100 80GB HBM3"), by commas where they differ; empty where
            there is none.
        hostname: what this node calls itself.
        network: the interface by which its peers reach this node.
        worker: index of this process among those of its rank, 0 to ``workers_per_rank - 1``; the gang's are those with
            index 0.
        workers_per_rank: processes that each rank has for tasks, ``Worker(concurrency=)``; 1 where they are threads.
    """

    node: int = 0
    total_nodes: int = 1
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    ranks_per_node: int = 1
    head_addr: str = "127.0.0.1"
    head_port: int = 29500
    accelerators: int = 0
    peers: tuple[Peer, ...] = (Peer(0, "127.0.0.1"),)
    pool: str = ""
    run: str = ""
    total_accelerators: int = 0
    accelerator: str = ""
    hostname: str = field(default_factory=lambda: os.uname().nodename)
    network: Network = Network()
    worker: int = 0
    workers_per_rank: int = 1

    @property
    def is_head(self) -> bool:
        """Whether this is rank 0: exactly one process of a gang, however many ranks the head node has.

        What the head does (print, save a checkpoint) must happen once: the other ranks of node 0 are not it. One of
        the ranks that stand alone is it, too, though no other can wait for it.
        """
        return self.rank == 0

    @property
    def stands_alone(self) -> bool:
        """Whether this rank knows no other one, as ``Options(cluster=False)`` asks for."""
        return not self.peers

    @property
    def address(self) -> str:
        """Address of this node, as its peers reach it; the head's where it is not known, empty if it stands alone."""
        return next((peer.address for peer in self.peers if peer.node == self.node), self.head_addr)

    def with_run(self, run: str) -> InstanceInfo:
        """The same place, in another run.

        Args:
            run: that run's id.
        """
        return replace(self, run=run)

    def to_json(self) -> str:
        """Everything as a JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> InstanceInfo:
        """Rebuild what ``to_json`` wrote; keys of a newer version are passed over.

        Args:
            text: what it wrote.

        Raises:
            ValueError: the text is no JSON object.
        """
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"a rank's place must be a JSON object, got {type(data).__name__}")
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        if "peers" in values:
            values["peers"] = tuple(
                Peer(peer["node"], peer["address"], tuple(peer.get("ports", ()))) for peer in values["peers"]
            )
        if "network" in values:
            values["network"] = Network(values["network"]["interface"], values["network"]["gbps"])
        return cls(**values)


_current: InstanceInfo | None = None
_of_task: ContextVar[using | None] = ContextVar("skyward_instance_info", default=None)


def instance_info() -> InstanceInfo:
    """Where this rank stands: its index, the gang's size, the head's address, the run in progress.

    In a process that a rank has started it is that rank's place. Off a pool it describes a pool of one node with one
    rank, so that the same code runs anywhere.
    """
    task = _of_task.get()
    return task.info if task is not None else _current or _of_process()


def _of_process() -> InstanceInfo:
    """What the variable says that a rank's children inherit; others may use its name for what they like."""
    info = InstanceInfo()
    with suppress(ValueError, TypeError, KeyError):
        info = InstanceInfo.from_json(os.environ.get(VARIABLE, ""))
    set_current(info)
    return info


def set_current(info: InstanceInfo) -> None:
    """Tell this process where it stands."""
    global _current
    _current = info


def set_place(place: dict[str, Any]) -> None:
    """Tell this process and its children where it stands; a worker does, before user code.

    Args:
        place: the fields of an :class:`InstanceInfo`, as JSON has them.
    """
    text = json.dumps(place)
    info = InstanceInfo.from_json(text)
    set_current(info)
    if len(text) > LONGEST:
        text = json.dumps(place | {"peers": [{"node": p.node, "address": p.address} for p in info.peers]})
    os.environ[VARIABLE] = text


class using:
    """Let this thread's task see ``info``, in another run if one is given, while other threads see their own.

    What few tasks ask for is made when they do.
    """

    __slots__ = ("_info", "_run", "_token")

    def __init__(self, info: InstanceInfo, run: str = "") -> None:
        self._info = info
        self._run = run

    @property
    def info(self) -> InstanceInfo:
        if self._run:
            self._info, self._run = self._info.with_run(self._run), ""
        return self._info

    def __enter__(self) -> None:
        self._token = _of_task.set(self)

    def __exit__(self, *_: object) -> None:
        _of_task.reset(self._token)
