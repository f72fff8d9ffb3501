"""Instances of a pool: lookup by tags and journal, states, expiry tags, termination. Also leftovers of pools."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from skyward_core.model.errors import PoolError, SkywardError, error_message
from skyward_core.model.leftovers import Inventory, Leftover
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import MachineStatus
from skyward_core.providers.aws import instance_tags_and_launch_journal as tags
from skyward_core.providers.aws import zones_and_placement
from skyward_core.providers.aws.boto_calls import AwsCalls
from skyward_core.providers.aws.ec2_errors import CallFailed, delete_unless_gone, is_resource_refusal
from skyward_core.providers.aws.instance_tags_and_launch_journal import LaunchJournal
from skyward_core.providers.aws.security_groups_and_account_checks import remove_group, remove_key_pair
from skyward_core.providers.provider_call_logs_polling_and_cache import IncompleteSearch, poll_until_empty
from skyward_core.store.ledger import known_ledger_id
from skyward_core.store.ledger_rows import is_process_alive, marked_pid
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views import group_pairs

ENDED_STATES = ("terminated",)
ENDING_STATES = ("shutting-down", "stopping", "stopped")
VISIBILITY_TIMEOUT = 300.0  # seconds until all queries show a new instance, according to EC2's API reference
FIND_TIMEOUT = 10.0  # seconds that a search waits for machines of a request that EC2 has not confirmed
SETTLE_SECONDS = 900.0  # seconds after its launch until an instance that EC2 does not know counts as ended
MIN_BILLED_SECONDS = 60.0  # minimum seconds that AWS bills for a machine, its disk and its address
PAGE_SIZE = 1000  # maximum items per page of EC2's answers
MAX_TAGGED_RESOURCES = 1000  # maximum resources per call of ``create_tags``
MAX_DESCRIBED_INSTANCES = 200  # maximum instances per query
POLL_PAUSE = 1.0  # seconds between two queries for instances that should appear


def to_machine(instance: Mapping[str, Any], region: str, facts: Mapping[str, Any]) -> Machine:
    """Convert an EC2 instance to a machine of its pool.

    Args:
        facts: Journal entry of the launch: user, deadman, hourly.
    """
    marks = tags.parse_tags(instance)
    tagged = tags.tagged_node(marks)
    node = int(instance.get("AmiLaunchIndex", 0)) if tagged is None else tagged
    pool, token, name = marks.get(tags.POOL, ""), marks.get(tags.TOKEN, ""), instance["InstanceId"]
    private = instance.get("PrivateIpAddress", "")
    launched = instance.get("LaunchTime")
    return Machine(
        id=name,
        node=node,
        address=instance.get("PublicIpAddress") or private,
        private_address=private,
        extra={
            "region": region,
            "zone": instance.get("Placement", {}).get("AvailabilityZone", ""),
            "type": instance.get("InstanceType", ""),
            "market": instance.get("InstanceLifecycle", "on-demand"),
            "hourly": facts.get("hourly"),
            "billed_at_least": MIN_BILLED_SECONDS,
            "bought": facts.get("bought"),
            "token": token,
            # The folder name includes the instance id, so a replacement never uses the folder of the lost machine.
            "folder": tags.machine_folder(pool, token, node, name),
            "group": instance.get("Placement", {}).get("GroupName", ""),
            "user": facts.get("user", ""),
            "deadman": facts.get("deadman", 0),
            "account": facts.get("account", ""),
            "launched": launched.timestamp() if launched else time.time(),
        },
    )


async def find_instances(calls: AwsCalls, region: str, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return EC2's descriptions of instances by id; instances that EC2 does not know (yet) are missing."""
    sorted_ids = sorted(ids)
    found: dict[str, dict[str, Any]] = {}
    for at in range(0, len(sorted_ids), MAX_DESCRIBED_INSTANCES):
        # A query by ids fails entirely if one id is unknown, so a filter is used.
        filters = [{"Name": "instance-id", "Values": sorted_ids[at : at + MAX_DESCRIBED_INSTANCES]}]
        found |= await describe_instances(calls, region, filters)
    return found


