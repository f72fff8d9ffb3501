"""Launch of a pool's EC2 instances: reservations, request parameters, attempts by zone and type."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from skyward_core.model.errors import (
    NoCapacity,
    PoolError,
    SkywardError,
    Unreachable,
    UsageError,
    combine_errors,
    error_message,
)
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.offers_and_rental_plans import Block, MachineRequirements, Offer, Reservation
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.aws import (
    ec2_errors,
    instance_tags_and_launch_journal,
    offers_and_images,
    zones_and_placement,
)
from skyward_core.providers.aws import security_groups_and_account_checks as account_setup
from skyward_core.providers.aws.boto_calls import AwsCalls
from skyward_core.providers.aws.ec2_errors import CallFailed, CapacityRefused, query_regions, retry_while
from skyward_core.providers.aws.instance_tags_and_launch_journal import KeyPair, LaunchJournal
from skyward_core.providers.aws.instances_and_leftovers import ENDED_STATES, ENDING_STATES, find_instances, to_machine
from skyward_core.providers.aws.offers_and_images import (
    DEFAULT_DISK_GB,
    BilledExtras,
    BootImage,
    InstanceType,
    RegionOffers,
    query_region,
    select_offers,
)
from skyward_core.providers.aws.security_groups_and_account_checks import SecurityResources
from skyward_core.providers.aws.zones_and_placement import Zone
from skyward_core.providers.provider_call_logs_polling_and_cache import report_progress
from skyward_core.store.debug_log import get_logger
from skyward_core.store.ledger_rows import process_mark
from skyward_core.util.light_dataclass import Value, value

CAPACITY_BLOCK_MARKET = "capacity-block"  # EC2's name of the market for reserved Capacity Blocks
ENDED_RESERVATION_STATES = ("expired", "cancelled", "failed", "payment-failed", "unsupported")
BLOCK_END_MARGIN = 30 * 60.0  # seconds between the termination of a Capacity Block's machines and the block's end


def _parse_reservation(description: Mapping[str, Any], region: str) -> Reservation:
    start, end = description.get("StartDate"), description.get("EndDate")
    return Reservation(
        id=description["CapacityReservationId"],
        instance_type=description.get("InstanceType", ""),
        region=region,
        zone=description.get("AvailabilityZone", ""),
        count=description.get("TotalInstanceCount", 0),
        free=description.get("AvailableInstanceCount", 0),
        state=description.get("State", ""),
        is_block=description.get("ReservationType") == CAPACITY_BLOCK_MARKET,
        starts_at=start.timestamp() if start else 0.0,
        ends_at=end.timestamp() if end else None,
    )


async def buy_block(calls: AwsCalls, block: Block, token: str) -> Reservation:
    """Buy a Capacity Block. The call has no idempotency token, so it is made only once.

    Raises:
        Unreachable: If it is unknown whether the block was bought.
        SkywardError: If the block was not bought.
    """
    marks = instance_tags_and_launch_journal.tag_specifications(
        ["capacity-reservation"], instance_tags_and_launch_journal.purchase_tags(token)
    )
    try:
        answer = await calls.call(
            "ec2", block.region, "purchase_capacity_block", once=True,
            CapacityBlockOfferingId=block.id, InstancePlatform="Linux/UNIX", TagSpecifications=marks,
        )  # fmt: skip
    except CallFailed as error:
        if error.code:
            raise
        # the answer cannot be parsed, so it is unknown whether the block was bought
        raise Unreachable(error_message(error)) from error
    try:
        return _parse_reservation(answer.get("CapacityReservation") or answer["CapacityReservations"][0], block.region)
    except (LookupError, TypeError, AttributeError) as error:
        raise Unreachable(f"EC2's answer contains no reservation ({type(error).__name__})") from error


async def find_reservations(
    calls: AwsCalls, region: str, filters: Sequence[Mapping[str, Any]] = ()
) -> list[Reservation]:
    """Return the reservations of a region that have not ended, the earliest first.

    Raises:
        SkywardError: If EC2 cannot be queried.
    """
    parameters = {"Filters": list(filters)} if filters else {}
    rows = await calls.call_all("ec2", region, "describe_capacity_reservations", "CapacityReservations", **parameters)
    found = [_parse_reservation(each, region) for each in rows if each.get("State") not in ENDED_RESERVATION_STATES]
    return sorted(found, key=lambda each: (each.starts_at, each.id))


@value
class ReservedCapacity(Value):
    """Reservation that provides a pool's machines."""

    reservation: Reservation

    @property
    def market(self) -> str:
        return CAPACITY_BLOCK_MARKET if self.reservation.is_block else "on-demand"

    def narrow_request(self, requirements: MachineRequirements) -> MachineRequirements:
        """Return the machine requirements, restricted to the type and zone of the reservation."""
        held = self.reservation
        return replace(requirements, instance_type=held.instance_type, zones=(held.zone,), regions=(held.region,))

    def price_offer(self, offer: Offer) -> Offer:
        """Return an offer with the price of a reserved machine: zero for a Capacity Block, which is prepaid."""
        return replace(offer, hourly=0.0) if self.reservation.is_block else offer

    @property
    def note(self) -> str:
        """Note about the reservation, for a plan."""
        held = self.reservation
        note = f"machines come from reservation {held.id}"
        if not held.is_block:
            return note
        ends = time.localtime((held.ends_at or 0.0) - BLOCK_END_MARGIN)
        return f"{note}, a prepaid Capacity Block; EC2 terminates them at {time.strftime('%Y-%m-%d %H:%M', ends)}"


