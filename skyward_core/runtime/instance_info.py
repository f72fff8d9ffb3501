"""Instance_info(): rank, world size, peers; process phases."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import dataclass
    from typing import ClassVar
else:

    def dataclass(**_: bool) -> Callable[[type], type]:
        """Type checkers see a dataclass; what it is to others see :class:`_FrozenPart`."""
        return lambda kind: kind


VARIABLE = "COMPUTE_POOL"  # holds a rank's place, as JSON, for what it starts
MAX_VARIABLE_BYTES = (
    64 * 1024
)  # characters of it with everybody's ports; programs start with at most 128 KB in a variable


_OF_HOST: Any = object()  # stands for what this host calls itself


class _AsDataclass:
    """Part of what ``dataclasses`` asks of a class, made when it does."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[_FrozenPart]) -> Any:
        from dataclasses import field, make_dataclass

        ours: Any = next(each for each in owner.__mro__ if each.__module__ == __name__)
        start, names = ours.__init__, ours.__match_args__
        given = start.__defaults__
        defaults = {name: field(default=each) for name, each in zip(names[-len(given) :], given, strict=True)}
        if "hostname" in defaults:
            defaults["hostname"] = field(default_factory=_hostname)
        kinds = ours.__annotations__
        listed: Any = [(name, kinds[name], defaults.get(name, field())) for name in names]
        made = make_dataclass(ours.__name__, listed, eq=False, repr=False, frozen=True, slots=True)
        value = getattr(made, self._name)
        setattr(ours, self._name, value)
        return value


class _FrozenPart:
    """Base of what is a frozen dataclass to those who ask. (Workers wait for this; to make it one takes a millisecond,
    and since Python 3.12 loads inspect.)"""

    __slots__ = ()
    if TYPE_CHECKING:
        __match_args__: ClassVar[tuple[str, ...]]
    else:
        __match_args__ = ()
        __dataclass_fields__ = _AsDataclass()
        __dataclass_params__ = _AsDataclass()

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:  # a script's own subclass says itself what it has more
            cls.__match_args__ = cls.__slots__  # type: ignore[misc]

    def _fill(self, values: Mapping[str, Any]) -> None:
        for name in self.__match_args__:
            object.__setattr__(self, name, values[name])

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__}

    def __replace__(self, /, **changes: Any) -> Any:
        return type(self)(**self._values() | changes)

    def __setattr__(self, name: str, value: object) -> None:
        self._refuse("assign to", name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse("delete", name)
        super().__delattr__(name)

    def _refuse(self, what: str, name: str) -> None:
        if name in self.__match_args__ or type(self).__module__ == __name__:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f"cannot {what} field {name!r}")

    def __getstate__(self) -> list[Any]:
        return list(self._values().values())

    def __setstate__(self, state: list[Any]) -> None:
        self._fill(dict(zip(self.__match_args__, state, strict=False)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _FrozenPart) or type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(tuple(self._values().values()))

    def __repr__(self) -> str:
        shown = (f"{name}={each!r}" for name, each in self._values().items())
        return f"{type(self).__qualname__}({', '.join(shown)})"


class AcceleratorModel(str):
    """The model of a node's GPUs, as its driver names it: a text, which has what older generations read of it, too:
    ``["type"]``, ``["count"]``, ``["memory_gb"]`` and ``["is_trainium"]``, and ``get``.
    """

    __slots__ = ("_count",)
    _count: int

    def __new__(cls, text: str = "", count: int = 0) -> AcceleratorModel:
        made = super().__new__(cls, text)
        made._count = count
        return made

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]  # a text's has one
        return str(self), self._count

    @property
    def name(self) -> str:
        """Its name in the catalogue ("H100"); where that has none, as the driver says it."""
        found = self._in_catalogue()
        return found.name if found else str(self)

    type = name

    @property
    def memory_gb(self) -> float | None:
        """Memory of one in GB, where its name or the catalogue says it."""
        for word in self.upper().replace("-", " ").split():
            if word.endswith("GB") and word[:-2].isdigit():
                return float(word[:-2])
        found = self._in_catalogue()
        return min(each.memory_gb for each in found.variants) if found else None

    @property
    def memory(self) -> str:
        """The same as a text, "80GB"; empty where nobody says it."""
        gigabytes = self.memory_gb
        return "" if gigabytes is None else f"{gigabytes:g}GB"

    def _in_catalogue(self) -> Any:
        from skyward_core.model.accelerators.catalog import find_in_text  # few scripts ask

        return find_in_text(self)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        fields = {"type": self.name, "count": self._count, "memory_gb": self.memory_gb}
        return (fields | {"is_trainium": self.name.startswith("Trainium")})[key]

    def get(self, key: str, default: Any = None) -> Any:
        """A field by its older name, ``default`` where there is no such field, or nobody knows it."""
        return _get_field(self, key, default)