async def describe_instances(
    calls: AwsCalls, region: str, filters: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return EC2's descriptions of the instances that match filters, by id."""
    reservations = await calls.call_all(
        "ec2", region, "describe_instances", "Reservations", Filters=filters, MaxResults=PAGE_SIZE
    )
    return {each["InstanceId"]: each for reservation in reservations for each in reservation["Instances"]}


async def find_machines(calls: AwsCalls, folder: LaunchJournal, regions: Sequence[str]) -> list[Machine]:
    """Return all machines of a pool, found by tags and by the journal's answers. Ended ones are last, as "gone".

    If EC2's answer to a request was lost, the requested machines may appear late. This function waits a little for
    them.

    Raises:
        IncompleteSearch: If requested machines may still appear, or if EC2 cannot be queried although its answers named
            machines.
        SkywardError: If EC2 cannot be queried now.
    """
    begun = time.monotonic()
    first_look = _FIRST_LOOKS.setdefault(folder.token, begun)
    while True:
        notes = await asyncio.to_thread(folder.notes)
        asked = {each["client_token"]: each for each in notes if each["what"] == "ask"}
        facts: dict[str, Any] = {}
        for each in notes:
            if each["what"] in ("answer", "refusal"):
                ask = asked.pop(each["client_token"], None)
                if ask is not None:
                    facts |= dict.fromkeys(each.get("ids", ()), ask)
            elif each["what"] == "unanswered" and each["client_token"] in asked:
                asked[each["client_token"]] |= {"at": each["at"]}
        places = list(dict.fromkeys([*(each["region"] for each in notes if "region" in each), *regions]))
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        try:
            for region in places:
                listed = await describe_instances(
                    calls, region, [{"Name": f"tag:{tags.TOKEN}", "Values": [folder.token]}]
                )
                found |= {name: (region, each) for name, each in listed.items()}
        except SkywardError as error:
            if not facts:
                raise
            known = [*_shown_machines(notes, facts, found), *_unseen_machines(facts, found, folder)]
            raise IncompleteSearch(error_message(error), known) from error
        missing = sum(each["count"] for each in asked.values()) - len(found.keys() - facts.keys())
        left = max((_seconds_to_appear(each, time.monotonic() - first_look) for each in asked.values()), default=0.0)
        if not (left > 0 and missing > 0):
            break
        if time.monotonic() - begun > FIND_TIMEOUT:
            raise IncompleteSearch(
                f"EC2 has not confirmed the request for {missing} machines. If EC2 executed the request, it shows them "
                f"within {math.ceil(left)} s. Try again then",
                [*_shown_machines(notes, facts, found), *_unseen_machines(facts, found, folder)],
                left,
            )
        await asyncio.sleep(POLL_PAUSE)
    unseen = [each for each in _unseen_machines(facts, found, folder) if not _is_settled(each)]
    return sorted([*_shown_machines(notes, facts, found), *unseen], key=lambda each: each.state == "gone")


# by token of a pool: time at which this process first searched for the pool's machines
_FIRST_LOOKS: dict[str, float] = {}


def _shown_machines(
    notes: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], found: Mapping[str, tuple[str, dict[str, Any]]]
) -> list[Machine]:
    """Return the machines that EC2's queries show, with their states."""
    last = notes[-1] if notes else {}
    by_token = {each["client_token"]: each for each in notes if each["what"] == "ask"}
    return [
        _update_state(
            to_machine(each, region, facts.get(name) or by_token.get(each.get("ClientToken", ""), last)), each
        )
        for name, (region, each) in found.items()
    ]


def _unseen_machines(facts: Mapping[str, Any], found: Container[str], folder: LaunchJournal) -> list[Machine]:
    """Return the machines that EC2 named when it created them, but does not show in queries."""
    return [
        _invisible_machine(name, index, facts[name], folder)
        for index, name in enumerate(sorted(each for each in facts if each not in found))
    ]


def _seconds_to_appear(ask: Mapping[str, Any], waited: float) -> float:
    """Return the seconds for which machines of a request with a lost answer may still appear.

    Args:
        waited: Seconds since the first search; used instead of the request's age if the clock was set back.
    """
    age: float = time.time() - ask["at"]
    if age < 0:
        age = waited
    is_being_sent = marked_pid(ask["pid"]) != os.getpid() and is_process_alive(ask["pid"]) and age < SETTLE_SECONDS
    return VISIBILITY_TIMEOUT if is_being_sent else VISIBILITY_TIMEOUT - age


