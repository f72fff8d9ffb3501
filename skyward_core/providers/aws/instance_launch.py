"""RunInstances and fleets: zones in order, user data, reservations."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from skyward_core.model.machines import Machine
from skyward_core.model.offers import Block, MachineRequirements, Offer, Reservation
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.aws import account_resources, instance_offers, instance_tags, zones_and_placement
from skyward_core.providers.aws.account_resources import SecurityResources
from skyward_core.providers.aws.boto_calls import AwsCalls
from skyward_core.providers.aws.ec2_errors import (
    GROUP_NOT_FOUND,
    KEY_NOT_FOUND,
    NO_CAPACITY_CODES,
    PLACEMENT_GROUP_NOT_FOUND,
    CallFailed,
    CapacityRefused,
    is_attempt_failure,
    is_region_failure,
    query_regions,
    retry_while,
)
from skyward_core.providers.aws.instance_lookup_and_end import ENDED_STATES, ENDING_STATES, find_instances, to_machine
from skyward_core.providers.aws.instance_offers import (
    DEFAULT_DISK_GB,
    BilledExtras,
    BootImage,
    InstanceType,
    RegionOffers,
    query_region,
    select_offers,
)
from skyward_core.providers.aws.launch_journal_and_keys import KeyPair, LaunchJournal
from skyward_core.providers.aws.zones_and_placement import Zone
from skyward_core.providers.provider_calls import report_progress
from skyward_core.store.debug_log import get_logger
from skyward_core.util.light_dataclass import Value, value

CAPACITY_BLOCK_MARKET = "capacity-block"  # what EC2 calls this market
LINUX_PLATFORM = "Linux/UNIX"
ENDED_RESERVATION_STATES = ("expired", "cancelled", "failed", "payment-failed", "unsupported")
BLOCK_END_MARGIN = 30 * 60.0  # seconds by which EC2 ends a block's machines before the block is over


def _parse_reservation(told: Mapping[str, Any], region: str) -> Reservation:
    start, end = told.get("StartDate"), told.get("EndDate")
    return Reservation(
        id=told["CapacityReservationId"],
        instance_type=told.get("InstanceType", ""),
        region=region,
        zone=told.get("AvailabilityZone", ""),
        count=told.get("TotalInstanceCount", 0),
        free=told.get("AvailableInstanceCount", 0),
        state=told.get("State", ""),
        is_block=told.get("ReservationType") == CAPACITY_BLOCK_MARKET,
        starts_at=start.timestamp() if start else 0.0,
        ends_at=end.timestamp() if end else None,
    )


async def buy_block(calls: AwsCalls, block: Block, token: str) -> Reservation:
    """Buy a block. The call has no idempotency token, so that it is made once.

    Raises:
        Unreachable: nobody knows whether it was bought.
        SkywardError: it was not.
    """
    marks = instance_tags.tag_specifications(["capacity-reservation"], instance_tags.purchase_tags(token))
    try:
        told = await calls.call(
            "ec2", block.region, "purchase_capacity_block", once=True,
            CapacityBlockOfferingId=block.id, InstancePlatform=LINUX_PLATFORM, TagSpecifications=marks,
        )  # fmt: skip
    except CallFailed as error:
        if error.code:
            raise
        raise Unreachable(error_message(error)) from error  # an answer that nobody could read
    try:
        return _parse_reservation(told.get("CapacityReservation") or told["CapacityReservations"][0], block.region)
    except (LookupError, TypeError, AttributeError) as error:
        raise Unreachable(f"EC2's answer names no reservation ({type(error).__name__})") from error


async def find_reservations(
    calls: AwsCalls, region: str, filters: Sequence[Mapping[str, Any]] = ()
) -> list[Reservation]:
    """Those of a region that have not ended.

    Raises:
        SkywardError: it cannot be told.
    """
    asked = {"Filters": list(filters)} if filters else {}
    told = await calls.call_all("ec2", region, "describe_capacity_reservations", "CapacityReservations", **asked)
    found = [_parse_reservation(each, region) for each in told if each.get("State") not in ENDED_RESERVATION_STATES]
    return sorted(found, key=lambda each: (each.starts_at, each.id))


@value
class ReservedCapacity(Value):
    """A reservation that a pool's machines are taken from."""

    reservation: Reservation

    @property
    def market(self) -> str:
        return CAPACITY_BLOCK_MARKET if self.reservation.is_block else "on-demand"

    def narrow_request(self, requirements: MachineRequirements) -> MachineRequirements:
        """What machines have to be, which is what the reservation holds."""
        held = self.reservation
        return replace(requirements, instance_type=held.instance_type, zones=(held.zone,), regions=(held.region,))

    def price_offer(self, offer: Offer) -> Offer:
        """What one of its machines costs: those of a block are paid."""
        return replace(offer, hourly=0.0) if self.reservation.is_block else offer

    @property
    def note(self) -> str:
        """What a person should know of it."""
        held = self.reservation
        said = f"machines are those of reservation {held.id}"
        if not held.is_block:
            return said
        ends = time.localtime((held.ends_at or 0.0) - BLOCK_END_MARGIN)
        return f"{said}, a Capacity Block that is paid; EC2 ends them at {time.strftime('%Y-%m-%d %H:%M', ends)}"