def _get_field(value: Any, key: str, default: Any) -> Any:
    """What ``get`` of a mapping gives, of what is none."""
    try:
        found = value[key]
    except KeyError:
        return default
    return default if found is None else found


@dataclass(frozen=True, eq=False, repr=False)
class Peer(_FrozenPart, str):
    """A node of the pool. As a text it is its address, as the newest generation has peers: ``",".join(info.peers)``.

    Attributes:
        node: its index.
        address: at which other nodes reach it.
        ports: one for each rank on it, by local rank, that was free there when the gang started; empty for a node
            that could not be asked.
    """

    node: int
    address: str
    ports: tuple[int, ...]
    __slots__ = tuple(__annotations__)

    def __new__(cls, node: int, address: str, ports: tuple[int, ...] = ()) -> Peer:
        return str.__new__(cls, address)

    def __init__(self, node: int, address: str, ports: tuple[int, ...] = ()) -> None:
        self._fill(locals())

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.node, self.address, self.ports

    __hash__ = str.__hash__  # it equals its address

    def __getitem__(self, key: Any) -> Any:
        """Fields as older generations have them: ``peer["node"]``, ``peer["private_ip"]``."""
        if not isinstance(key, str):
            return str.__getitem__(self, key)
        return {"node": self.node, "private_ip": self.address, "address": self.address}[key]

    def get(self, key: str, default: Any = None) -> Any:
        """A field by its older name, or ``default``."""
        return _get_field(self, key, default)


@dataclass(frozen=True, eq=False, repr=False)
class Network(_FrozenPart):
    """How a node is reached by its peers.

    Attributes:
        interface: name of the interface that has the node's address; empty where that is not known.
        gbps: what its driver says that it carries, in gigabits per second; None where it says nothing.
    """

    interface: str
    gbps: float | None
    __slots__ = tuple(__annotations__)

    def __init__(self, interface: str = "", gbps: float | None = None) -> None:
        self._fill(locals())

    def __getitem__(self, key: str) -> Any:
        """Fields as older generations have them: ``network["interface"]``, ``network["bandwidth_gbps"]``."""
        return {"interface": self.interface, "bandwidth_gbps": self.gbps}[key]

    def get(self, key: str, default: Any = None) -> Any:
        """A field by its older name, or ``default``."""
        return _get_field(self, key, default)


