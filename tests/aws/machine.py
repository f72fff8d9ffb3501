"""Life of one instance (pending, running, shutting down, terminated), and its host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from .doors import lets_in
from .hosts import Box
from .quotas import Quota, quota_of
from .timers import Timer

if TYPE_CHECKING:
    from .world import World

_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}

# Code and message of StateReason, by what ended the machine ("Troubleshoot instance termination", EC2 User Guide).
BY_USER = ("Client.UserInitiatedShutdown", "User initiated shutdown")
BY_ITSELF = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
BY_SPOT = ("Server.SpotInstanceTermination", "Spot instance termination")


@dataclass(frozen=True, slots=True)
class Order:
    """Parameters of a launched machine.

    Attributes:
        hourly: Price in US dollars per hour.
        public_key: Public key of its key pair in OpenSSH's format.
        user_data: Decoded user-data.
        needs_token: Whether the metadata service requires a session token (IMDSv2).
        group: Name of the placement group; empty for none.
        index: Index of the machine within its launch.
    """

    type: str
    zone: str
    region: str
    market: str
    hourly: float
    ami: str
    key: str
    public_key: str
    user_data: bytes
    shutdown: str
    hop_limit: int
    needs_token: bool
    public: bool
    has_gpus: bool
    group: str
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    """Scheduled next step of a machine, due after the seconds of a rule."""

    rule: str
    do: Callable[[], None]
    since: float
    timer: Timer


class Machine:
    """Lifecycle and host of one of moto's instances."""

    def __init__(self, world: World, instance: Any, order: Order) -> None:
        self._world = world
        self._switch = threading.Lock()  # of the host
        self._timers = world.timers
        self.instance = instance
        self.order = order
        self.launched = time.time()
        self.ran: list[list[float | None]] = []  # from, to; of each time that it ran
        self.box: Box | None = None
        self.notice: dict[str, str] | None = None
        self.rebalance: str | None = None
        self.ends_at: float | None = None  # an armed shutdown
        self._armed: Timer | None = None
        self._waits: _Wait | None = None
        self._is_gone = False
        self.lacks_gpus = False
        self._fails: tuple[str, str] | None = None  # why it ends instead of running
        self._ended_at: float | None = None

    @property
    def id(self) -> str:
        name: str = self.instance.id
        return name

    @property
    def state(self) -> str:
        name: str = self.instance._state.name
        return name

    @property
    def is_visible(self) -> bool:
        """Whether queries show the machine. New machines appear late, and ended ones are forgotten."""
        return self.is_visible_at(time.time())

    def is_visible_at(self, now: float) -> bool:
        """Check whether queries show the machine at a Unix time."""
        rules = self._world.rules
        is_forgotten = self._ended_at is not None and now >= self._ended_at + rules.forgets
        return now >= self.launched + rules.invisible and not is_forgotten

    @property
    def vcpus(self) -> int:
        from moto.ec2.models.instance_types import INSTANCE_TYPES

        return int(INSTANCE_TYPES[self.order.type]["VCpuInfo"]["DefaultVCpus"])

    def counts_towards(self, quota: Quota, region: str) -> bool:
        order = self.order
        return (
            self.state in ("pending", "running")
            and order.region == region
            and quota_of(order.type, order.market) == quota
        )

    def begin(self) -> None:
        """Start as pending. The machine already has an address. The caller holds the world's lock."""
        rules = self._world.rules
        self._set("pending")
        if rules.fails_after > 0:
            rules.fails_after -= 1
            self._fails = rules.fail_code, "The instance failed to launch"
        nic = self.instance.nics[0]
        if not rules.simulated:
            silent, other_key = rules.never_boots > 0, rules.wrong_host_key > 0
            rules.never_boots -= silent
            rules.wrong_host_key -= other_key
            self.lacks_gpus = rules.lacks_gpus > 0
            rules.lacks_gpus -= self.lacks_gpus
            self.box = self._world.hosts.make(self, is_silent=silent, other_key=other_key and not silent)
            nic.private_ip_address = self.box.address
            nic.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": self.box.address}]
        self._public = (self.box.address if self.box else nic.public_ip) if self.order.public else None
        nic.public_ip = None
        self._wait("boot", self._boot)

    def terminate(self, reason: tuple[str, str] = BY_USER, hard: bool = False) -> None:
        """Terminate the machine, unless it is already ending. The caller holds the world's lock."""
        if self.state in ("shutting-down", "terminated"):
            return
        self._stop_clock()
        self._set("shutting-down", reason)
        self._timers.after(0, lambda: self._end(hard))

    def stop(self, reason: tuple[str, str] = BY_USER) -> None:
        if self.state in ("pending", "running"):
            self._stop_clock()
            self._set("stopping", reason)
            self._timers.after(0, self._halt)

    def reboot(self) -> None:
        """Restart the operating system. EC2 reports the machine as running all the time."""
        self._timers.after(0, self._reboot)

    def _reboot(self) -> None:
        with self._switch:
            if self._is_gone or self.state != "running" or self.box is None:
                return
            self.box.shut_down()
            self.disarm()  # ``shutdown`` remembers its time in /run
            self.box.boot_again()

    def arm(self, minutes: int) -> None:
        """Schedule a ``shutdown`` of the machine, which replaces an earlier one."""
        with self._world.lock:
            self.disarm()
            seconds = minutes * self._world.rules.minute
            self.ends_at = time.time() + seconds
            self._armed = self._timers.after(seconds, self._shut_down_itself)

    def disarm(self) -> None:
        with self._world.lock:
            if self._armed is not None:
                self._armed.cancel()
            self._armed, self.ends_at = None, None

    def _shut_down_itself(self) -> None:
        with self._world.lock:
            if self.ends_at is None or time.time() < self.ends_at:
                return  # disarmed or armed anew, a moment ago
            if self.order.shutdown == "terminate":
                self.terminate(BY_ITSELF)
            else:
                self.stop(BY_ITSELF)

    def take_back(self, seconds: float) -> None:
        """Preempt a spot machine: show the notice now, and end the machine later. The caller holds the world's lock."""
        at = datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.notice = {"action": "terminate", "time": at}

        def end() -> None:
            with self._world.lock:
                self.terminate(BY_SPOT, hard=False)

        self._timers.after(seconds, end)

    def open_door(self) -> None:
        """Apply the security groups' rules to the host. The caller holds the world's lock."""
        box = self.box
        if box is not None:
            address, loopback = self._world.hosts.lab.client.address, not self._world.rules.client_moved
            box.let_in(lets_in(self.instance, address, loopback=loopback))

    def vanish(self) -> None:
        """Remove the machine for a reset, without notifying any process in it."""
        with self._switch:
            self._is_gone = True
            if self.box is not None:
                self.box.close()
                self.box = None

    def seconds(self) -> float:
        """Return the billed seconds: from "running" to the start of the shutdown."""
        now = time.time()
        return sum((to or now) - (since or now) for since, to in self.ran)

    def shown(self) -> dict[str, Any]:
        order, box = self.order, self.box
        return {
            "id": self.id,
            "state": self.state,
            "type": order.type,
            "zone": order.zone,
            "region": order.region,
            "market": order.market,
            "hourly": order.hourly,
            "ami": order.ami,
            "key": order.key,
            "tags": {tag["key"]: tag["value"] for tag in self.instance.get_tags()},
            "private": self.instance.private_ip,
            "public": self.instance.public_ip,
            "reason": self.instance.state_reason.code,
            "launched": self.launched,
            "ends_at": self.ends_at,
            "seconds": self.seconds(),
            "user_data": order.user_data.decode(errors="replace"),
            "cloud_init": box.cloud_init_state() if box else None,
        }

    def look_again(self) -> None:
        """Recompute when scheduled steps are due after a change of rules. The caller holds the world's lock."""
        if self.state == "running":
            self.open_door()
        if self._waits is not None:
            self._waits.timer.cancel()
            self._wait(self._waits.rule, self._waits.do, self._waits.since)

    def _wait(self, rule: str, do: Callable[[], None], since: float | None = None) -> None:
        """Schedule a step after the seconds of a rule. The caller holds the world's lock."""
        since = since or time.time()
        seconds = since + getattr(self._world.rules, rule) - time.time()

        def due() -> None:
            with self._world.lock:
                if self._waits is not wait:
                    return  # put off a moment ago
                self._waits = None
            do()

        wait = _Wait(rule, do, since, self._timers.after(max(0.0, seconds), due))
        self._waits = wait

    def _set(self, state: str, reason: tuple[str, str] | None = None) -> None:
        from moto.ec2.models.instances import InstanceState, StateReason

        self.instance._state = InstanceState(state, _CODES[state])
        if reason is None:
            self.instance.state_reason, self.instance._reason = StateReason(), ""
        else:
            code, words = reason
            at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S GMT")
            self.instance.state_reason = StateReason(f"{code}: {words}", code)
            self.instance._reason = f"User initiated ({at})" if reason == BY_USER else f"{code}: {words}"
        self._world.past.note(self._world)

    def show(self, state: str, reason: Any, text: str) -> None:
        """Show an earlier state of the instance, or the present one, without any other effect."""
        from moto.ec2.models.instances import InstanceState

        self.instance._state = InstanceState(state, _CODES[state])
        self.instance.state_reason, self.instance._reason = reason, text

    def _stop_clock(self) -> None:
        if self.ran and self.ran[-1][1] is None:
            self.ran[-1][1] = time.time()
        self.ends_at = None

    def _boot(self) -> None:
        with self._switch:
            with self._world.lock:
                if self._is_gone or self.state != "pending":
                    return
                if self._fails is not None:
                    self.terminate(self._fails)
                    return
                self.ran.append([time.time(), None])
                self._set("running")
                self.instance.nics[0].public_ip = self._public
                self.open_door()
            if self.box is not None:
                self.box.power_on()

    def _halt(self) -> None:
        with self._switch:
            if self.box is not None:
                self.box.power_off(soft=True)
            with self._world.lock:
                if self.state == "stopping":
                    self.instance.nics[0].public_ip = None
                    self._set("stopped", BY_USER)

    def _end(self, hard: bool) -> None:
        with self._switch:
            if self._is_gone:
                return
            if self.box is not None:
                self.box.power_off(soft=not hard)
        with self._world.lock:
            self._wait("stop", self._ended)

    def _ended(self) -> None:
        with self._switch:
            if self._is_gone:
                return
            if self.box is not None:
                self.box.close()
                self.box = None
        with self._world.lock:
            self._let_go()

    def _let_go(self) -> None:
        """Release the resources of a terminated machine: volumes at once, and network interfaces, which hold security
        groups, possibly later.
        """
        code, reason = self.instance.state_reason, self.instance._reason
        nics = list(self.instance.nics.values())
        world = self._world
        seen, world.seen = world.seen, set(world.machines)  # moto looks for it, even if queries do not show it yet
        try:
            self.instance.terminate()
        finally:
            world.seen = seen
        self.instance._state.code, self.instance._state.name = _CODES["terminated"], "terminated"
        self._ended_at = time.time()
        self.instance.state_reason, self.instance._reason = code, reason
        for nic in nics:
            nic.public_ip = None

        def drop() -> None:
            with self._world.lock:
                for nic in nics:
                    nic.ec2_backend.enis.pop(nic.id, None)

        for nic in nics:
            nic.ec2_backend.enis[nic.id] = nic
        if self._world.rules.lingers:
            self._wait("lingers", drop)
        else:
            drop()
        self._world.past.note(self._world)