async def find_reserved_capacity(
    calls: AwsCalls, regions: Sequence[str], id: str, requirements: MachineRequirements, nodes: int
) -> ReservedCapacity:
    """The reservation of that name, which has what is asked for now.

    Args:
        regions: where it may be.
        requirements: what a machine has to be; what it names otherwise than the reservation is refused.

    Raises:
        UsageError: there is none, or it is another kind of machine, or elsewhere.
        NoCapacity: it has not begun, is over, or has too few machines.
        SkywardError: it cannot be told.
    """
    if requirements.allocation != "on-demand":
        raise UsageError(f"reservation {id} is no {requirements.allocation} market: leave the allocation out")
    found = await _find_reservation(calls, regions, id)
    for what, wanted, has in (
        ("type", requirements.instance_type and (requirements.instance_type,), found.instance_type),
        ("zone", requirements.zones, found.zone),
    ):
        if wanted and has not in wanted:
            raise UsageError(
                f"reservation {id} is of {what} {has}, and {' or '.join(wanted)} was asked for: leave one out"
            )
    if found.state in ("scheduled", "payment-pending", "pending"):
        begins = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.starts_at))
        raise NoCapacity(f"reservation {id} begins at {begins}: start the pool then")
    if found.state != "active":
        raise NoCapacity(f"reservation {id} is {found.state or 'in no state that EC2 tells'}: name another one")
    if found.free < nodes:
        raise NoCapacity(
            f"reservation {id} has {found.free} of its {found.count} machines free, and {nodes} are wanted"
        )
    return ReservedCapacity(found)


async def _find_reservation(calls: AwsCalls, regions: Sequence[str], id: str) -> Reservation:
    for region in regions:
        try:
            told = await calls.call("ec2", region, "describe_capacity_reservations", CapacityReservationIds=[id])
        except CallFailed as error:
            if not error.code.startswith("InvalidCapacityReservationId"):
                raise
            continue
        for each in told["CapacityReservations"]:
            return _parse_reservation(each, region)
    raise UsageError(f"there is no reservation {id} in {' or '.join(regions)}: name the region that it is in")


def user_data(host_key: KeyPair, deadman: int) -> str:
    """The first boot's cloud-config. JSON is YAML, too.

    The host's key is in its place before an SSH server starts. The deadman is armed before anything is installed:
    from then on the machine ends itself unless an agent puts that off.

    Args:
        host_key: what the host's SSH server shows.
        deadman: minutes.
    """
    config: dict[str, Any] = {
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "ssh_pwauth": False,
        "package_update": False,
        "package_upgrade": False,
        "runcmd": [["shutdown", "-P", f"+{deadman}"]],
    }
    return f"#cloud-config\n{json.dumps(config, indent=1)}\n"


_log = get_logger("provider")