async def find_reserved_capacity(
    calls: AwsCalls, regions: Sequence[str], id: str, requirements: MachineRequirements, nodes: int
) -> ReservedCapacity:
    """Return a reservation that can provide the requested machines now.

    Args:
        regions: Regions to search.
        id: Id of the reservation.
        requirements: Machine requirements; they must agree with the reservation.
        nodes: Smallest number of machines.

    Raises:
        UsageError: If the reservation does not exist, or has another type or zone.
        NoCapacity: If the reservation has not started, has ended, or has too few free machines.
        SkywardError: If EC2 cannot be queried.
    """
    if requirements.allocation != "on-demand":
        raise UsageError(
            f"reservation {id} cannot be combined with allocation={requirements.allocation!r}: remove the allocation"
        )
    found = await _find_reservation(calls, regions, id)
    for what, requested, has in (
        ("type", requirements.instance_type and (requirements.instance_type,), found.instance_type),
        ("zone", requirements.zones, found.zone),
    ):
        if requested and has not in requested:
            raise UsageError(
                f"reservation {id} has {what} {has}, but {' or '.join(requested)} was requested: remove one of the two"
            )
    if found.state in ("scheduled", "payment-pending", "pending"):
        begins = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.starts_at))
        raise NoCapacity(f"reservation {id} begins at {begins}. Start the pool then")
    if found.state != "active":
        raise NoCapacity(f"reservation {id} is {found.state or 'in an unknown state'}: choose another one")
    if found.free < nodes:
        raise NoCapacity(
            f"reservation {id} has {found.free} of its {found.count} machines free, but {nodes} are needed"
        )
    return ReservedCapacity(found)


async def _find_reservation(calls: AwsCalls, regions: Sequence[str], id: str) -> Reservation:
    for region in regions:
        try:
            answer = await calls.call("ec2", region, "describe_capacity_reservations", CapacityReservationIds=[id])
        except CallFailed as error:
            if not error.code.startswith("InvalidCapacityReservationId"):
                raise
            continue
        for each in answer["CapacityReservations"]:
            return _parse_reservation(each, region)
    raise UsageError(f"no reservation {id} in {' or '.join(regions)}: set region= to the reservation's region")


DEADMAN_SCRIPT = "/var/lib/cloud/scripts/per-boot/skyward-deadman"


def user_data(host_key: KeyPair, deadman: int) -> str:
    """Return the cloud-config for the first boot, as JSON, which is valid YAML.

    The host key is installed before the SSH server starts. The deadman, a delayed shutdown, is armed before any
    installation, at every boot: unless an agent postpones the shutdown, the machine ends itself.

    Args:
        host_key: Host key of the machine's SSH server.
        deadman: Minutes from a boot until the shutdown.
    """
    config: dict[str, Any] = {
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "ssh_pwauth": False,
        "package_update": False,
        "package_upgrade": False,
        # cloud-init runs the scripts of this folder at each boot. This is necessary, because a reboot cancels a pending
        # shutdown.
        "write_files": [
            {"path": DEADMAN_SCRIPT, "permissions": "0755", "content": f"#!/bin/sh\nshutdown -P +{deadman}\n"}
        ],
        "runcmd": [[DEADMAN_SCRIPT]],
    }
    return f"#cloud-config\n{json.dumps(config, indent=1)}\n"


