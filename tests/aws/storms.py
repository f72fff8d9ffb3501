"""Seeded combinations of EC2's faults, and client time-outs that are short enough for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from skyward_core.model.errors import PoolError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.pool import teardown
from skyward_core.providers import agent_status_and_termination
from skyward_core.providers.aws import (
    boto_calls,
    ec2_errors,
    instances_and_leftovers,
    provider,
    security_groups_and_account_checks,
    zones_and_placement,
)
from tests.aws import Bed

LAG = 0.8  # seconds; 5 minutes of EC2
KILLS = ("intent", "group", "placed", "asked", "unanswered", "answered", "boot", "teardown", "tidying", "none")
CALLS = (
    "CreatePlacementGroup", "CreateSecurityGroup", "DeleteKeyPair", "DeletePlacementGroup", "DeleteSecurityGroup",
    "DescribeInstances", "ImportKeyPair", "RunInstances", "TerminateInstances",
)  # fmt: skip


def weather(change: Callable[[Any, str, Any], None] = setattr) -> None:
    """Shorten the time-outs of this client, whose machines have no hosts.

    Args:
        change: Sets an attribute of a module or class.
    """

    async def without_agent(machine: Machine, way: Any) -> Machine:
        return replace(machine, state="gone")

    def without_host(*_: Any, **__: Any) -> Any:
        raise PoolError("the host does not answer")

    for module in (security_groups_and_account_checks, instances_and_leftovers):
        change(module, "VISIBILITY_TIMEOUT", 4.0)
    change(instances_and_leftovers, "SETTLE_SECONDS", 8.0)
    change(instances_and_leftovers, "FIND_TIMEOUT", 0.3)
    change(instances_and_leftovers, "POLL_PAUSE", 0.1)
    change(ec2_errors, "LOOK_TIMEOUT", 2.0)
    change(zones_and_placement, "REMOVAL_TIMEOUT", 4.0)
    change(boto_calls, "FIRST_PAUSE", 0.01)
    change(teardown, "SEARCH_PAUSE", 0.1)
    change(teardown, "SILENCE", 0.5)
    change(agent_status_and_termination, "update_machine", without_agent)
    change(provider.AWS, "transport", without_host)


def brew(bed: Bed, seed: int) -> Random:
    """Cause the faults of a seed; return the source of further decisions."""
    random = Random(seed)
    chance = random.random
    bed.require_policy()
    bed.lag(
        seed=seed, instance=LAG * chance(), key_pair=LAG * chance(), placement_group=LAG * chance(),
        security_group=LAG * chance(), volume=LAG * chance(),
    )  # fmt: skip
    bed.forget_ended(random.choice((5.0, 3600.0)))
    bed.invisible(random.choice((0.0, LAG * chance())))
    bed.group_lingers(random.choice((0.0, 0.3)))
    for action in random.sample(CALLS, 2):
        bed.lose_answer(action, random.randint(1, 2))
    bed.fail(random.choice(CALLS), random.randint(1, 5))
    if chance() < 0.3:
        bed.fail_half(random.choice(("RunInstances", "TerminateInstances")))
    if chance() < 0.3:
        bed.fail_launches(1)
    if chance() < 0.2:
        bed.no_capacity(zone="us-east-1a", left=1)
    if chance() < 0.3:
        bed.expire_credentials_after(random.randint(5, 40))
    return random