PLACEHOLDER = "(made at the start)"  # in a plan, in the place of what only a start makes
TOKEN_SPENT = "IdempotentInstanceTerminated"  # of a token whose machines have ended
MIN_DEADMAN_MINUTES = 10  # minutes: shorter ones keep people from logging in
DEADMAN_MARGIN_MINUTES = 5  # minutes for which the deadman waits longer than the lease
POLL_PAUSES = (0.3, 3.0)  # seconds between two looks at machines that come up, at first and at most


@value
class LaunchAttempt(Value):
    """Machines of one kind at one place.

    Attributes:
        market: "on-demand", "spot" or "capacity-block".
        hourly: dollars for a machine and an hour, with what is billed beside it; None where that is not known.
        shipped: whether that is by the list of this release.
        grouped: whether they stand close together, in the pool's placement group.
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
        """The same with what one of its machines costs."""
        known = "$?/h" if self.hourly is None else f"${self.hourly:,.2f}/h"
        return f"{self}, {known} each{', by the list of this release' if self.shipped else ''}"


@value
class LaunchParameters(Value):
    """What all attempts of a launch have in common.

    Attributes:
        count: how many machines, at most.
        least: so many at least, or none.
        token: idempotency token of this creation.
        node: the one that a machine in another's place is for.
        ttl: seconds after which they should be gone.
        boot_deadman: minutes after its boot at which a machine ends itself where no agent puts that off.
        deadman: minutes by which an agent puts it off.
        own_address: the network from which SSH is let in.
        group: a security group of the person's own.
        profile: the instance profile, by name or ARN.
        public: whether machines have public addresses.
        account: who pays, by AWS's number.
        reservation: which one machines are taken from; "" for none.
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
        """Seconds after which they have ended where nothing is ever done with them."""
        boot = self.boot_deadman * 60.0
        return boot if self.ttl is None else min(boot, self.ttl)