_log = get_logger("provider")

PLACEHOLDER = "(created by the launch)"  # text that plans show in place of values that only a launch creates
# EC2's error code if all machines that a request with this token created have ended
TOKEN_SPENT = "IdempotentInstanceTerminated"
# minimum minutes until the deadman's shutdown, because a shutdown in less than this time blocks logins
MIN_DEADMAN_MINUTES = 10
DEADMAN_MARGIN_MINUTES = 5  # minutes by which the deadman outlasts the agent's lease
POLL_PAUSES = (0.3, 3.0)  # first and longest pause between two queries for starting machines, in seconds


@value
class LaunchAttempt(Value):
    """Attempt to launch machines of one type at one place.

    Attributes:
        place: Zone and subnet.
        kind: Instance type.
        market: "on-demand", "spot" or "capacity-block".
        hourly: Dollars per machine and hour, including disk and address; None if unknown.
        shipped: Whether the price comes from the list in this release.
        grouped: Whether the machines are in the pool's placement group.
    """

    place: Zone
    kind: InstanceType
    market: str = "on-demand"
    hourly: float | None = None
    shipped: bool = False
    grouped: bool = False

    def __str__(self) -> str:
        market = "" if self.market == "on-demand" else f" ({self.market})"
        group = ", in a placement group" if self.grouped else ""
        return f"{self.kind.name} in {self.place.zone}{market}{group}"

    @property
    def add_prices(self) -> str:
        """Text that describes the attempt, with the price of one machine."""
        known = "$?/h" if self.hourly is None else f"${self.hourly:,.2f}/h"
        return f"{self}, {known} each{' (price list of this release)' if self.shipped else ''}"


@value
class LaunchParameters(Value):
    """Parameters that all attempts of a launch share.

    Attributes:
        count: Largest number of machines.
        least: Smallest number of machines; with fewer, the attempt fails.
        token: Idempotency token of this creation.
        node: Index of the node that gets a replacement machine; None for a whole pool.
        ttl: Seconds that the machines should live.
        boot_deadman: Minutes after boot until a machine shuts itself down, unless an agent postpones the shutdown.
        deadman: Minutes by which an agent postpones the shutdown.
        own_address: Network from which SSH is allowed.
        group: Id of a security group of the user.
        profile: Instance profile, by name or ARN.
        disk_gb: Size of each disk in GB.
        public: Whether machines have public addresses.
        account: Number of the AWS account to which the machines are charged.
        reservation: Id of the reservation that provides the machines; "" for none.
    """

    count: int
    least: int
    token: str
    node: int | None
    ttl: float | None
    boot_deadman: int
    deadman: int
    own_address: str
    group: str | None
    profile: str | None
    disk_gb: int | None
    public: bool
    account: str
    reservation: str = ""

    @property
    def lifetime_seconds(self) -> float:
        """Seconds after which machines without an agent have shut themselves down."""
        boot = self.boot_deadman * 60.0
        return boot if self.ttl is None else min(boot, self.ttl)


