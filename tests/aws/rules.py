"""What goes wrong, and how long things take: what a test sets, and healing takes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class NoCapacity:
    """Where there are only ``left`` machines more; None fits all."""

    zone: str | None = None
    type: str | None = None
    region: str | None = None
    market: str | None = None
    left: int = 0
    grouped: bool | None = None

    def fits(self, region: str, zone: str, kind: str, market: str, grouped: bool) -> bool:
        wanted = (
            (self.region, region), (self.zone, zone), (self.type, kind), (self.market, market),
            (self.grouped, grouped),
        )  # fmt: skip
        return all(mine is None or mine == theirs for mine, theirs in wanted)


@dataclass(slots=True)
class Rules:
    """The state of the world beside the machines.

    Attributes:
        client_moved: Whether the client's address is that in the lab only, and no longer loopback.
        boot: seconds from the call to "running"; sshd comes a moment later.
        stop: seconds from "shutting-down" to "terminated".
        invisible: seconds for which a look-up does not find a new machine.
        lingers: seconds for which the interface of a terminated machine holds its group.
        never_boots, wrong_host_key, lacks_gpus: how many machines to come do so.
        minute: seconds that a minute of ``shutdown +N`` lasts.
        throttle: requests a second and account that EC2 takes; None for any number.
        quota: vCPUs by quota code, where they are not the default.
        denied: actions without permission.
        lost: action to how many answers are lost after the call acted.
        half: actions, next call of which acts on the first half alone and says InternalError.
        slow: action to seconds before it acts.
        expired: whether the credentials are.
        expires_after: Number of calls after which the credentials expire; None for never.
        policy: The account's IAM policy; None to allow everything.
        lag: Seconds by which queries lag behind, by kind of resource (``aging.KINDS``).
        forgets: Seconds after its end for which a terminated machine is known.
        fails_after: Number of machines to come that fail to launch after the answer.
        fail_code: Reason of that failure.
        failing: Action to the number of its calls that fail without acting.
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
