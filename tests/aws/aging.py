"""Eventual consistency of queries: each kind of resource is shown in its state of some seconds ago."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from .request import Call

if TYPE_CHECKING:
    from .world import World


KINDS = {
    "DescribeInstances": "instance",
    "DescribeKeyPairs": "key-pair",
    "DescribePlacementGroups": "placement-group",
    "DescribeSecurityGroups": "security-group",
    "DescribeVolumes": "volume",
}


class Past:
    """Earlier states of all resources. Empty unless queries lag.

    Args:
        seed: Seed of the lags, each of which is random up to that of its kind; None for the full lag.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = None if seed is None else Random(seed)
        self._states: list[tuple[float, dict[str, Any]]] = []

    def note(self, world: World) -> None:
        """Save the present state if a later query may need it. The caller holds the world's lock."""
        now, lag = time.time(), max(world.rules.lag.values(), default=0.0)
        if lag:
            self._states.append((now, _state(world)))
            while len(self._states) > 1 and self._states[1][0] < now - lag:
                del self._states[0]

    @contextmanager
    def shown(self, world: World, call: Call) -> Iterator[None]:
        """Replace the present state by an earlier one during a lagging query. The caller holds the world's lock."""
        lag = world.rules.lag.get(KINDS.get(call.action, ""), 0.0)
        lag *= self._random.random() if self._random is not None else 1.0
        when = max(time.time() - lag, self._states[0][0] if self._states else 0.0)
        earlier = [state for at, state in self._states if at <= when]
        if not lag or not earlier:
            yield
            return
        before = _state(world)
        _restore(world, earlier[-1], KINDS[call.action])
        if world.seen is not None:
            world.seen = {name for name in world.seen if world.machines[name].is_visible_at(when)}
        try:
            yield
        finally:
            _restore(world, before, KINDS[call.action])
            world.seen = None


def _state(world: World) -> dict[str, Any]:
    from moto.ec2.models import ec2_backends

    from .world import ACCOUNT

    backends = {id(each): each for each in ec2_backends[ACCOUNT].values()}
    return {
        "backends": list(backends.values()),
        "instance": {
            name: (each.state, each.instance.state_reason, each.instance._reason)
            for name, each in world.machines.items()
        },
        "key-pair": {key: dict(each.key_pairs) for key, each in backends.items()},
        "volume": {key: dict(each.volumes) for key, each in backends.items()},
        "security-group": {
            key: {vpc: dict(groups) for vpc, groups in each.groups.items()} for key, each in backends.items()
        },
        "placement-group": dict(world.groups),
    }


def _restore(world: World, state: dict[str, Any], kind: str) -> None:
    if kind == "instance":
        world.seen = set(state[kind])
        for name, (phase, reason, text) in state[kind].items():
            if name in world.machines:
                world.machines[name].show(phase, reason, text)
    elif kind == "placement-group":
        world.groups.clear()
        world.groups.update(state[kind])
    else:
        attribute = {"key-pair": "key_pairs", "volume": "volumes", "security-group": "groups"}[kind]
        for backend in state["backends"]:
            there = getattr(backend, attribute)
            there.clear()
            there.update(state[kind].get(id(backend), {}))
