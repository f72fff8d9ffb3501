"""Where a rank stands in its pool."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace

from ..model.value import Value


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
        accelerators: accelerators that this rank can see.
        peers: all nodes with their addresses, by node index; none where ranks stand alone.
        pool: name of the pool; empty off a pool.
        run: id of the run in progress; empty between runs and off a pool.
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
        return cls(**values)


_current = InstanceInfo()
_of_task: ContextVar[using | None] = ContextVar("skyward_instance_info", default=None)


def instance_info() -> InstanceInfo:
    """Where this rank stands: its index, the gang's size, the head's address, the run in progress.

    Off a pool it describes a pool of one node with one rank, so that the same code runs anywhere.
    """
    task = _of_task.get()
    return _current if task is None else task.info


def set_current(info: InstanceInfo) -> None:
    """Tell this process where it stands (the worker does, before user code and at every run)."""
    global _current
    _current = info


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