class InstanceLaunch:
    """One creation.

    Args:
        image: gives the machine image for an attempt.
        ended: told of machines that exist and are of no use.
    """

    def __init__(
        self, calls: AwsCalls, folder: LaunchJournal, wishes: LaunchParameters, image: Callable[[LaunchAttempt], Any],
        ended: Callable[[Sequence[Machine]], Any],
    ) -> None:  # fmt: skip
        self._calls = calls
        self._folder = folder
        self._parameters = wishes
        self._image = image
        self._terminate = ended
        self._security_resources: dict[tuple[str, str], SecurityResources] = {}
        self._has_group: dict[str, bool] = {}  # by region
        self._may_exist = False  # whether EC2 was asked for machines, and has not refused

    async def launch_machines(
        self, attempts: Sequence[LaunchAttempt], left_out: Sequence[tuple[str, SkywardError]] = ()
    ) -> list[Machine]:
        """The machines of the first attempt that gets them, running, with their addresses.

        Args:
            left_out: regions in which nothing can be tried, and why.

        Raises:
            NoCapacity: none did; says what became of each.
            CredentialsRefused, Unreachable: none did, and that is why of all.
            SkywardError: something that no other attempt would change.
        """
        login, host_key = await asyncio.to_thread(self._folder.make_keys)
        reasons = list(left_out)
        closed: set[str] = set()  # regions in which nothing more is tried
        # Without the group there may be room for machines further apart.
        both = [(each, replace(each, grouped=False)) if each.grouped else (each,) for each in attempts]
        attempts = [each for some in both for each in some]
        apart: LaunchAttempt | None = None  # what another try without the group would be of no use for
        for number, attempt in enumerate(attempts, 1):
            if attempt.place.region in closed or attempt == apart:
                continue
            before = f"{reasons[-1][0]}: {error_message(reasons[-1][1])}; " if reasons else ""
            report_progress(f"{before}attempt {number} of {len(attempts)}: {attempt.add_prices}")
            try:
                return await self._launch_attempt(attempt, login, host_key)
            except SkywardError as error:
                # Where machines may exist, others would be paid beside them.
                if self._may_exist or not (is_attempt_failure(error) or is_region_failure(error)):
                    raise
                if is_region_failure(error):
                    closed.add(attempt.place.region)
                _log.info("%s: %s", attempt, error_message(error), extra={"pool": self._folder.pool})
                full = isinstance(error, CapacityRefused | CallFailed) and error.code in NO_CAPACITY_CODES
                # Where there is no group, what was asked for is what would be asked for next.
                if attempt.grouped and not (full and self._has_group.get(attempt.place.region)):
                    apart = replace(attempt, grouped=False)
                reasons.append((str(attempt), error))
        if not reasons:
            raise NoCapacity("no machines to be had: there is no place to try")
        raise combine_errors(reasons, "no machines to be had: ")

    async def _launch_attempt(self, attempt: LaunchAttempt, login: KeyPair, host_key: KeyPair) -> list[Machine]:
        wishes, place = self._parameters, attempt.place
        key = place.region, place.vpc
        if key not in self._security_resources:
            self._security_resources[key] = await account_resources.create_security_resources(
                self._calls, place, self._folder, login, wishes.own_address, wishes.group
            )
        if attempt.grouped and not await self._ensure_placement_group(place.region):
            attempt = replace(attempt, grouped=False)
        at, image = await self._first_ask(attempt)
        request = self.build_request(attempt, image, self._security_resources[key], host_key, at)
        facts = {
            "client_token": request["ClientToken"], "region": place.region, "zone": place.zone,
            "type": attempt.kind.name, "market": attempt.market, "hourly": attempt.hourly, "count": wishes.count,
            "user": image.user, "deadman": wishes.deadman, "at": at, "pid": os.getpid(),
            "account": wishes.account, "bought": attempt.kind.purchased_hardware, "image": asdict(image),
        }  # fmt: skip
        self._folder.add("ask", **facts)
        self._may_exist = True

        def record_answer(answer: dict[str, Any]) -> None:
            ids = [each["InstanceId"] for each in answer["Instances"]]
            self._folder.add("answer", client_token=request["ClientToken"], ids=ids)

        try:
            # A group that a person has named is there, or is none.
            new = (*KEY_NOT_FOUND, *PLACEMENT_GROUP_NOT_FOUND, *(() if wishes.group else GROUP_NOT_FOUND))
            ask = partial(self._calls.call, "ec2", place.region, "run_instances", answered=record_answer, **request)
            answer: dict[str, Any] = await retry_while(new, ask)
        except Unreachable:
            raise  # it may have been done all the same
        except SkywardError as error:
            self._folder.add("refusal", client_token=request["ClientToken"], why=error_message(error))
            self._may_exist = False
            if isinstance(error, CallFailed) and error.code == TOKEN_SPENT:
                # Asked for by a client that was killed; by now it has ended itself.
                self._parameters = replace(wishes, token=f"{wishes.token}x")
                return await self._launch_attempt(attempt, login, host_key)
            raise
        made = [to_machine(each, place.region, facts) for each in answer["Instances"]]
        if len(made) < wishes.least:
            await self._terminate(made)
            raise PoolError(f"EC2 gave {len(made)} machines where {wishes.least} or none were asked for")
        if len(made) < wishes.count:
            report_progress(f"{attempt}: {len(made)} of {wishes.count} machines were to be had")
        return await self._wait_until_running(made, facts)

    async def _first_ask(self, attempt: LaunchAttempt) -> tuple[float, BootImage]:
        """When an attempt was made first, and with which image: a client that was killed may have made it, and what EC2
        is asked for with the same token has to be the same."""
        token = idempotency_token(self._parameters.token, attempt)
        for note in self._folder.notes():
            if note["what"] == "ask" and note.get("client_token") == token and "image" in note:
                return float(note["at"]), BootImage(**note["image"])
        return time.time(), await self._image(attempt)

    async def _ensure_placement_group(self, region: str) -> bool:
        """Have the pool's placement group in a region; whether there is one. Machines are of use without it, too."""
        if region not in self._has_group:
            try:
                await zones_and_placement.create_placement_group(
                    self._calls, region, self._folder, account_resources.resource_name(self._folder)
                )
            except (CallFailed, CapacityRefused) as error:
                report_progress(f"machines go without a placement group: {error_message(error)}")
                self._has_group[region] = False
            else:
                self._has_group[region] = True
        return self._has_group[region]

    async def preview_request(self, attempt: LaunchAttempt) -> dict[str, Any]:
        """``RunInstances`` as it will be sent for an attempt, with words in the place of what is made at a start."""
        image: BootImage = await self._image(attempt)
        own = SecurityResources(key=PLACEHOLDER, group=self._parameters.group or PLACEHOLDER)
        sent = self.build_request(attempt, image, own, KeyPair(PLACEHOLDER, PLACEHOLDER), time.time())
        return {"action": "RunInstances", "region": attempt.place.region} | sent | {"ClientToken": PLACEHOLDER}

    def build_request(
        self, attempt: LaunchAttempt, image: BootImage, own: SecurityResources, host_key: KeyPair, at: float
    ) -> dict[str, Any]:
        """``RunInstances`` for an attempt; the same attempt, made ``at`` the same time, is the same request."""
        wishes, place = self._parameters, attempt.place
        marks = instance_tags.pool_tags(
            self._folder.pool, self._folder.token, at=at, ttl=wishes.lifetime_seconds, node=wishes.node,
            hourly=attempt.hourly,
        )  # fmt: skip
        card = {
            "DeviceIndex": 0, "SubnetId": place.subnet, "Groups": [own.group], "DeleteOnTermination": True,
            "AssociatePublicIpAddress": wishes.public,
        }  # fmt: skip
        disk = {
            "VolumeSize": max(wishes.disk_gb or DEFAULT_DISK_GB, image.disk_gb), "VolumeType": "gp3",
            "DeleteOnTermination": True,
        }  # fmt: skip
        request: dict[str, Any] = {
            "ClientToken": idempotency_token(wishes.token, attempt),
            "MinCount": wishes.least,
            "MaxCount": wishes.count,
            "InstanceType": attempt.kind.name,
            "ImageId": image.ami,
            "KeyName": own.key,
            "UserData": user_data(host_key, wishes.boot_deadman),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {
                "HttpTokens": "required",
                "HttpPutResponseHopLimit": 1,
                "HttpEndpoint": "enabled",
            },
            "Placement": {"AvailabilityZone": place.zone}
            | ({"GroupName": account_resources.resource_name(self._folder)} if attempt.grouped else {}),
            "NetworkInterfaces": [card],
            "BlockDeviceMappings": [{"DeviceName": image.root, "Ebs": disk}],
            "TagSpecifications": instance_tags.tag_specifications(["instance", "volume", "network-interface"], marks),
        }
        if attempt.market == "spot":
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        if attempt.market == CAPACITY_BLOCK_MARKET:
            request["InstanceMarketOptions"] = {"MarketType": CAPACITY_BLOCK_MARKET}
        if wishes.reservation:
            target = {"CapacityReservationId": wishes.reservation}
            request["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if wishes.profile:
            kind = "Arn" if wishes.profile.startswith("arn:") else "Name"
            request["IamInstanceProfile"] = {kind: wishes.profile}
        return request

    async def _wait_until_running(self, made: Sequence[Machine], facts: dict[str, Any]) -> list[Machine]:
        """Wait until all run and have their addresses.

        Raises:
            PoolError: one has ended; says why.
        """
        region, pause = facts["region"], POLL_PAUSES[0]
        while True:
            seen = await find_instances(self._calls, region, [each.id for each in made])
            for name, each in seen.items():
                if each["State"]["Name"] in (*ENDED_STATES, *ENDING_STATES):
                    reason = each.get("StateReason", {}).get("Message", "") or "EC2 does not say why"
                    raise PoolError(f"machine {name} ended before it was up: {reason}")
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
    """The idempotency token of an attempt: that of the creation, and what is asked for where.

    EC2 counts it in a zone or in a region, depending on the request, and never takes it again once its machines have
    ended.
    """
    place = attempt.place
    group = ["group"] if attempt.grouped else []
    text = "/".join((place.region, place.zone, place.subnet, attempt.kind.name, attempt.market, *group))
    return f"{token}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def deadman_minutes(lease: float) -> int:
    """For how long a machine that nobody speaks with waits before it ends itself: longer than its pool would.

    Args:
        lease: seconds without a client and without a run after which the pool does.
    """
    return max(MIN_DEADMAN_MINUTES, math.ceil(lease / 60) + DEADMAN_MARGIN_MINUTES)


def describe_plan(least: int, most: int, disk: int, *, public: bool, opens: bool, grouped: bool) -> list[str]:
    """What a launch makes, for a plan.

    Args:
        least, most: how many machines.
        disk: GB of each one's.
        public: whether they have public addresses.
        opens: whether a security group is made.
        grouped: whether they are to be close together.
    """
    many = f"{least} to {most} machines" if least < most else f"{most} machine{'s' * (most > 1)}"
    address = "a public address" if public else "no public address"
    return [
        f"{many}, each with {disk} GB of disk (gp3) and {address}",
        *(["a security group: SSH from here, all among the machines"] if opens else []),
        *(["a placement group, for machines close together where there is room"] if grouped else []),
        "a key pair, made here",
    ]


Places = Callable[[str], Awaitable[list[Zone]]]


@value
class AttemptPlanner(Value):
    """Those of one pool.

    Args:
        provider: the name that offers carry.
        requirements: what a machine has to be, with all that the provider was told.
        extras: what is billed beside a machine.
        places: gives the zones of a region in which machines can go.
        reservation: the id of the one that they are taken from, or None.
        together: whether they may be asked for close together.
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
        """Each offer that fits, in a place where machines can go; and regions that are left out, and why.

        Raises:
            UsageError: nothing fits; says what comes nearest.
            SkywardError: no region says anything.
        """
        requirements, held = self.request, await self.find_reservation(regions)
        if held is not None:
            requirements, regions = held.narrow_request(requirements), (held.reservation.region,)

        async def ask(region: str) -> tuple[RegionOffers, list[Zone]]:
            told = query_region(self.calls, self.provider, region, requirements, self.extras)
            return await asyncio.gather(told, self.places(region))

        found, left_out = await query_regions(regions, ask)
        there = {place.zone: place for _, places in found for place in places}
        all_kinds = {kind.name: kind for told, _ in found for kind in told.kinds}
        order = select_offers([offer for told, _ in found for offer in told.offers], requirements, there)
        return [
            self._make_attempt(each, there[each.zone], all_kinds[each.instance_type], held) for each in order
        ], left_out

    async def find_reservation(self, regions: Sequence[str]) -> ReservedCapacity | None:
        """The reservation that machines are taken from."""
        if self.reservation is None:
            return None
        nodes = self.spec.least_nodes
        return await find_reserved_capacity(self.calls, regions, self.reservation, self.request, nodes)

    async def make_attempt(self, offer: Offer, place: Zone, held: ReservedCapacity | None) -> LaunchAttempt:
        """One for an offer alone."""
        (kind,) = await instance_offers.find_instance_types(
            self.calls, offer.region, MachineRequirements(instance_type=offer.instance_type)
        )
        return self._make_attempt(offer, place, kind, held)

    def _make_attempt(
        self, offer: Offer, place: Zone, kind: instance_offers.InstanceType, held: ReservedCapacity | None
    ) -> LaunchAttempt:
        priced = offer if held is None else held.price_offer(offer)
        market = offer.market if held is None else held.market
        several = held is None and self.together and self.spec.most_nodes > 1  # a reservation is where it is
        # Machines with a fast network or GPUs are faster close together.
        grouped = several and kind.cluster and (kind.efa or bool(kind.accelerator))
        return LaunchAttempt(place, kind, market, priced.billed_hourly, priced.shipped, grouped=grouped)
