"""Requests of a test to the simulated EC2: JSON at a separate path."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from .aging import Past
from .answers import Answer
from .machine import Machine
from .rules import NoCapacity
from .world import ACCOUNT, World


class Control:
    """One method for each request of a test. ``Bed`` has methods of the same names."""

    def __init__(self, world: World) -> None:
        self._world = world

    def answer(self, verb: str, given: dict[str, Any]) -> Answer:
        try:
            value = {"value": getattr(self, f"do_{verb}")(**given)}
            status = 200
        except Exception as error:  # noqa: BLE001 - whoever asks raises it again
            value, status = {"error": f"{type(error).__name__}: {error}"}, 500
        return Answer(status, json.dumps(value).encode(), "application/json")

    def do_heal(self) -> None:
        self._world.heal()

    def do_set(self, **rules: Any) -> None:
        """Set rules by their names."""
        with self._world.lock:
            for name, value in rules.items():
                if not hasattr(self._world.rules, name):
                    raise ValueError(f"no rule is named {name!r}")
                setattr(self._world.rules, name, value)
            for machine in self._world.machines.values():
                machine.look_again()

    def do_no_capacity(self, **limit: Any) -> None:
        with self._world.lock:
            self._world.rules.no_capacity.append(NoCapacity(**limit))

    def do_add(self, rule: str, value: str) -> None:
        with self._world.lock:
            getattr(self._world.rules, rule).add(value)

    def do_take(self, rule: str, value: str) -> None:
        with self._world.lock:
            getattr(self._world.rules, rule).discard(value)

    def do_put(self, rule: str, key: str, value: Any) -> None:
        with self._world.lock:
            getattr(self._world.rules, rule)[key] = value

    def do_machines(self) -> list[dict[str, Any]]:
        with self._world.lock:
            return [machine.shown() for machine in self._world.machines.values()]

    def do_calls(self) -> list[dict[str, Any]]:
        with self._world.lock:
            return [call.shown() for call in self._world.calls]

    def do_no_default_vpc(self, region: str) -> None:
        """Remove the account's default VPC."""
        from moto.ec2.models import ec2_backends

        with self._world.lock:
            backend = ec2_backends[ACCOUNT][region]
            for subnet in list(backend.get_default_subnets().values()):
                backend.delete_subnet(subnet.id)
            backend.delete_vpc(backend.get_default_vpc().id)

    def do_rebalance(self, instance_id: str) -> None:
        with self._world.lock:
            self._machine(instance_id).rebalance = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def do_reboot(self, instance_id: str) -> None:
        with self._world.lock:
            self._machine(instance_id).reboot()

    def do_lag(self, seconds: dict[str, float], seed: int | None) -> None:
        """Let queries lag behind, by kind of resource."""
        with self._world.lock:
            self._world.rules.lag, self._world.past = seconds, Past(seed)
            self._world.past.note(self._world)

    def do_take_back(self, instance_id: str, seconds: float) -> None:
        with self._world.lock:
            self._machine(instance_id).take_back(seconds)

    def do_client_address(self) -> str:
        return self._world.hosts.lab.client.address

    def _machine(self, instance_id: str) -> Machine:
        if instance_id not in self._world.machines:
            raise ValueError(f"the bed has no instance {instance_id}")
        return self._world.machines[instance_id]
