"""What a host tells of itself, and says when something was done on it, as type checkers see it: a type for each
table of :mod:`.host_facts`. What else is to be said of types: :mod:`.frame_types`.
"""

# Without annotations from __future__: as text they would not say at run time, to the test, which keys may be missing.
from typing import Any, NotRequired, TypedDict


class HostFacts(TypedDict):
    """Of a host that can hold nothing of ours some is missing; what is asked of a pool is told where it was asked."""

    python: str
    version: list[int]
    home: str
    hostname: str
    system: str
    machine: str
    address: str
    port: int
    time: float
    root: str
    unusable: list[str]
    doubted: str
    gpus: list[str]
    nvml: bool
    cpus: int | None
    free: NotRequired[int]
    bundle: NotRequired[bool]
    rest: NotRequired[bool]
    socket: NotRequired[str]
    shared: NotRequired[bool]
    running: NotRequired[bool]
    kept: NotRequired[dict[str, Any]]
    orphans: NotRequired[list[int]]
    left: NotRequired[bool]
    ended: NotRequired[str]
    ended_at: NotRequired[float]


class EnvironmentDone(TypedDict):
    python: str
    installed: dict[str, str]  # where packages are asked for: version by name


class ManifestDone(TypedDict):
    folder: str
    wanted: list[int]
    doubtful: list[tuple[int, str]]
    current: NotRequired[bool]  # the host has all of it


class GpusDone(TypedDict):
    gpus: list[str]


class LookDone(TypedDict):
    uses: list[dict[str, Any]]  # as model.gpu_use.GpuUse has them
    why: str


class ProbeDone(TypedDict):
    gpus: list[tuple[str, float]]
    tflops: float
    disk: float
    port: int
    time: float
    whys: dict[str, str]


class SendDone(TypedDict):
    rate: float
    why: str


class ReachDone(TypedDict):
    reached: list[bool]


class AgentDone(TypedDict):
    socket: str