@dataclass(frozen=True, eq=False, repr=False)
class InstanceInfo(_FrozenPart):
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
            there is none. Its ``name`` is that of the catalogue ("H100"), and it has ``memory_gb``.
        hostname: what this node calls itself.
        network: the interface by which its peers reach this node.
        worker: index of this process among those of its rank, 0 to ``workers_per_rank - 1``; the gang's are those with
            index 0.
        workers_per_rank: processes that each rank has for tasks, ``Worker(concurrency=)``; 1 where they are threads.
    """

    node: int
    total_nodes: int
    rank: int
    world_size: int
    local_rank: int
    ranks_per_node: int
    head_addr: str
    head_port: int
    accelerators: int
    peers: tuple[Peer, ...]
    pool: str
    run: str
    total_accelerators: int
    accelerator: AcceleratorModel
    hostname: str
    network: Network
    worker: int
    workers_per_rank: int
    __slots__ = tuple(__annotations__)

    def __init__(
        self,
        node: int = 0,
        total_nodes: int = 1,
        rank: int = 0,
        world_size: int = 1,
        local_rank: int = 0,
        ranks_per_node: int = 1,
        head_addr: str = "127.0.0.1",
        head_port: int = 29500,
        accelerators: int = 0,
        peers: tuple[Peer, ...] = (Peer(0, "127.0.0.1"),),
        pool: str = "",
        run: str = "",
        total_accelerators: int = 0,
        accelerator: str = "",
        hostname: str = _OF_HOST,
        network: Network = Network(),  # noqa: B008  nobody can change it
        worker: int = 0,
        workers_per_rank: int = 1,
    ) -> None:
        hostname = _hostname() if hostname is _OF_HOST else hostname
        accelerator = AcceleratorModel(accelerator, accelerators)
        self._fill(locals())

    @property
    def is_head(self) -> bool:
        """Whether this is rank 0: exactly one process of a gang, however many ranks the head node has.

        What the head does (print, save a checkpoint) must happen once: the other ranks of node 0 are not it. One of
        the ranks that stand alone is it, too, though no other can wait for it.
        """
        return self.rank == 0

    @classmethod
    def current(cls) -> InstanceInfo | None:
        """This rank's place, as ``sky.instance_info()`` gives it; None off a pool."""
        info = instance_info()
        return info if info.pool else None

    @property
    def job_id(self) -> str:
        """The pool's name, which no other pool has that is up; empty off a pool."""
        return self.pool

    @property
    def compute(self) -> str:
        """The pool's name, as the newest generation asks for it."""
        return self.pool

    @property
    def nodes(self) -> int:
        """Nodes in the pool: ``total_nodes``."""
        return self.total_nodes

    @property
    def head(self) -> str:
        """Address of the head node: ``head_addr``."""
        return self.head_addr

    @property
    def host(self) -> str:
        """Address of this node: ``address``."""
        return self.address

    @property
    def workers_per_node(self) -> int:
        """Processes on each node that calls run in."""
        return self.ranks_per_node * self.workers_per_rank

    @property
    def total_workers(self) -> int:
        """Processes of the pool that calls run in."""
        return self.world_size * self.workers_per_rank

    @property
    def global_worker_index(self) -> int:
        """Index of this process among all of those, 0 to ``total_workers - 1``."""
        return self.rank * self.workers_per_rank + self.worker

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
        info: InstanceInfo = self.__replace__(run=run)
        return info

    def to_json(self) -> str:
        """Everything as a JSON object."""
        peers = [peer._values() for peer in self.peers]
        return json.dumps(self._values() | {"peers": peers, "network": self.network._values()})

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
        values = {key: value for key, value in data.items() if key in cls.__match_args__}
        if "peers" in values:
            values["peers"] = tuple(
                Peer(peer["node"], peer["address"], tuple(peer.get("ports", ()))) for peer in values["peers"]
            )
        if "network" in values:
            values["network"] = Network(values["network"]["interface"], values["network"]["gbps"])
        return cls(**values)


Info = InstanceInfo  # as the newest generation calls it


def _hostname() -> str:
    return os.uname().nodename


_current: InstanceInfo | None = None
_in_pool: InstanceInfo | None = None
_task_override: ContextVar[using | None] = ContextVar("skyward_instance_info", default=None)


def instance_info() -> InstanceInfo:
    """Where this rank stands: its index, the gang's size, the head's address, the run in progress.

    In a process that a rank has started it is that rank's place. Off a pool it describes a pool of one node with one
    rank, so that the same code runs anywhere.
    """
    task = _task_override.get()
    return task.info if task is not None else _current or _info_from_environment()


def is_head(info: InstanceInfo | None = None) -> bool:
    """Whether a rank is rank 0; as a predicate, too: ``@sky.stdout(only=sky.is_head)``.

    Args:
        info: its place; None for this one's.
    """
    return (info or instance_info()).is_head


