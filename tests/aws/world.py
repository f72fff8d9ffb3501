"""Complete state of the simulation: machines, costs, calls, faults."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .aging import Past
from .bucket import Bucket
from .hosts import Hosts
from .machine import Machine
from .request import Call
from .rules import Rules
from .timers import Timers

ACCOUNT = "123456789012"  # moto's


class World:
    """State of the simulation. Every change happens under ``lock``, because moto has no lock of its own.

    Attributes:
        machines: Every machine since the last reset, by id.
        tokens: Idempotency tokens; see launching.py.
        calls: Every API call since the last reset.
        groups: Placement groups by region and name.
        offerings: Offerings of capacity blocks by id.
        reservations: Capacity reservations by region and id.
        past: Earlier states, for queries that lag behind.
        seen: Machines that the present query shows; None for all that are visible.
    """

    def __init__(self, simulated: bool, boot: float, forget: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.timers = Timers()
        self.hosts = Hosts()
        self._first_rules = (simulated, boot)
        self._forget = forget
        self._now = threading.local()
        self._clear()

    def _clear(self) -> None:
        self.bucket = Bucket()
        self.past = Past()
        self.seen: set[str] | None = None
        self.rules = Rules(simulated=self._first_rules[0], boot=self._first_rules[1])
        self.machines: dict[str, Machine] = {}
        self.tokens: dict[tuple[str, str | None, str], Any] = {}
        self.calls: list[Call] = []
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.offerings: dict[str, dict[str, Any]] = {}
        self.reservations: dict[tuple[str, str], dict[str, Any]] = {}

    @property
    def call(self) -> Call:
        """Call that this thread is answering."""
        call: Call = self._now.call
        return call

    @call.setter
    def call(self, call: Call) -> None:
        self._now.call = call

    def heal(self) -> None:
        """Reset everything: no machines, no faults, no history."""
        with self.lock:
            machines = list(self.machines.values())
            self._clear()
            self._forget()
        with ThreadPoolExecutor(8) as many:
            list(many.map(Machine.vanish, machines))

    def close(self) -> None:
        self.heal()
        self.timers.close()
        self.hosts.close()
