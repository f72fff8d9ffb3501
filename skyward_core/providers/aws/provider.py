"""EC2 as a provider: settings, capacity blocks."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import PoolError, SkywardError, UsageError, hint_of, what_of
from skyward_core.model.machines import Bought, Check, Machine
from skyward_core.model.misuse_errors import KnowsItsWords
from skyward_core.model.offers import Block, OfferList, RentalPlan, Reservation, Wish
from skyward_core.model.older_api_arguments import Rule, Rules, refused, renamed, takes, unheeded
from skyward_core.model.provider_settings import Field, Setting, flag, words
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.aws import (
    account_resources,
    boto_calls,
    instance_launch,
    instance_offers,
    instances,
    network,
    spot_interruption_watcher,
)
from skyward_core.providers.aws import account_resources as account
from skyward_core.providers.aws import instance_offers as kinds
from skyward_core.providers.aws.boto_calls import Account, Calls, calls_of, in_thread
from skyward_core.providers.aws.ec2_errors import CallFailed, CapacityRefused
from skyward_core.providers.aws.instance_launch import (
    MADE_THEN,
    Attempt,
    Attempts,
    Launch,
    Wishes,
    deadman_minutes,
    disk_of,
    made_in_words,
)
from skyward_core.providers.aws.instance_offers import DISK, Extras, Kind, asked, fitting, known
from skyward_core.providers.aws.launch_journal import PoolFolder
from skyward_core.providers.provider import there
from skyward_core.providers.ssh_machines import all_of, end, look
from skyward_core.store import state_folder
from skyward_core.transport.ssh.host_address import Target

if TYPE_CHECKING:
    from skyward_core.model.machines import Inventory, Leftover
    from skyward_core.model.provider_settings import Setting
    from skyward_core.transport.ssh.ssh_transport import SSHTransport


DAY = 24  # hours: blocks are sold by days


async def blocks(
    calls: Calls, provider: str, region: str, kinds: Sequence[Kind], nodes: int, hours: int
) -> list[Block]:
    """What is sold in a region now, the earliest first.

    Raises:
        UsageError: none is sold for so long.
        SkywardError: it cannot be told.
    """
    if hours < DAY or hours % DAY:
        raise UsageError(f"Capacity Blocks are sold by days: {DAY} hours, {2 * DAY}, and so on, not {hours}")
    found = await asyncio.gather(*(_of_type(calls, provider, region, kind.name, nodes, hours) for kind in kinds))
    return sorted((each for some in found for each in some), key=lambda block: (block.starts_at, block.upfront))


async def still_sold(calls: Calls, block: Block) -> Block | None:
    """A block that was listed earlier, as it is sold now.

    Raises:
        SkywardError: it cannot be told.
    """
    found = await _of_type(calls, block.provider, block.region, block.instance_type, block.count, block.hours)
    return next((each for each in found if each.id == block.id), None)


async def _of_type(calls: Calls, provider: str, region: str, instance_type: str, nodes: int, hours: int) -> list[Block]:
    try:
        told = await calls.call_all(
            "ec2", region, "describe_capacity_block_offerings", "CapacityBlockOfferings",
            InstanceType=instance_type, InstanceCount=nodes, CapacityDurationHours=hours,
        )  # fmt: skip
    except (CallFailed, CapacityRefused, UsageError) as error:
        code = getattr(error, "code", "InvalidParameterValue")
        if not code.startswith(("Invalid", "Unsupported")):
            raise
        return []  # of most types there are none to be bought
    return [
        Block(
            provider=provider,
            id=each["CapacityBlockOfferingId"],
            instance_type=each["InstanceType"],
            region=region,
            zone=each.get("AvailabilityZone", ""),
            count=each["InstanceCount"],
            hours=each["CapacityBlockDurationHours"],
            starts_at=each["StartDate"].timestamp(),
            upfront=float(each["UpfrontFee"]),
        )
        for each in told
        if each.get("CurrencyCode", "USD") == "USD"
    ]


class BlockSales:
    """Of a provider that has these:

    Attributes:
        name: how people name it.
    """

    name: ClassVar[str]

    @property
    def _calls(self) -> Calls:
        raise NotImplementedError

    @property
    def _extras(self) -> Extras:
        raise NotImplementedError

    async def _regions(self) -> Sequence[str]:
        raise NotImplementedError

    async def blocks(self, wish: Wish, nodes: int, hours: int) -> list[Block]:
        """Capacity Blocks that can be bought now; nothing is bought.

        Args:
            wish: what a machine has to be.
            nodes: how many.
            hours: for how long.

        Raises:
            UsageError: none is sold for so long.
            SkywardError: EC2 cannot be asked.
        """
        found = []
        for region in wish.regions or await self._regions():
            told = await asked(self._calls, self.name, region, wish, self._extras)
            found += await blocks(self._calls, self.name, region, told.fitting(wish), nodes, hours)
        return found

    async def still_sold(self, block: Block) -> Block | None:
        """A block that was listed earlier, as it is sold now; None where it is not any more.

        Args:
            block: as ``blocks`` named it.

        Raises:
            SkywardError: EC2 cannot be asked.
        """
        return await still_sold(self._calls, block)

    async def buy(self, block: Block, token: str) -> Reservation:
        """Buy a Capacity Block, once; a call that gets no answer is not made again.

        Args:
            block: as ``blocks`` named it.
            token: a tag of what is bought.

        Raises:
            Unreachable: nobody knows whether it was bought.
            SkywardError: it was not.
        """
        return await instance_launch.buy(self._calls, block, token)

    async def bought(self, region: str, token: str) -> Reservation | None:
        """What was bought with a token, by its tag; None where nothing of it is seen.

        Args:
            region: where.
            token: as ``buy`` was given it.

        Raises:
            SkywardError: it cannot be told.
        """
        return await instance_launch.bought(self._calls, region, token)

    async def reserved(self) -> list[Reservation]:
        """All capacity reservations of its regions that have not ended.

        Raises:
            SkywardError: they cannot be told.
        """
        found = [await instance_launch.find(self._calls, each) for each in await self._regions()]
        return [each for some in found for each in some]


_KEYS = "keys are those that boto3 finds: set the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or profile="
_OFFERS = "offers are tried one after another, the cheapest first"


def _unless_another_serves(rule: Rule) -> Rule:
    """It matters only where machines are really rented: with ``--provider`` none is."""

    def either(kind: str, name: str, value: Any) -> dict[str, Any]:
        if another_serves():
            return unheeded(f"--provider {state_folder.provider_override} serves instead")(kind, name, value)
        return rule(kind, name, value)

    return either


def another_serves() -> bool:
    """Whether ``--provider`` puts another one in the place of this."""
    return state_folder.provider_override not in (None, "aws")


def _profile(value: Any) -> Any:
    if value == "auto" and not another_serves():
        raise ValueError('"auto" is not to be had: name an instance profile of yours, or leave it out')
    return value


OLDER: Rules = {
    "subnet_id": renamed("subnet"),
    "security_group_id": renamed("security_group"),
    "instance_profile_arn": renamed("instance_profile", _profile),
    "username": renamed("ssh_user"),
    "ubuntu_version": unheeded("ami= names another machine image than the usual one", "24.04"),
    "instance_timeout": unheeded("sky.Options(start_timeout=...) bounds the whole start", 300),
    "request_timeout": unheeded("calls to AWS have time limits of their own", 30),
    "allocation_strategy": unheeded(_OFFERS, "price-capacity-optimized"),
    "launch_window": unheeded("machines of a pool are asked for at once", 1.0),
    "multi_subnet": unheeded("a pool's machines stand in one zone", False),
    "heterogeneous_instances": unheeded("a pool's machines are of one type", False),
    "exclude_burstable": unheeded("instance_type= names the one that is meant", False),
    "access_key_id": _unless_another_serves(refused(_KEYS)),
    "secret_access_key": _unless_another_serves(refused(_KEYS)),
    "session_token": _unless_another_serves(refused(_KEYS)),
}


SETTINGS = (
    Setting(
        name="region",
        help="where; several with commas, the cheapest first; else that of the profile",
        type=lambda text: words(text)[0] if len(words(text)) == 1 else words(text),
        example="us-east-1",
        field=lambda: Field("Region", placeholder="that of your AWS profile, or us-east-1"),
    ),
    Setting(
        name="instance_type",
        help="the type of machine; else the cheapest with the accelerator",
        example="g5.xlarge",
        field=lambda: Field("Machine", placeholder="the cheapest type that fits; or one, such as g5.xlarge"),
    ),
    Setting(name="zones", help="the only zones to use, in order", type=words),
    Setting(name="profile", help="the profile of ~/.aws/config"),
    Setting(name="endpoint_url", help="address of all services, in place of AWS's own"),
    Setting(name="ami", help="a machine image of your own"),
    Setting(name="subnet", help="a subnet of your own"),
    Setting(name="security_group", help="a security group of your own"),
    Setting(name="instance_profile", help="the instance profile that machines have, by name or ARN"),
    Setting(name="ssh_user", help="who logs in; else the usual one of the image"),
    Setting(name="ssh_from", help="the network from which SSH is let in; else this machine's address alone"),
    Setting(name="public", help="whether machines have public addresses", type=flag, default=True),
    Setting(
        name="placement_group",
        help="whether machines with GPUs or EFA stand close together where they can",
        type=flag,
        default=True,
    ),
    Setting(name="probe", help="whether machines are measured before they count", type=flag, default=True),
    Setting(name="disk_gb", help="size of each machine's disk in GB; else 100", type=int),
    Setting(name="reservation", help="a capacity reservation or Capacity Block of yours", example="cr-0123"),
    Setting(name="python", help="the interpreter on the machines"),
)


BOOT = 600.0  # seconds after its launch in which a machine may not answer yet


@takes(OLDER)
@dataclass(frozen=True)
class AWS(KnowsItsWords, BlockSales):
    """Machines rented from Amazon EC2.

    Credentials are those that boto3 finds: the environment, a profile, a sign-in, the role of this machine.

    Args:
        region: where; of several the cheapest comes first. None for that of environment or profile.
        instance_type: the type of machine; None for the cheapest that has the pool's accelerator.
        zones: the only zones to use, in order; None for all.
        profile: of ``~/.aws/config``; None for the usual one.
        endpoint_url: address of all services; None for AWS's own.
        ami: a machine image; None for AWS's Deep Learning image where there is an NVIDIA GPU, else Ubuntu.
        subnet: a subnet; None for those of the default VPC.
        security_group: a group of yours; None for one that comes and goes with the pool.
        instance_profile: that machines have, by name or ARN.
        ssh_user: who logs in; None for the usual one of the image.
        ssh_from: the network from which SSH is let in; None for this machine's address alone.
        public: whether machines have public addresses; without, this machine has to be in their network.
        disk_gb: size of each machine's disk; None for 100 GB. An image that is larger has its own size.
        placement_group: whether machines with GPUs or EFA are asked for close together, where there are several of a
            type that can be; where there is no room for that, they are asked for anywhere in the zone.
        probe: whether machines are measured before they count as ready, for 15 seconds at most: GPUs, disk, clock and
            network. One that is not what was bought is exchanged once.
        python: the interpreter on the machines; None to look for one of the version that loads the script.
        reservation: the id of a capacity reservation or a Capacity Block of yours that machines are taken from; type
            and zone are its own then. None for none.

    Attributes:
        name: how people name it.
        about: what it is, in a few words, for a form.
        rents: that machines cost money, and that it does not say how much.
        machine: what one of its machines is called there.
        settings: what a person may choose, for a form and a command line.

    Raises:
        UsageError: a value makes no sense.
    """

    _: KW_ONLY
    region: str | Sequence[str] | None = None
    instance_type: str | None = None
    zones: Sequence[str] | None = None
    profile: str | None = None
    endpoint_url: str | None = None
    ami: str | None = None
    subnet: str | None = None
    security_group: str | None = None
    instance_profile: str | None = None
    ssh_user: str | None = None
    ssh_from: str | None = None
    public: bool = True
    disk_gb: int | None = None
    placement_group: bool = True
    probe: bool = True
    python: str | None = None
    reservation: str | None = None

    name: ClassVar[str] = "aws"
    about: ClassVar[str] = "machines rented from Amazon EC2"
    rents: ClassVar[bool] = True
    machine: ClassVar[str] = "instance"
    settings: ClassVar[Sequence[Setting]] = SETTINGS

    def __post_init__(self) -> None:
        for several in ("region", "zones"):
            given = getattr(self, several)
            if given is not None:
                object.__setattr__(self, several, (given,) if isinstance(given, str) else tuple(given))
        if another_serves():  # what makes no sense is for the one who rents to say
            return
        if self.security_group and not self.subnet:
            raise UsageError("a security group belongs to one network: name a subnet of it, too")
        if self.subnet and len(self.region or ()) > 1:
            raise UsageError("a subnet is in one region: name only that")
        if self.disk_gb is not None and self.disk_gb < 1:
            raise UsageError(f"disk_gb={self.disk_gb}: a disk has 1 GB or more")

    def with_disk(self, gb: int) -> AWS:
        """The same provider, with disks of this size.

        Args:
            gb: in GB.
        """
        return replace(self, disk_gb=gb)

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Rent machines, all of one type in one zone: the first that has as many as are asked for, or of a range at
        least the least.

        Raises:
            NoCapacity: none has; says why of each.
            SkywardError: something is amiss that no other place would change.
        """
        folder = PoolFolder(spec.name, token)
        there = await instances.find(self._calls, folder, ()) if folder.notes() else []
        if spec.least_nodes <= len(there) <= spec.most_nodes and all(each.address for each in there):
            # By this token already.
            return await network.neighbours_together(self._calls, sorted(there, key=lambda each: each.node))
        if there:
            raise PoolError(f"{len(there)} machines of an unfinished start of pool {spec.name} are there")
        folder.note("begun")
        regions, own_address = await self._regions(), await self._own_network()
        wishes = self._wishes(spec, token, own_address, await account.number(self._calls, regions))
        folder.note("wishes", ttl=wishes.ttl, boot_deadman=wishes.boot_deadman, deadman=wishes.deadman)
        attempts, left_out = await self._attempts(spec).in_order(regions)
        made = await self._launch(folder, wishes).machines(attempts, left_out)
        return await network.neighbours_together(self._calls, made)

    def _wishes(self, spec: PoolSpec, token: str, own_address: str, account: str) -> Wishes:
        deadman = deadman_minutes(spec.options.idle_timeout)
        return Wishes(
            count=spec.most_nodes,
            least=spec.least_nodes,
            token=token,
            node=None,
            ttl=spec.options.ttl,
            boot_deadman=math.ceil(spec.options.start_timeout / 60) + deadman,
            deadman=deadman,
            own_address=own_address,
            group=self.security_group,
            profile=self.instance_profile,
            disk_gb=self.disk_gb,
            public=self.public,
            account=account,
            reservation=self.reservation or "",
        )

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Rent another machine of the same type, in the same zone.

        Raises:
            NoCapacity: there is none to be had there now.
        """
        last = former[-1].extra
        folder = PoolFolder(pool, last["token"])
        noted = next((each for each in folder.notes() if each["what"] == "wishes"), {})
        wishes = Wishes(
            count=1,
            least=1,
            token=token,
            node=node,
            ttl=noted.get("ttl"),
            boot_deadman=noted.get("boot_deadman", last["deadman"]),
            deadman=last["deadman"],
            own_address=await self._own_network(),
            group=self.security_group,
            profile=self.instance_profile,
            disk_gb=self.disk_gb,
            public=self.public,
            account=last.get("account", ""),
            reservation=self.reservation or "",
        )
        (kind,) = await kinds.kinds_for(self._calls, last["region"], Wish(instance_type=last["type"]))
        places = await network.places(self._calls, last["region"], subnet=self.subnet, zones=[last["zone"]])
        grouped = bool(last.get("group"))
        attempts = [Attempt(place, kind, last["market"], last["hourly"], grouped=grouped) for place in places]
        (machine,) = await self._launch(folder, wishes).machines(attempts)
        return machine

    def _launch(self, folder: PoolFolder, wishes: Wishes) -> Launch:
        async def image(attempt: Attempt) -> instance_offers.BootImage:
            region = attempt.place.region
            return await instance_offers.image_for(self._calls, region, attempt.kind, self.ami, self.ssh_user)

        return Launch(self._calls, folder, wishes, image, partial(instances.terminate, self._calls))

    def _attempts(self, spec: PoolSpec) -> Attempts:
        return Attempts(
            self._calls, self.name, spec, self._narrowed(spec.needs), self._extras, self._places,
            reservation=self.reservation, together=self.placement_group,
        )  # fmt: skip

    async def _places(self, region: str) -> list[network.Zone]:
        several = len(self.region or ()) > 1  # zones are named of all of them
        zones = [zone for zone in self.zones or () if not several or zone.startswith(region)]
        return await network.places(self._calls, region, subnet=self.subnet, zones=zones)

    async def plan(self, spec: PoolSpec) -> RentalPlan:
        """What a pool's machines would be tried with; nothing is made.

        Args:
            spec: all that was asked for.

        Raises:
            UsageError: nothing fits; says what comes nearest.
        """
        wish, least, most = self._narrowed(spec.needs), spec.least_nodes, spec.most_nodes
        attempts = self._attempts(spec)
        held = await attempts.held(await self._regions()) if self.reservation else None
        if held is not None:
            wish = held.wish(wish)
        found = await self.offers(wish)
        notes, there = [*found.notes, *await self.warnings(spec)], None
        if held is not None:
            notes.append(held.note)
            found = replace(found, offers=[held.offer(each) for each in found.offers])
        try:
            # Of a region that EC2 tells nothing of, no zone is known, and EC2 is not asked once more.
            regions = dict.fromkeys(each.region for each in found.offers if each.zone)
            there = {place.zone: place for region in regions for place in await self._places(region)}
        except UsageError:  # there is none, or no such zone
            raise
        except PoolError as error:
            notes.append(f"whether machines can go there is not known: {what_of(error)}")
        try:
            order = fitting(found.offers, wish, there)
        except UsageError as error:  # what is not known of offers may be why
            raise UsageError("; ".join([what_of(error), *found.notes])) from error
        requests, grouped = [], False
        if there is not None and order[0].zone:
            try:
                first = await attempts.of(order[0], there[order[0].zone], held)
                grouped = first.grouped
                notes += network.unused(first.kind, most)
                requests = [await self._planned(spec, first)]
            except PoolError as error:
                notes.append(f"what would be sent is not known: {what_of(error)}")
        disk = disk_of(requests) or self.disk_gb or DISK
        creates = made_in_words(least, most, disk, public=self.public, opens=not self.security_group, grouped=grouped)
        return RentalPlan(
            nodes=most, least=least if least < most else None, attempts=order, creates=creates,
            requests=requests, notes=list(dict.fromkeys(notes)),
        )  # fmt: skip

    async def warnings(self, spec: PoolSpec) -> list[str]:
        """What a person should know before a launch: that the credentials end before the pool may.

        Args:
            spec: all that was asked for.
        """
        return await boto_calls.warnings(self._calls.expiry, spec.options.ttl)

    async def _planned(self, spec: PoolSpec, attempt: Attempt) -> dict[str, Any]:
        """What is sent for an attempt."""
        launch = self._launch(PoolFolder(spec.name, MADE_THEN), self._wishes(spec, MADE_THEN, "", ""))
        return await launch.planned(attempt)

    def within(self, regions: Sequence[str]) -> AWS:
        """The same in these regions alone.

        Args:
            regions: their names.

        Raises:
            UsageError: this is for others.
        """
        if others := [each for each in regions if self.region and each not in self.region]:
            raise UsageError(f"this provider is for {' and '.join(self.region or ())}, not for {others[0]}")
        return replace(self, region=tuple(regions))

    @property
    def payer(self) -> str:
        """Whose account it uses."""
        return f"{self.profile or 'the usual profile'} at {self.endpoint_url or 'AWS'}"

    def _narrowed(self, wish: Wish) -> Wish:
        """A wish with what this provider was told itself."""
        plain = wish.accelerator is None and not (self.instance_type or wish.instance_type)
        return replace(
            wish,
            instance_type=self.instance_type or wish.instance_type,
            zones=tuple(self.zones or ()),
            regions=tuple(self.region or ()),
            # What runs here may well not run on the other kind of processor: who wants that says so. Where nothing at
            # all is said, nothing is said here either, and so the plain type is taken.
            architecture=wish.architecture or ("x86_64" if plain and kinds.says_size(wish) else ""),
        )

    @property
    def _extras(self) -> Extras:
        return Extras(self.disk_gb or DISK, self.public, self.ami)

    async def offers(self, wish: Wish) -> OfferList:
        """What EC2 has for a wish, with prices; where it cannot be asked, what came with this release.

        Args:
            wish: what a machine has to be; without regions those of this provider are meant.

        Raises:
            UsageError: there is no such region or instance type.
        """
        notes = []
        regions = wish.regions or self.region or tuple(filter(None, [await in_thread(self._calls.region)]))
        if not regions:
            regions = tuple(instance_offers.regions())
            notes.append(f"no region is named, and a start needs one: this is of {' and '.join(regions)}")
        found = await known(self._calls, self.name, regions, wish, self._extras)
        return OfferList(offers=found.offers, notes=[*notes, *found.notes])

    async def find(self, pool: str, token: str) -> list[Machine]:
        """All machines of a pool that have not ended, by their tags and by what was asked for.

        Args:
            pool: the pool's name.
            token: as ``create`` was given it.

        Raises:
            SkywardError: it cannot be told now.
        """
        folder = PoolFolder(pool, token)
        if (notes := folder.notes()) and not any(each["what"] == "ask" for each in notes):
            return []  # its creation came to nothing before it asked for any
        return await instances.find(self._calls, folder, await self._regions())

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """The pool's machines with their state.

        "gone" is one that EC2 says is terminated; "ending" one that is on its way there, or that runs and has no agent.
        What lives on one that runs, SSH tells, as for hosts of one's own.

        Raises:
            SkywardError: EC2 cannot be asked now.
        """
        seen = await instances.states(self._calls, known)
        return await all_of(self._look(pool, machine) for machine in seen)

    async def _look(self, pool: str, machine: Machine) -> Machine:
        if machine.state != "running" or not machine.address:
            return machine
        if not PoolFolder(pool, machine.extra["token"]).login_key.exists():
            why = "the key to log in with is not on this machine"
            return replace(machine, state="unreachable", extra=machine.extra | {"why": why})
        there = await look(machine, partial(self.transport, pool))
        # Without an agent it is of no use, and costs as much as before.
        return replace(there, state="ending") if there.state == "gone" else there

    def paid_for(self, machine: Machine) -> Bought | None:
        """What was bought of a machine, by its type; None where it is not to be looked at.

        Args:
            machine: it.
        """
        told = machine.extra.get("bought")
        return Bought(**told) if self.probe and told is not None else None

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """End what runs on the machines, over SSH alone; gives them with what lies there that nobody has fetched.

        Args:
            pool: the pool's name.
            machines: those that are meant.
        """
        return await all_of(self._quiet(pool, machine) for machine in machines)

    async def _quiet(self, pool: str, machine: Machine) -> Machine:
        there = await self._look(pool, machine)
        if there.state in ("running", "orphaned") and machine.address:
            await end(machine, partial(self.transport, pool))
            there = await self._look(pool, machine)
        return there

    async def date(self, pool: str, machines: Sequence[Machine], at: float) -> None:
        """Have the machines and their disks say by a tag when they end.

        Args:
            pool: the pool's name.
            machines: those that are meant.
            at: Unix time.

        Raises:
            SkywardError: it could not be said.
        """
        await instances.date(self._calls, machines, at)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have EC2 end the machines.

        Raises:
            SkywardError: EC2 was not told.
        """
        await instances.terminate(self._calls, machines)

    async def why_not_now(self) -> str:
        """Why machines cannot be ended without their shutdown, in words; "" where they can."""
        return await instances.why_not_now(self._calls, (await self._regions())[0])

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have EC2 end the machines without their shutdown.

        Args:
            pool: the pool's name.
            machines: those that are meant.

        Raises:
            SkywardError: EC2 was not told.
        """
        await instances.terminate(self._calls, machines, SkipOsShutdown=True)

    async def teardown(self, pool: str) -> None:
        """Remove the pool's placement and security groups and key pairs, and its keys here.

        Raises:
            SkywardError: something is still there; says what.
        """
        for folder in PoolFolder.all_of(pool):
            await network.remove(self._calls, folder)
            await account_resources.remove_belongings(self._calls, folder)
            await asyncio.to_thread(folder.remove)

    def needs_python(self, minor: str) -> str:
        """What a plan says of the Python of the machines.

        Args:
            minor: the version of the one that loads the script.
        """
        return there(minor, self.machine, self.python, rented=True)

    async def check(self) -> list[Check]:
        """Whose these credentials are, what they may do, and how much at once, in words."""
        try:
            regions = await self._regions()
        except SkywardError as error:
            return [Check("AWS credentials", "fail", what_of(error), hint_of(error))]
        return await account_resources.check_account(self._calls, regions, subnet=self.subnet, zones=self.zones or ())

    @classmethod
    async def check_all(cls) -> AsyncIterator[Check]:
        """As ``check``, where this machine has credentials; who has none uses no AWS."""
        none = "no AWS credentials in the environment or ~/.aws, so nothing to look at"
        for line in await cls().check() if account_resources.has_credentials() else [Check(cls.name, "ok", none)]:
            yield line

    @classmethod
    def accounts(cls, used: Sequence[AWS]) -> list[AWS]:
        """Those of some providers, each once, with all their regions.

        Args:
            used: the providers.
        """
        places = [(each.profile, each.endpoint_url, each.region) for each in used]
        return [cls(profile=whose, endpoint_url=at, region=here) for whose, at, here in account.each(places)]

    async def inventory(self, *, everywhere: bool) -> Inventory:
        """All that was made for pools in this account, whoever remembers it; reads only.

        Args:
            everywhere: look in all regions, not only in those that are named.

        Raises:
            SkywardError: the account cannot be asked.
        """
        regions = await self._regions()
        places = await account.regions(self._calls, regions[0]) if everywhere else regions
        return await account.look(self._calls, places)

    async def remove(self, things: Sequence[Leftover]) -> list[str]:
        """End things, and see them gone; gives what is left of them, in words.

        Args:
            things: as ``inventory`` names them.
        """
        left = await account.remove(self._calls, things)
        if not left:
            await asyncio.to_thread(PoolFolder.forget, {f"{each.pool}.{each.token}" for each in things})
        return left

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Import boto3 meanwhile, which takes longer than the first calls."""
        threading.Thread(target=self._import, daemon=True).start()
        yield

    def _import(self) -> None:
        with suppress(SkywardError, ImportError):  # who needs it is told
            self._calls.region()

    def notices(self, machine: Machine) -> str:
        """What asks on a spot machine whether EC2 takes it back; "" for machines on demand.

        Args:
            machine: the machine.
        """
        return spot_interruption_watcher.program() if machine.extra.get("market") == "spot" else ""

    def transport(self, pool: str, machine: Machine, *, patience: float | None = None) -> SSHTransport:
        """The way to one of the pool's machines.

        Args:
            pool: the pool's name.
            machine: the machine.
            patience: seconds of attempts to connect; None for 30, or as long as it may take to boot.
        """
        from skyward_core.providers.aws.instance_ssh import OwnHostKey, RentedTransport
        from skyward_core.transport.ssh.ssh_transport import PATIENCE

        extra = machine.extra
        if patience is None:
            patience = max(PATIENCE, extra["launched"] + BOOT - time.time())
        folder = PoolFolder(pool, extra["token"])
        own_key = OwnHostKey(folder.known_hosts_of(machine.id))
        target = Target(
            host=machine.address,
            user=extra["user"],
            keys=(str(folder.login_key),),
            known_hosts=str(own_key.path if own_key.keys else folder.known_hosts),
            config=False,
            host_keys="known",
        )
        return RentedTransport(
            target,
            extra["folder"],
            own_key,
            python=self.python,
            loaded_with=extra.get("loaded_with"),
            patience=patience,
        )

    @property
    def _calls(self) -> Calls:
        return calls_of(Account(self.profile, self.endpoint_url))

    async def _regions(self) -> Sequence[str]:
        if self.region:
            return self.region
        if found := await in_thread(self._calls.region):
            return (found,)
        raise UsageError(account.NO_REGION)

    async def _own_network(self) -> str:
        if self.security_group:
            return ""  # who lets whom in is the person's own affair
        return self.ssh_from or await network.own_address(self._calls, (await self._regions())[0])

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name} | asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AWS:
        """Rebuild what ``to_json`` wrote.

        Args:
            data: what it wrote.

        Raises:
            UsageError: a value makes no sense.
        """
        return cls(**{key: value for key, value in data.items() if key != "provider"})


PROVIDER = AWS
