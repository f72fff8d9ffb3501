"""Having machines: attempts in order, each of which gets all machines (of a range at least the least of them) or none,
and none of which can be made twice."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ...model.errors import NoCapacity, PoolError, SkywardError, Unreachable, together, what_of
from ...model.machine import Machine
from ...model.value import Value, value
from ...store.loggers import logger
from ..told import progress
from . import belongings, placement, tags
from .appearing import NO_GROUP, NO_KEY, NO_PLACEMENT, once_known
from .belongings import Belongings
from .calls import Calls
from .failure_scope import is_of_attempt, is_of_region
from .failures import FULL, CallFailed, CapacityRefused
from .host_keys import KeyPair
from .images import BootImage, root_gb
from .kinds import Kind
from .machines import ENDED, ENDING, instances, machine_of
from .network import Zone
from .offers import DISK
from .pool_folder import PoolFolder
from .reservations import BLOCK
from .user_data import user_data

_log = logger("provider")

MADE_THEN = "(made at the start)"  # in a plan, in the place of what only a start makes
SPENT = "IdempotentInstanceTerminated"  # of a token whose machines have ended
LEAST_DEADMAN = 10  # minutes: shorter ones keep people from logging in
BEYOND = 5  # minutes for which the deadman waits longer than the lease
PAUSES = (0.3, 3.0)  # seconds between two looks at machines that come up, at first and at most


@value
class Attempt(Value):
    """Machines of one kind at one place.

    Attributes:
        market: "on-demand", "spot" or "capacity-block".
        hourly: dollars for a machine and an hour, with what is billed beside it; None where that is not known.
        shipped: whether that is by the list of this release.
        grouped: whether they stand close together, in the pool's placement group.
    """

    place: Zone
    kind: Kind
    market: str = "on-demand"
    hourly: float | None = None
    shipped: bool = False
    grouped: bool = False

    def __str__(self) -> str:
        market = "" if self.market == "on-demand" else f" ({self.market})"
        group = ", in a placement group" if self.grouped else ""
        return f"{self.kind.name} in {self.place.zone}{market}{group}"

    @property
    def priced(self) -> str:
        """The same with what one of its machines costs."""
        known = "$?/h" if self.hourly is None else f"${self.hourly:,.2f}/h"
        return f"{self}, {known} each{', by the list of this release' if self.shipped else ''}"


@value
class Wishes(Value):
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
    def lasts(self) -> float:
        """Seconds after which they have ended where nothing is ever done with them."""
        boot = self.boot_deadman * 60.0
        return boot if self.ttl is None else min(boot, self.ttl)


class Launch:
    """One creation.

    Args:
        image: gives the machine image for an attempt.
        ended: told of machines that exist and are of no use.
    """

    def __init__(
        self, calls: Calls, folder: PoolFolder, wishes: Wishes, image: Callable[[Attempt], Any],
        ended: Callable[[Sequence[Machine]], Any],
    ) -> None:  # fmt: skip
        self._calls = calls
        self._folder = folder
        self._wishes = wishes
        self._image = image
        self._end = ended
        self._belongings: dict[tuple[str, str], Belongings] = {}
        self._has_group: dict[str, bool] = {}  # by region
        self._may_exist = False  # whether EC2 was asked for machines, and has not refused

    async def machines(
        self, attempts: Sequence[Attempt], left_out: Sequence[tuple[str, SkywardError]] = ()
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
        whys = list(left_out)
        closed: set[str] = set()  # regions in which nothing more is tried
        attempts = list(_spread_out(attempts))
        apart: Attempt | None = None  # what another try without the group would be of no use for
        for number, attempt in enumerate(attempts, 1):
            if attempt.place.region in closed or attempt == apart:
                continue
            before = f"{whys[-1][0]}: {what_of(whys[-1][1])}; " if whys else ""
            progress(f"{before}attempt {number} of {len(attempts)}: {attempt.priced}")
            try:
                return await self._try(attempt, login, host_key)
            except SkywardError as error:
                # Where machines may exist, others would be paid beside them.
                if self._may_exist or not (is_of_attempt(error) or is_of_region(error)):
                    raise
                if is_of_region(error):
                    closed.add(attempt.place.region)
                _log.info("%s: %s", attempt, what_of(error), extra={"pool": self._folder.pool})
                full = isinstance(error, CapacityRefused | CallFailed) and error.code in FULL
                # Where there is no group, what was asked for is what would be asked for next.
                if attempt.grouped and not (full and self._has_group.get(attempt.place.region)):
                    apart = replace(attempt, grouped=False)
                whys.append((str(attempt), error))
        if not whys:
            raise NoCapacity("no machines to be had: there is no place to try")
        raise together(whys, "no machines to be had: ")

    async def _try(self, attempt: Attempt, login: KeyPair, host_key: KeyPair) -> list[Machine]:
        wishes, place = self._wishes, attempt.place
        key = place.region, place.vpc
        if key not in self._belongings:
            self._belongings[key] = await belongings.make(
                self._calls, place, self._folder, login, wishes.own_address, wishes.group
            )
        if attempt.grouped and not await self._group(place.region):
            attempt = replace(attempt, grouped=False)
        at, image = await self._as_before(attempt)
        request = self.request(attempt, image, self._belongings[key], host_key, at)
        facts = {
            "client_token": request["ClientToken"], "region": place.region, "zone": place.zone,
            "type": attempt.kind.name, "market": attempt.market, "hourly": attempt.hourly, "count": wishes.count,
            "user": image.user, "deadman": wishes.deadman, "at": at, "pid": os.getpid(),
            "account": wishes.account, "bought": attempt.kind.bought, "image": asdict(image),
        }  # fmt: skip
        self._folder.note("ask", **facts)
        self._may_exist = True
        try:
            # A group that a person has named is there, or is none.
            new = (*NO_KEY, *NO_PLACEMENT, *(() if wishes.group else NO_GROUP))
            noted = partial(self._note_answer, facts)
            ask = partial(self._calls.call, "ec2", place.region, "run_instances", answered=noted, **request)
            answer: dict[str, Any] = await once_known(new, ask)
        except Unreachable:
            raise  # it may have been done all the same
        except SkywardError as error:
            self._folder.note("refusal", client_token=request["ClientToken"], why=what_of(error))
            self._may_exist = False
            if isinstance(error, CallFailed) and error.code == SPENT:
                # Asked for by a client that was killed; by now it has ended itself.
                self._wishes = replace(wishes, token=f"{wishes.token}x")
                return await self._try(attempt, login, host_key)
            raise
        made = [machine_of(each, place.region, facts) for each in answer["Instances"]]
        if len(made) < wishes.least:
            await self._end(made)
            raise PoolError(f"EC2 gave {len(made)} machines where {wishes.least} or none were asked for")
        if len(made) < wishes.count:
            progress(f"{attempt}: {len(made)} of {wishes.count} machines were to be had")
        return await self._come_up(made, facts)

    async def _as_before(self, attempt: Attempt) -> tuple[float, BootImage]:
        """When an attempt was made first, and with which image: a client that was killed may have made it, and what EC2
        is asked for with the same token has to be the same."""
        token = client_token(self._wishes.token, attempt)
        for note in self._folder.notes():
            if note["what"] == "ask" and note.get("client_token") == token and "image" in note:
                return float(note["at"]), BootImage(**note["image"])
        return time.time(), await self._image(attempt)

    async def _group(self, region: str) -> bool:
        """Have the pool's placement group in a region; whether there is one. Machines are of use without it, too."""
        if region not in self._has_group:
            try:
                await placement.make(self._calls, region, self._folder, belongings.name_of(self._folder))
            except (CallFailed, CapacityRefused) as error:
                progress(f"machines go without a placement group: {what_of(error)}")
                self._has_group[region] = False
            else:
                self._has_group[region] = True
        return self._has_group[region]

    def _note_answer(self, facts: dict[str, Any], answer: dict[str, Any]) -> None:
        ids = [each["InstanceId"] for each in answer["Instances"]]
        self._folder.note("answer", client_token=facts["client_token"], ids=ids)

    async def planned(self, attempt: Attempt) -> dict[str, Any]:
        """``RunInstances`` as it will be sent for an attempt, with words in the place of what is made at a start."""
        image: BootImage = await self._image(attempt)
        own = Belongings(key=MADE_THEN, group=self._wishes.group or MADE_THEN)
        sent = self.request(attempt, image, own, KeyPair(MADE_THEN, MADE_THEN), time.time())
        return {"action": "RunInstances", "region": attempt.place.region} | sent | {"ClientToken": MADE_THEN}

    def request(
        self, attempt: Attempt, image: BootImage, own: Belongings, host_key: KeyPair, at: float
    ) -> dict[str, Any]:
        """``RunInstances`` for an attempt; the same attempt, made ``at`` the same time, is the same request."""
        wishes, place = self._wishes, attempt.place
        marks = tags.of_pool(
            self._folder.pool, self._folder.token, at=at, ttl=wishes.lasts, node=wishes.node,
            hourly=attempt.hourly,
        )  # fmt: skip
        card = {
            "DeviceIndex": 0, "SubnetId": place.subnet, "Groups": [own.group], "DeleteOnTermination": True,
            "AssociatePublicIpAddress": wishes.public,
        }  # fmt: skip
        disk = {
            "VolumeSize": root_gb(wishes.disk_gb or DISK, image.disk_gb), "VolumeType": "gp3",
            "DeleteOnTermination": True,
        }  # fmt: skip
        request: dict[str, Any] = {
            "ClientToken": client_token(wishes.token, attempt),
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
            | ({"GroupName": belongings.name_of(self._folder)} if attempt.grouped else {}),
            "NetworkInterfaces": [card],
            "BlockDeviceMappings": [{"DeviceName": image.root, "Ebs": disk}],
            "TagSpecifications": tags.specification(["instance", "volume", "network-interface"], marks),
        }
        if attempt.market == "spot":
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        if attempt.market == BLOCK:
            request["InstanceMarketOptions"] = {"MarketType": BLOCK}
        if wishes.reservation:
            target = {"CapacityReservationId": wishes.reservation}
            request["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
        if wishes.profile:
            kind = "Arn" if wishes.profile.startswith("arn:") else "Name"
            request["IamInstanceProfile"] = {kind: wishes.profile}
        return request

    async def _come_up(self, made: Sequence[Machine], facts: dict[str, Any]) -> list[Machine]:
        """Wait until all run and have their addresses.

        Raises:
            PoolError: one has ended; says why.
        """
        region, pause = facts["region"], PAUSES[0]
        while True:
            seen = await instances(self._calls, region, [each.id for each in made])
            for name, each in seen.items():
                if each["State"]["Name"] in (*ENDED, *ENDING):
                    reason = each.get("StateReason", {}).get("Message", "") or "EC2 does not say why"
                    raise PoolError(f"machine {name} ended before it was up: {reason}")
            up = [
                machine_of(each, region, facts)
                for each in seen.values()
                if each["State"]["Name"] == "running"
                and each.get("PublicIpAddress" if self._wishes.public else "PrivateIpAddress")
            ]
            if len(up) == len(made):
                return sorted(up, key=lambda machine: machine.node)
            await asyncio.sleep(pause)
            pause = min(PAUSES[1], pause * 1.5)


def disk_of(requests: Sequence[dict[str, Any]]) -> int:
    """GB of the disk in the first of planned requests; 0 where there is none."""
    return next((each["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] for each in requests), 0)


def _spread_out(attempts: Sequence[Attempt]) -> Iterator[Attempt]:
    """Attempts, with one without the group behind each that has it: there may be room for machines further apart."""
    for each in attempts:
        yield each
        if each.grouped:
            yield replace(each, grouped=False)


def client_token(token: str, attempt: Attempt) -> str:
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
    return max(LEAST_DEADMAN, math.ceil(lease / 60) + BEYOND)


def made_in_words(least: int, most: int, disk: int, *, public: bool, opens: bool, grouped: bool) -> list[str]:
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