def _invisible_machine(name: str, index: int, ask: Mapping[str, Any], folder: LaunchJournal) -> Machine:
    """Return a machine for an instance id that EC2 returned but does not list yet."""
    return Machine(
        name, index, "", "",
        extra={
            "region": ask["region"], "zone": ask["zone"], "type": ask["type"], "market": ask["market"],
            "hourly": ask["hourly"], "billed_at_least": MIN_BILLED_SECONDS, "token": folder.token, "user": ask["user"],
            "deadman": ask["deadman"], "account": ask["account"],
            "folder": tags.machine_folder(folder.pool, folder.token, index, name), "launched": ask["at"],
        },
    )  # fmt: skip


def _by_region(machines: Iterable[Machine]) -> dict[str, list[Machine]]:
    return group_pairs((each.extra["region"], each) for each in machines)


async def update_states(calls: AwsCalls, known: Sequence[Machine]) -> list[Machine]:
    """Return machines with the states that EC2 reports; "running" says nothing about the agent.

    Raises:
        SkywardError: If EC2 cannot be queried now.
    """
    seen: dict[str, dict[str, Any]] = {}
    for region, machines in _by_region(known).items():
        seen |= await find_instances(calls, region, [each.id for each in machines])
    unknown = [each for each in known if each.id not in seen and _is_settled(each)]
    if unknown:
        await _require_same_account(calls, unknown[0])
    return [_update_state(each, seen.get(each.id)) for each in known]


def _update_state(machine: Machine, instance: Mapping[str, Any] | None) -> Machine:
    if instance is None:
        if _is_settled(machine):
            return replace(machine, state="gone")
        return replace(machine, state="unreachable", extra=machine.extra | {"why": "EC2 does not show it yet"})
    name = instance["State"]["Name"]
    if name in ENDED_STATES:
        at = {} if (ended := _stopped_at(instance)) is None else {"ended": ended}
        return replace(machine, state="gone", extra=machine.extra | _end_facts(instance) | at)
    if name in ENDING_STATES:
        # a stopped machine still has its disk, which costs money
        state: MachineStatus = "agentless" if name == "stopped" else "ending"
        return replace(machine, state=state, extra=machine.extra | _end_facts(instance))
    if machine.address:
        return machine
    private = instance.get("PrivateIpAddress", "")  # the machine was recorded before EC2 showed its address
    return replace(machine, address=instance.get("PublicIpAddress") or private, private_address=private)