def call_in_progress() -> int:
    """Which call of its run this thread is in; -1 for none."""
    task = _task_override.get()
    return -1 if task is None else task.call


def _info_from_environment() -> InstanceInfo:
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


def place_in_pool() -> InstanceInfo:
    """Return the place of this rank among all of its pool or gang, also during a task, which has a world of its own."""
    return _in_pool or instance_info()


def set_place(place: dict[str, Any], *, own: bool = False) -> InstanceInfo:
    """Tell this process and its children where it stands, and return that; a worker does, before user code.

    Args:
        place: the fields of an :class:`InstanceInfo`, as JSON has them.
        own: The place is that of a task.
    """
    global _in_pool
    text = json.dumps(place)
    info = InstanceInfo.from_json(text)
    set_current(info)
    if not own:
        _in_pool = info
    if len(text) > MAX_VARIABLE_BYTES:
        text = json.dumps(place | {"peers": [{"node": p.node, "address": p.address} for p in info.peers]})
    os.environ[VARIABLE] = text
    return info


class using:
    """Let this thread's task see ``info``, in another run if one is given, while other threads see their own.

    What few tasks ask for is made when they do.
    """

    __slots__ = ("_info", "_run", "_token", "call")

    def __init__(self, info: InstanceInfo, run: str = "", call: int = -1) -> None:
        self._info = info
        self._run = run
        self.call = call

    @property
    def info(self) -> InstanceInfo:
        if self._run:
            self._info, self._run = self._info.with_run(self._run), ""
        return self._info

    def __enter__(self) -> None:
        self._token = _task_override.set(self)

    def __exit__(self, *_: object) -> None:
        _task_override.reset(self._token)


_phase_listener: Callable[[str], None] | None = None
_thread_state = threading.local()


def set_phase_listener(tell: Callable[[str], None]) -> None:
    """Have ``tell`` called with every phase; a worker does so once."""
    global _phase_listener
    _phase_listener = tell


def set_phase(phase: str) -> None:
    """Say what this process does now: "importing", "joining" where it waits for other ranks, or "paused" at a
    breakpoint."""
    if _phase_listener is not None:
        _phase_listener(phase)


@contextmanager
def import_for_call() -> Iterator[None]:
    """What this thread imports meanwhile it needs for a function that another process has sent."""
    _thread_state.loads = True
    try:
        yield
    finally:
        _thread_state.loads = False


def refuse_pool_while_loading() -> None:
    """A script that makes a pool when it is imported would make another in each rank that imports it, and so on.

    Raises:
        UsageError: this thread loads a function; says what to change in the script.
    """
    if getattr(_thread_state, "loads", False):
        from skyward_core.model.errors import UsageError

        raise UsageError(
            "This script makes a pool when it is imported, and a rank has to import it, for what its function needs of "
            'it. Put the lines that make the pool under if __name__ == "__main__":'
        )


_not_reusable_reason = ""


def mark_not_reusable(reason: str) -> None:
    """This process takes no call after the present one.

    Args:
        reason: in words.
    """
    global _not_reusable_reason
    _not_reusable_reason = reason


def not_reusable_reason() -> str:
    """Why it takes no other call; "" while it does."""
    return _not_reusable_reason


def post_mortem(error: BaseException | None = None) -> None:
    """Open a debugger where an exception was raised; code that calls it in ``except`` needs to say no more.

    In a rank it is as with ``breakpoint()``: ``Options(debug_wait=)`` says how long the rank waits there for somebody.
    Elsewhere it is ``pdb.post_mortem``.

    Args:
        error: the exception; the one that is being handled without.

    Raises:
        ValueError: there is none.
    """
    if error is None:
        error = sys.exc_info()[1]
    if error is None or error.__traceback__ is None:
        raise ValueError("no exception is being handled, and none was given that has been raised")
    import pdb

    pdb.post_mortem(error.__traceback__)
