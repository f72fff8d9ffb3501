"""Faults and durations of the simulation, which tests set and a reset restores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class NoCapacity:
    """Capacity limit: matching requests get at most ``left`` machines. None matches everything."""

    zone: str | None = None
    type: str | None = None
    region: str | None = None
    market: str | None = None
    left: int = 0
    grouped: bool | None = None

    def fits(self, region: str, zone: str, kind: str, market: str, grouped: bool) -> bool:
        request = (
            (self.region, region), (self.zone, zone), (self.type, kind), (self.market, market),
            (self.grouped, grouped),
        )  # fmt: skip
        return all(mine is None or mine == theirs for mine, theirs in request)


@dataclass(slots=True)
class Rules:
    """State of the simulation apart from its machines.

    Attributes:
        client_moved: Whether the client's address is only that in the lab, and no longer loopback.
        boot: Seconds from the call to "running". sshd listens a moment later.
        stop: Seconds from "shutting-down" to "terminated".
        invisible: Seconds for which queries do not show a new machine.
        lingers: Seconds for which the interface of a terminated machine holds its security group.
        never_boots, wrong_host_key, lacks_gpus: Number of future machines with this fault.
        minute: Seconds that a minute of ``shutdown +N`` lasts.
        throttle: Accepted requests per second and account. None for no limit.
        quota: vCPUs by quota code, where they differ from the default.
        denied: Actions without permission.
        lost: Action -> number of answers that are lost after the call was executed.
        half: Actions whose next call does only the first half of its work and answers InternalError.
        slow: Action -> seconds before the call is executed.
        expired: Whether the credentials have expired.
        expires_after: Number of calls after which the credentials expire; None for never.
        policy: The account's IAM policy; None to allow everything.
        lag: Seconds by which queries lag behind, by kind of resource (``aging.KINDS``).
        forgets: Seconds after its end for which a terminated machine is known.
        fails_after: Number of machines to come that fail to launch after the answer.
        fail_code: Reason of that failure.
        failing: Action -> number of calls that fail without effect.
    """

    simulated: bool = False
    client_moved: bool = False
    boot: float = 0.05
    stop: float = 0.05
    invisible: float = 0.0
    lingers: float = 0.0
    minute: float = 60.0
    never_boots: int = 0
    wrong_host_key: int = 0
    lacks_gpus: int = 0
    throttle: float | None = None
    quota: dict[str, float] = field(default_factory=dict)
    no_capacity: list[NoCapacity] = field(default_factory=list)
    denied: set[str] = field(default_factory=set)
    lost: dict[str, int] = field(default_factory=dict)
    half: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)
    expired: bool = False
    expires_after: int | None = None
    policy: dict[str, Any] | None = None
    lag: dict[str, float] = field(default_factory=dict)
    forgets: float = 3600.0
    fails_after: int = 0
    fail_code: str = ""
    failing: dict[str, int] = field(default_factory=dict)