class InstanceLaunch:
    """Launch of one set of machines.

    Args:
        image: Returns the machine image for an attempt.
        ended: Terminates machines that were launched but are unusable.
    """

    def __init__(
        self, calls: AwsCalls, folder: LaunchJournal, parameters: LaunchParameters,
        image: Callable[[LaunchAttempt], Any], ended: Callable[[Sequence[Machine]], Any],
    ) -> None:  # fmt: skip
        self._calls = calls
        self._folder = folder
        self._parameters = parameters
        self._image = image
        self._terminate = ended
        self._security_resources: dict[tuple[str, str], SecurityResources] = {}
        self._has_group: dict[str, bool] = {}  # by region: whether the pool has a placement group there
        # by (region, quota): number of vCPUs that exceeds the quota, as EC2 has refused so many
        self._refused_vcpus: dict[tuple[str, str], int] = {}
        self._may_exist = False  # whether EC2 has not rejected a sent request, so that machines may exist

    async def launch_machines(
        self, attempts: Sequence[LaunchAttempt], failed_regions: Sequence[tuple[str, SkywardError]] = ()
    ) -> list[Machine]:
        """Launch machines with the first attempt that succeeds. Return the running machines with their addresses.

        Args:
            attempts: Attempts, in order.
            failed_regions: Regions without attempts, with their errors.

        Raises:
            NoCapacity: If all attempts fail. The message has the result of each.
            CredentialsRefused, Unreachable: If all attempts fail for this reason.
            SkywardError: If a problem occurs that no other attempt would avoid.
        """
        login, host_key = await asyncio.to_thread(self._folder.make_keys)
        reasons = list(failed_regions)
        closed: set[str] = set()  # regions in which no further attempt is made
        # Without the placement group, EC2 may have capacity for machines that are further apart.
        both = [(each, replace(each, grouped=False)) if each.grouped else (each,) for each in attempts]
        attempts = [each for some in both for each in some]
        apart: LaunchAttempt | None = None  # the attempt without a placement group that would repeat a failed attempt
        for number, attempt in enumerate(attempts, 1):
            quota, need = self._quota_need(attempt)
            is_refused = need >= self._refused_vcpus.get(quota, math.inf)
            if attempt.place.region in closed or attempt == apart or is_refused:
                continue
            before = f"{reasons[-1][0]}: {error_message(reasons[-1][1])}; " if reasons else ""
            report_progress(f"{before}attempt {number} of {len(attempts)}: {attempt.add_prices}")
            try:
                return await self._launch_attempt(attempt, login, host_key)
            except SkywardError as error:
                # If an earlier request may have created machines, do not try another place, because its machines would
                # cost money in addition.
                if self._may_exist or not (ec2_errors.is_attempt_failure(error) or ec2_errors.is_region_failure(error)):
                    raise
                if ec2_errors.is_region_failure(error):
                    closed.add(attempt.place.region)
                _log.info("%s: %s", attempt, error_message(error), extra={"pool": self._folder.pool})
                full = isinstance(error, CapacityRefused | CallFailed) and error.code in ec2_errors.NO_CAPACITY_CODES
                # If the group was not created, this attempt ran without it, and the next attempt would send the same
                # request.
                if attempt.grouped and not (full and self._has_group.get(attempt.place.region)):
                    apart = replace(attempt, grouped=False)
                reasons.append((str(attempt), await self._describe_shortage(attempt, error)))
        if not reasons:
            raise NoCapacity("no machines available: there is no place to try")
        raise combine_errors(reasons, "no machines available: ")

    def _quota_need(self, attempt: LaunchAttempt) -> tuple[tuple[str, str], int]:
        """Return the region and the quota that an attempt needs, and the number of vCPUs of its machines."""
        code = account_setup.quota_code(attempt.kind.name, attempt.market)
        return (attempt.place.region, code or attempt.kind.name), attempt.kind.vcpus * self._parameters.least

    async def _describe_shortage(self, attempt: LaunchAttempt, error: SkywardError) -> SkywardError:
        """Return the error with the quota's name and value, if EC2 refused the machines because of the quota."""
        if not (isinstance(error, CapacityRefused) and error.code in ec2_errors.VCPU_QUOTA_CODES):
            return error
        key, need = self._quota_need(attempt)
        self._refused_vcpus[key] = need
        with suppress(SkywardError):  # no quota in the error if these credentials may not read quotas
            if text := await account_setup.quota_shortage(self._calls, *key, need, refused=True):
                return CapacityRefused(text, error.code)
        return error

    async def _launch_attempt(self, attempt: LaunchAttempt, login: KeyPair, host_key: KeyPair) -> list[Machine]:
        parameters, place = self._parameters, attempt.place
        key = place.region, place.vpc
        if key not in self._security_resources:
            self._security_resources[key] = await account_setup.create_security_resources(
                self._calls, place, self._folder, login, parameters.own_address, parameters.group
            )
        if attempt.grouped and not await self._ensure_placement_group(place.region):
            attempt = replace(attempt, grouped=False)
        at, image = await self._first_request(attempt)
        request = self.build_request(attempt, image, self._security_resources[key], host_key, at)
        facts = {
            "client_token": request["ClientToken"], "region": place.region, "zone": place.zone,
            "type": attempt.kind.name, "market": attempt.market, "hourly": attempt.hourly, "count": parameters.count,
            "user": image.user, "deadman": parameters.deadman, "at": at, "pid": process_mark(),
            "account": parameters.account, "bought": attempt.kind.purchased_hardware, "image": asdict(image),
        }  # fmt: skip
        self._folder.add("ask", **facts)
        self._may_exist = True

        named: list[str] = []

        def record_answer(answer: dict[str, Any]) -> None:
            named[:] = [each["InstanceId"] for each in answer["Instances"]]
            self._folder.add("answer", client_token=request["ClientToken"], ids=named)

        try:
            # Retry only for a security group of the pool, which EC2 may not know yet. A group of the user that EC2 does
            # not know does not exist.
            new = (
                *ec2_errors.KEY_NOT_FOUND,
                *ec2_errors.PLACEMENT_GROUP_NOT_FOUND,
                *(() if parameters.group else ec2_errors.GROUP_NOT_FOUND),
            )
            ask = partial(self._calls.call, "ec2", place.region, "run_instances", answered=record_answer, **request)
            answer: dict[str, Any] = await retry_while(new, ask)
        except Unreachable:
            # Record that the request may have succeeded. The present time counts, because the last attempt may be
            # minutes later than the first, and machines can appear for some time after it.
            self._folder.add("unanswered", client_token=request["ClientToken"], at=time.time())
            raise
        except SkywardError as error:
            if named:  # EC2 has launched these machines, but its answer could not be recorded, so name them here
                raise PoolError(f"{error_message(error)}. EC2 launched {', '.join(named)}") from error
            self._folder.add("refusal", client_token=request["ClientToken"], why=error_message(error))
            self._may_exist = False
            if isinstance(error, CallFailed) and error.code == TOKEN_SPENT:
                # A killed client sent this request, and its machines have shut themselves down. Request new machines
                # with a new token.
                self._parameters = replace(parameters, token=f"{parameters.token}x")
                return await self._launch_attempt(attempt, login, host_key)
            raise
        made = [to_machine(each, place.region, facts) for each in answer["Instances"]]
        if len(made) < parameters.least:
            await self._terminate(made)
            raise PoolError(f"EC2 launched {len(made)} machines, but at least {parameters.least} were requested")
        if len(made) < parameters.count:
            report_progress(f"{attempt}: only {len(made)} of {parameters.count} machines were available")
        try:
            return await self._wait_until_running(made, facts)
        except CapacityRefused:
            await self._terminate(made)
            self._may_exist = False
            raise

    async def _first_request(self, attempt: LaunchAttempt) -> tuple[float, BootImage]:
        """Return the time and image of an attempt's first request.

        A killed client may have sent the request. EC2 requires that a request with the same token has the same content.
        """
        token = idempotency_token(self._parameters.token, attempt)
        for note in self._folder.notes():
            if note["what"] == "ask" and note.get("client_token") == token and "image" in note:
                return float(note["at"]), BootImage(**note["image"])
        return time.time(), await self._image(attempt)

    async def _ensure_placement_group(self, region: str) -> bool:
        """Create the pool's placement group in a region; return False if that fails, because the group is optional."""
        if region not in self._has_group:
            try:
                await zones_and_placement.create_placement_group(
                    self._calls, region, self._folder, account_setup.resource_name(self._folder)
                )
            except (CallFailed, CapacityRefused) as error:
                report_progress(f"continuing without a placement group: {error_message(error)}")
                self._has_group[region] = False
            else:
                self._has_group[region] = True
        return self._has_group[region]

    async def preview_request(self, attempt: LaunchAttempt) -> dict[str, Any]:
        """Return the ``RunInstances`` request of an attempt, with placeholders for values created by a launch."""
        image: BootImage = await self._image(attempt)
        own = SecurityResources(key=PLACEHOLDER, group=self._parameters.group or PLACEHOLDER)
        sent = self.build_request(attempt, image, own, KeyPair(PLACEHOLDER, PLACEHOLDER), time.time())
        return {"action": "RunInstances", "region": attempt.place.region} | sent | {"ClientToken": PLACEHOLDER}

    def build_request(
        self, attempt: LaunchAttempt, image: BootImage, own: SecurityResources, host_key: KeyPair, at: float
    ) -> dict[str, Any]:
        """Return the ``RunInstances`` request of an attempt; equal arguments yield equal requests."""
        parameters, place = self._parameters, attempt.place
        marks = instance_tags_and_launch_journal.pool_tags(
            self._folder.pool, self._folder.token, at=at, ttl=parameters.lifetime_seconds, node=parameters.node,
            hourly=attempt.hourly,
        )  # fmt: skip
        card = {
            "DeviceIndex": 0, "SubnetId": place.subnet, "Groups": [own.group], "DeleteOnTermination": True,
            "AssociatePublicIpAddress": parameters.public,
        }  # fmt: skip
        disk = {
            "VolumeSize": max(parameters.disk_gb or DEFAULT_DISK_GB, image.disk_gb), "VolumeType": "gp3",
            "DeleteOnTermination": True,
        }  # fmt: skip
        request: dict[str, Any] = {
            "ClientToken": idempotency_token(parameters.token, attempt),
            "MinCount": parameters.least,
            "MaxCount": parameters.count,
            "InstanceType": attempt.kind.name,
            "ImageId": image.ami,
            "KeyName": own.key,
            "UserData": user_data(host_key, parameters.boot_deadman),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
            "Placement": {"AvailabilityZone": place.zone}
            | ({"GroupName": account_setup.resource_name(self._folder)} if attempt.grouped else {}),
            "NetworkInterfaces": [card],
            "BlockDeviceMappings": [{"DeviceName": image.root, "Ebs": disk}],
            "TagSpecifications": instance_tags_and_launch_journal.tag_specifications(
                ["instance", "volume", "network-interface"], marks
            ),
        }
        if attempt.market == "spot":
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        if attempt.market == CAPACITY_BLOCK_MARKET:
            request["InstanceMarketOptions"] = {"MarketType": CAPACITY_BLOCK_MARKET}
        if parameters.reservation:
            target = {"CapacityReservationId": parameters.reservation}
            request["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if parameters.profile:
            kind = "Arn" if parameters.profile.startswith("arn:") else "Name"
            request["IamInstanceProfile"] = {kind: parameters.profile}
        return request

    async def _wait_until_running(self, made: Sequence[Machine], facts: dict[str, Any]) -> list[Machine]:
        """Wait until all machines run and have addresses.

        Raises:
            CapacityRefused: If EC2 ended a machine. The message has the reason.
            PoolError: If a machine has ended otherwise. The message has the reason.
        """
        region, pause = facts["region"], POLL_PAUSES[0]
        while True:
            seen = await find_instances(self._calls, region, [each.id for each in made])
            for name, each in seen.items():
                if each["State"]["Name"] in (*ENDED_STATES, *ENDING_STATES):
                    cause = each.get("StateReason", {})
                    text = f"machine {name} ended during startup: {cause.get('Message') or 'EC2 reports no reason'}"
                    # Codes with "Server." mean that EC2 itself ended the machine, usually because of missing capacity.
                    if (code := cause.get("Code", "")).startswith("Server."):
                        raise CapacityRefused(text, code.removeprefix("Server."))
                    raise PoolError(text)
            up = [
                to_machine(each, region, facts)
                for each in seen.values()
                if each["State"]["Name"] == "running"
                and each.get("PublicIpAddress" if self._parameters.public else "PrivateIpAddress")
            ]
            if len(up) == len(made):
                return sorted(up, key=lambda machine: machine.node)
            await asyncio.sleep(pause)
            pause = min(POLL_PAUSES[1], pause * 1.5)


def idempotency_token(token: str, attempt: LaunchAttempt) -> str:
    """Return the idempotency token of an attempt, derived from the creation's token and the attempt's place and type.

    EC2 scopes a token to a zone or a region, depending on the request, and rejects the token after its machines have
    ended.
    """
    place = attempt.place
    group = ["group"] if attempt.grouped else []
    text = "/".join((place.region, place.zone, place.subnet, attempt.kind.name, attempt.market, *group))
    return f"{token}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def deadman_minutes(lease: float) -> int:
    """Return the minutes until a machine without an agent ends itself; more than the lease.

    Args:
        lease: Seconds without a client and without a run until the pool ends itself.
    """
    return max(MIN_DEADMAN_MINUTES, math.ceil(lease / 60) + DEADMAN_MARGIN_MINUTES)


def describe_plan(least: int, most: int, disk: int, *, public: bool, opens: bool, grouped: bool) -> list[str]:
    """Return lines for a plan about the resources that a launch creates.

    Args:
        least: Smallest number of machines.
        most: Largest number of machines.
        disk: Size of each disk in GB.
        public: Whether the machines have public addresses.
        opens: Whether a security group is created.
        grouped: Whether a placement group is created.
    """
    many = f"{least} to {most} machines" if least < most else f"{most} machine{'s' * (most > 1)}"
    address = "a public address" if public else "no public address"
    return [
        f"{many}, each with {disk} GB of disk (gp3) and {address}",
        *(["a security group: SSH from this machine, all traffic between the machines"] if opens else []),
        *(["a placement group, if capacity allows"] if grouped else []),
        "a key pair, generated locally",
    ]


Places = Callable[[str], Awaitable[list[Zone]]]


@value
class AttemptPlanner(Value):
    """Planner of the launch attempts of one pool.

    Args:
        provider: Name of the provider, for offers.
        request: Machine requirements, including the provider's settings.
        extras: Billed extras of a machine.
        places: Returns the usable zones of a region.
        reservation: Id of the reservation that provides the machines, or None.
        together: Whether machines may be placed close together.
    """

    calls: AwsCalls
    provider: str
    spec: PoolSpec
    request: MachineRequirements
    extras: BilledExtras
    places: Places
    reservation: str | None
    together: bool

    async def list_attempts(self, regions: Sequence[str]) -> tuple[list[LaunchAttempt], list[tuple[str, SkywardError]]]:
        """Return an attempt for each fitting offer in a usable zone, and the regions that failed, with their errors.

        Raises:
            UsageError: If no offer fits. The message names the nearest ones.
            SkywardError: If all regions fail.
        """
        requirements, held = self.request, await self.find_reservation(regions)
        if held is not None:
            requirements, regions = held.narrow_request(requirements), (held.reservation.region,)

        async def ask(region: str) -> tuple[RegionOffers, list[Zone]]:
            offers = query_region(self.calls, self.provider, region, requirements, self.extras)
            return await asyncio.gather(offers, self.places(region))

        found, failed = await query_regions(regions, ask)
        zones = {place.zone: place for _, places in found for place in places}
        types = {kind.name: kind for known, _ in found for kind in known.kinds}
        order = select_offers(
            [offer for known, _ in found for offer in known.offers], requirements, zones, self.extras.ami
        )
        return [self._make_attempt(each, zones[each.zone], types[each.instance_type], held) for each in order], failed

    async def find_reservation(self, regions: Sequence[str]) -> ReservedCapacity | None:
        """Return the reservation that provides the machines, if any."""
        if self.reservation is None:
            return None
        nodes = self.spec.least_nodes
        return await find_reserved_capacity(self.calls, regions, self.reservation, self.request, nodes)

    async def make_attempt(self, offer: Offer, place: Zone, held: ReservedCapacity | None) -> LaunchAttempt:
        """Return the attempt for one offer."""
        (kind,) = await offers_and_images.find_instance_types(
            self.calls, offer.region, MachineRequirements(instance_type=offer.instance_type)
        )
        return self._make_attempt(offer, place, kind, held)

    def _make_attempt(
        self, offer: Offer, place: Zone, kind: offers_and_images.InstanceType, held: ReservedCapacity | None
    ) -> LaunchAttempt:
        priced = offer if held is None else held.price_offer(offer)
        market = offer.market if held is None else held.market
        # The place of a reservation's machines is already determined, so a placement group has no use.
        several = held is None and self.together and self.spec.most_nodes > 1
        # Use a placement group only for machines with EFA or GPUs, which communicate faster if they are close together.
        grouped = several and kind.cluster and (kind.efa or bool(kind.accelerator))
        return LaunchAttempt(place, kind, market, priced.billed_hourly, priced.shipped, grouped=grouped)