def _end_facts(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return why an instance has ended under ``why`` (empty after a termination request), and the reason of a
    preemption under ``preempted``.
    """
    code = instance.get("StateReason", {}).get("Code", "")
    why = {"why": "it shut itself down" if code == "Client.InstanceInitiatedShutdown" else ""}
    return why | ({"preempted": f"EC2 took it back ({code})"} if code == "Server.SpotInstanceTermination" else {})


_END_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")


def _stopped_at(instance: Mapping[str, Any]) -> float | None:
    """Return when termination was requested, which ends AWS's billing; None if EC2 does not state this."""
    found = _END_TIME.search(instance.get("StateTransitionReason", ""))
    return datetime.fromisoformat(f"{found[1]}+00:00").timestamp() if found else None


def _is_settled(machine: Machine) -> bool:
    return time.time() - float(machine.extra["launched"]) > SETTLE_SECONDS


async def _require_same_account(calls: AwsCalls, machine: Machine) -> None:
    """Check that the credentials belong to the machine's account. In any other account, a machine that EC2 does not
    find may still run.

    Raises:
        PoolError: If the machine belongs to another account.
    """
    region, account = machine.extra["region"], machine.extra.get("account", "")
    identity = await calls.call("sts", region, "get_caller_identity")
    if account and identity["Account"] != account:
        raise PoolError(
            f"machine {machine.id} is in AWS account {account}, but these credentials are for {identity['Account']}. "
            "Use the credentials that created the pool"
        )


async def tag_expiry(calls: AwsCalls, machines: Sequence[Machine], at: float) -> None:
    """Tag machines and their disks with the time at which they end; skip instances that EC2 does not know.

    Raises:
        SkywardError: If a resource cannot be tagged. The others are tagged.
    """
    marks = [{"Key": tags.EXPIRES, "Value": tags.format_date(at)}]
    for region, here in _by_region(machines).items():
        known = await find_instances(calls, region, [each.id for each in here])
        ids = []
        for name, each in known.items():
            if each["State"]["Name"] not in ENDED_STATES:
                disks = [disk["Ebs"] for disk in each.get("BlockDeviceMappings", ()) if "Ebs" in disk]
                ids += [name, *(disk["VolumeId"] for disk in disks)]

        async def tag(part: Sequence[str], region: str = region) -> None:
            await calls.call("ec2", region, "create_tags", Resources=list(part), Tags=marks)

        refused: dict[str, CallFailed] = {}
        for first in range(0, len(ids), MAX_TAGGED_RESOURCES):
            refused |= await call_in_parts(ids[first : first + MAX_TAGGED_RESOURCES], tag)
        for error in refused.values():
            raise error


async def terminate(calls: AwsCalls, machines: Sequence[Machine], **how: Any) -> None:
    """Terminate instances, except those that have ended. If EC2 refuses some instances, terminate the others anyway.

    Args:
        how: Further parameters of ``TerminateInstances``.

    Raises:
        SkywardError: If EC2 does not accept the request for an instance that it shows.
    """
    failures: list[SkywardError] = []
    for region, here in _by_region(machines).items():
        try:
            await _terminate_in_region(calls, region, here, how)
        except SkywardError as error:
            # raised after the loop, because the machines of the other regions must be terminated as well
            failures.append(error)
    for failure in failures:
        raise failure


async def _terminate_in_region(calls: AwsCalls, region: str, machines: Sequence[Machine], how: dict[str, Any]) -> None:
    seen = await find_instances(calls, region, [each.id for each in machines])
    ids = [each.id for each in machines if _update_state(each, seen.get(each.id)).state != "gone"]

    async def end(part: Sequence[str]) -> None:
        await calls.call("ec2", region, "terminate_instances", InstanceIds=list(part), **how)

    refused = await call_in_parts(ids, end) if ids else {}
    # skip instances that EC2 does not show yet; the next attempt terminates them
    for id in refused.keys() & seen.keys():
        raise refused[id]


async def call_in_parts(ids: Sequence[str], ask: Callable[[Sequence[str]], Awaitable[None]]) -> dict[str, CallFailed]:
    """Make a call about several resources. If EC2 refuses the whole call because of one resource, repeat the call for
    each half of the resources.

    Args:
        ids: The resources; at least one.
        ask: Makes the call for some of the resources.

    Returns:
        The refused resources, with EC2's errors.

    Raises:
        SkywardError: If the call fails for a reason that does not depend on the resources.
    """
    try:
        await ask(ids)
    except CallFailed as error:
        if not is_resource_refusal(error):
            raise
        if len(ids) == 1:
            return {ids[0]: error}
        middle = len(ids) // 2
        return await call_in_parts(ids[:middle], ask) | await call_in_parts(ids[middle:], ask)
    return {}


OWN_TAG_FILTER = [{"Name": "tag-key", "Values": [tags.LEDGER]}]
TERMINATION_TIMEOUT = 300.0  # seconds until EC2 must report terminated machines as ended
POLL_PAUSES = (0.2, 5.0)


async def find_leftovers(calls: AwsCalls, places: Sequence[str]) -> Inventory:
    """Return the resources of pools in some regions, and errors for regions that cannot be queried. Reads only."""
    unknown = {}

    async def find(place: str) -> list[Leftover]:
        try:
            return await _find_in_region(calls, place)
        except SkywardError as error:
            unknown[place] = error_message(error)
            return []

    found = await asyncio.gather(*map(find, places))
    return Inventory(tuple(each for some in found for each in some), unknown)


async def _find_in_region(calls: AwsCalls, region: str) -> list[Leftover]:
    alive = [*OWN_TAG_FILTER, {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}]
    loose = [*OWN_TAG_FILTER, {"Name": "status", "Values": ["available"]}]
    instances, disks, groups, keys, placements = await asyncio.gather(
        describe_instances(calls, region, alive),
        calls.call_all("ec2", region, "describe_volumes", "Volumes", Filters=loose, MaxResults=PAGE_SIZE),
        calls.call_all("ec2", region, "describe_security_groups", "SecurityGroups", Filters=OWN_TAG_FILTER),
        calls.call_all("ec2", region, "describe_key_pairs", "KeyPairs", Filters=OWN_TAG_FILTER),
        zones_and_placement.find_placement_groups(calls, region, OWN_TAG_FILTER),
    )
    return [
        *(_make_leftover("instance", each["InstanceId"], region, each) for each in instances.values()),
        *(_make_leftover("disk", each["VolumeId"], region, each) for each in disks),
        *(_make_leftover("security group", each["GroupId"], region, each) for each in groups),
        *(_make_leftover("key pair", each["KeyName"], region, each) for each in keys),
        *(_make_leftover("placement group", each["GroupName"], region, each) for each in placements),
    ]


def _make_leftover(what: str, id: str, place: str, description: Mapping[str, Any]) -> Leftover:
    # The texts of tags are sanitized, because every user of the account can write tags.
    marks = {key: sanitize_line(text) for key, text in tags.parse_tags(description).items()}
    made = description.get("LaunchTime") or description.get("CreateTime")
    ledger = marks.get(tags.LEDGER, "")
    is_machine = what == "instance"
    return Leftover(
        what, id, place, marks.get(tags.POOL, ""), marks.get(tags.TOKEN, ""), ledger,
        ours=bool(ledger) and ledger == known_ledger_id("aws"), owner=marks.get(tags.OWNER, ""),
        is_machine=is_machine, since=made.timestamp() if isinstance(made, datetime) else None,
        expires=tags.tagged_expiry(marks), hourly=tags.tagged_hourly(marks) if is_machine else None,
    )  # fmt: skip


async def remove_leftovers(calls: AwsCalls, things: Iterable[Leftover]) -> list[str]:
    """Terminate machines, then remove the other leftovers; return a description of each leftover that remains."""
    remaining = []
    things = list(things)
    for region in dict.fromkeys(each.place for each in things):
        here = [each for each in things if each.place == region]
        try:
            await _terminate_instances(calls, region, [each.id for each in here if each.is_machine])
        except SkywardError as error:
            remaining += [_describe_failure(each, error) for each in here]
            continue
        for each in here:
            try:
                await _remove_leftover(calls, region, each)
            except SkywardError as error:
                remaining.append(_describe_failure(each, error))
    return remaining


def _describe_failure(thing: Leftover, error: SkywardError) -> str:
    return f"{thing.what} {thing.id} ({thing.place}): {error_message(error)}"


async def _terminate_instances(calls: AwsCalls, region: str, ids: Sequence[str]) -> None:
    """Terminate machines, and wait until EC2 reports them as ended.

    Raises:
        SkywardError: If EC2 does not report the machines as ended in time.
    """
    if not ids:
        return
    await terminate(calls, [Machine(id, 0, "", "", extra={"region": region}) for id in ids])

    async def find_running() -> list[str]:
        seen = await find_instances(calls, region, ids)
        return [id for id, each in seen.items() if each["State"]["Name"] not in ENDED_STATES]

    if running := await poll_until_empty(find_running, POLL_PAUSES, TERMINATION_TIMEOUT, factor=1.5):
        raise SkywardError(f"EC2 has not reported {', '.join(running)} as terminated within {TERMINATION_TIMEOUT:g} s")


async def _remove_leftover(calls: AwsCalls, region: str, thing: Leftover) -> None:
    match thing.what:
        case "disk":
            filters = [{"Name": "volume-id", "Values": [thing.id]}]
            await delete_unless_gone(
                lambda: calls.call("ec2", region, "delete_volume", VolumeId=thing.id),
                lambda: calls.call_all("ec2", region, "describe_volumes", "Volumes", Filters=filters),
            )
        case "security group":
            await remove_group(calls, region, thing.id, f"of pool {thing.pool}")
        case "placement group":
            await zones_and_placement.remove_placement_group(calls, region, thing.id)
        case "key pair":
            await remove_key_pair(calls, region, thing.id)
