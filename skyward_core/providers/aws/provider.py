"""EC2 as a provider: settings, capacity blocks."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_hint, error_message
from skyward_core.model.machines import Check, Machine, OrderedHardware
from skyward_core.model.misuse_errors import StrictKeywords
from skyward_core.model.offers import Block, MachineRequirements, OfferList, RentalPlan, Reservation
from skyward_core.model.older_api_arguments import Rule, Rules, accept_deprecated, ignored, rejected, renamed
from skyward_core.model.setting_descriptors import DeclaredSettings, Field, setting, word_list
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.agent_status_and_termination import end_machine, gather_bounded, update_machine
from skyward_core.providers.aws import (
    account_resources,
    boto_calls,
    instance_launch,
    instance_lookup_and_end,
    instance_offers,
    instance_tags,
    spot_interruption_watcher,
    zones_and_placement,
)
from skyward_core.providers.aws import account_resources as account
from skyward_core.providers.aws import instance_offers as kinds
from skyward_core.providers.aws.boto_calls import AwsAccount, AwsCalls, run_in_thread, shared_calls
from skyward_core.providers.aws.ec2_errors import CallFailed, CapacityRefused
from skyward_core.providers.aws.instance_launch import (
    PLACEHOLDER,
    AttemptPlanner,
    InstanceLaunch,
    LaunchAttempt,
    LaunchParameters,
    deadman_minutes,
    describe_plan,
)
from skyward_core.providers.aws.instance_offers import (
    DEFAULT_DISK_GB,
    BilledExtras,
    list_offers,
    query_region,
    select_offers,
)
from skyward_core.providers.aws.launch_journal_and_keys import LaunchJournal
from skyward_core.providers.provider import describe_python
from skyward_core.store import state_folder
from skyward_core.transport.ssh.host_address import Target

if TYPE_CHECKING:
    from skyward_core.model.machines import Inventory, Leftover
    from skyward_core.transport.ssh.ssh_transport import SSHTransport


HOURS_PER_DAY = 24  # hours: blocks are sold by days


async def _blocks_of_type(
    calls: AwsCalls, provider: str, region: str, instance_type: str, nodes: int, hours: int
) -> list[Block]:
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


_CREDENTIALS_HELP = (
    "keys are those that boto3 finds: set the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or profile="
)
_OFFERS_HELP = "offers are tried one after another, the cheapest first"


def _unless_overridden(rule: Rule) -> Rule:
    """It matters only where machines are really rented: with ``--provider`` none is."""

    def either(kind: str, name: str, value: Any) -> dict[str, Any]:
        if is_overridden():
            return ignored(f"--provider {state_folder.provider_override} serves instead")(kind, name, value)
        return rule(kind, name, value)

    return either


def is_overridden() -> bool:
    """Whether ``--provider`` puts another one in the place of this."""
    return state_folder.provider_override not in (None, "aws")


def _validate_profile(value: Any) -> Any:
    if value == "auto" and not is_overridden():
        raise ValueError('"auto" is not to be had: name an instance profile of yours, or leave it out')
    return value


RENAMED_SETTINGS: Rules = {
    "subnet_id": renamed("subnet"),
    "security_group_id": renamed("security_group"),
    "instance_profile_arn": renamed("instance_profile", _validate_profile),
    "username": renamed("ssh_user"),
    "ubuntu_version": ignored("ami= names another machine image than the usual one", "24.04"),
    "instance_timeout": ignored("sky.Options(start_timeout=...) bounds the whole start", 300),
    "request_timeout": ignored("calls to AWS have time limits of their own", 30),
    "allocation_strategy": ignored(_OFFERS_HELP, "price-capacity-optimized"),
    "launch_window": ignored("machines of a pool are asked for at once", 1.0),
    "multi_subnet": ignored("a pool's machines stand in one zone", False),
    "heterogeneous_instances": ignored("a pool's machines are of one type", False),
    "exclude_burstable": ignored("instance_type= names the one that is meant", False),
    "access_key_id": _unless_overridden(rejected(_CREDENTIALS_HELP)),
    "secret_access_key": _unless_overridden(rejected(_CREDENTIALS_HELP)),
    "session_token": _unless_overridden(rejected(_CREDENTIALS_HELP)),
}


BOOT_TIMEOUT = 600.0  # seconds after its launch in which a machine may not answer yet


@accept_deprecated(RENAMED_SETTINGS)
@dataclass(frozen=True)
class AWS(StrictKeywords):
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
    region: str | Sequence[str] | None = setting(
        "where; several with commas, the cheapest first; else that of the profile",
        type=lambda text: word_list(text)[0] if len(word_list(text)) == 1 else word_list(text),
        example="us-east-1",
        field=lambda: Field("Region", placeholder="that of your AWS profile, or us-east-1"),
    )
    instance_type: str | None = setting(
        "the type of machine; else the cheapest with the accelerator",
        example="g5.xlarge",
        field=lambda: Field("Machine", placeholder="the cheapest type that fits; or one, such as g5.xlarge"),
    )
    zones: Sequence[str] | None = setting("the only zones to use, in order")
    profile: str | None = setting("the profile of ~/.aws/config")
    endpoint_url: str | None = setting("address of all services, in place of AWS's own")
    ami: str | None = setting("a machine image of your own")
    subnet: str | None = setting("a subnet of your own")
    security_group: str | None = setting("a security group of your own")
    instance_profile: str | None = setting("the instance profile that machines have, by name or ARN")
    ssh_user: str | None = setting("who logs in; else the usual one of the image")
    ssh_from: str | None = setting("the network from which SSH is let in; else this machine's address alone")
    public: bool = setting("whether machines have public addresses", default=True)
    disk_gb: int | None = setting("size of each machine's disk in GB; else 100")
    placement_group: bool = setting(
        "whether machines with GPUs or EFA stand close together where they can", default=True
    )
    probe: bool = setting("whether machines are measured before they count", default=True)
    python: str | None = setting("the interpreter on the machines")
    reservation: str | None = setting("a capacity reservation or Capacity Block of yours", example="cr-0123")

    name: ClassVar[str] = "aws"
    about: ClassVar[str] = "machines rented from Amazon EC2"
    rents: ClassVar[bool] = True
    machine: ClassVar[str] = "instance"
    settings = DeclaredSettings()

    def __post_init__(self) -> None:
        for several in ("region", "zones"):
            given = getattr(self, several)
            if given is not None:
                object.__setattr__(self, several, (given,) if isinstance(given, str) else tuple(given))
        if is_overridden():  # what makes no sense is for the one who rents to say
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
        folder = LaunchJournal(spec.name, token)
        there = await instance_lookup_and_end.find_machines(self._calls, folder, ()) if folder.notes() else []
        if spec.least_nodes <= len(there) <= spec.most_nodes and all(each.address for each in there):
            # By this token already.
            return await zones_and_placement.order_by_topology(self._calls, sorted(there, key=lambda each: each.node))
        if there:
            raise PoolError(f"{len(there)} machines of an unfinished start of pool {spec.name} are there")
        folder.add("begun")
        regions, own_address = await self._regions(), await self._client_network()
        wishes = self._launch_parameters(spec, token, own_address, await account.account_number(self._calls, regions))
        folder.add("wishes", ttl=wishes.ttl, boot_deadman=wishes.boot_deadman, deadman=wishes.deadman)
        attempts, left_out = await self._attempts(spec).list_attempts(regions)
        made = await self._launch(folder, wishes).launch_machines(attempts, left_out)
        return await zones_and_placement.order_by_topology(self._calls, made)

    def _launch_parameters(self, spec: PoolSpec, token: str, own_address: str, account: str) -> LaunchParameters:
        deadman = deadman_minutes(spec.options.idle_timeout)
        return LaunchParameters(
            count=spec.most_nodes,
            least=spec.least_nodes,
            token=token,
            node=None,
            ttl=spec.options.ttl,
            boot_deadman=math.ceil(spec.options.start_timeout / 60) + deadman,
            deadman=deadman,
            own_address=own_address,
            account=account,
            **self._own_parameters,
        )

    @property
    def _own_parameters(self) -> dict[str, Any]:
        """Launch parameters that are settings of this provider."""
        return {
            "group": self.security_group,
            "profile": self.instance_profile,
            "disk_gb": self.disk_gb,
            "public": self.public,
            "reservation": self.reservation or "",
        }

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Rent another machine of the same type, in the same zone.

        Raises:
            NoCapacity: there is none to be had there now.
        """
        last = former[-1].extra
        folder = LaunchJournal(pool, last["token"])
        noted = next((each for each in folder.notes() if each["what"] == "wishes"), {})
        wishes = LaunchParameters(
            count=1,
            least=1,
            token=token,
            node=node,
            ttl=noted.get("ttl"),
            boot_deadman=noted.get("boot_deadman", last["deadman"]),
            deadman=last["deadman"],
            own_address=await self._client_network(),
            account=last.get("account", ""),
            **self._own_parameters,
        )
        (kind,) = await kinds.find_instance_types(
            self._calls, last["region"], MachineRequirements(instance_type=last["type"])
        )
        places = await zones_and_placement.list_zones(
            self._calls, last["region"], subnet=self.subnet, zones=[last["zone"]]
        )
        grouped = bool(last.get("group"))
        attempts = [LaunchAttempt(place, kind, last["market"], last["hourly"], grouped=grouped) for place in places]
        (machine,) = await self._launch(folder, wishes).launch_machines(attempts)
        return machine

    def _launch(self, folder: LaunchJournal, wishes: LaunchParameters) -> InstanceLaunch:
        async def image(attempt: LaunchAttempt) -> instance_offers.BootImage:
            region = attempt.place.region
            return await instance_offers.find_image(self._calls, region, attempt.kind, self.ami, self.ssh_user)

        return InstanceLaunch(
            self._calls, folder, wishes, image, partial(instance_lookup_and_end.terminate, self._calls)
        )

    def _attempts(self, spec: PoolSpec) -> AttemptPlanner:
        return AttemptPlanner(
            self._calls, self.name, spec, self._narrow_request(spec.needs), self._extras, self._list_zones,
            reservation=self.reservation, together=self.placement_group,
        )  # fmt: skip

    async def _list_zones(self, region: str) -> list[zones_and_placement.Zone]:
        several = len(self.region or ()) > 1  # zones are named of all of them
        zones = [zone for zone in self.zones or () if not several or zone.startswith(region)]
        return await zones_and_placement.list_zones(self._calls, region, subnet=self.subnet, zones=zones)

    async def plan(self, spec: PoolSpec) -> RentalPlan:
        """What a pool's machines would be tried with; nothing is made.

        Args:
            spec: all that was asked for.

        Raises:
            UsageError: nothing fits; says what comes nearest.
        """
        requirements, least, most = self._narrow_request(spec.needs), spec.least_nodes, spec.most_nodes
        attempts = self._attempts(spec)
        held = await attempts.find_reservation(await self._regions()) if self.reservation else None
        if held is not None:
            requirements = held.narrow_request(requirements)
        found = await self.offers(requirements)
        notes, there = [*found.notes, *await self.warnings(spec)], None
        if held is not None:
            notes.append(held.note)
            found = replace(found, offers=[held.price_offer(each) for each in found.offers])
        try:
            # Of a region that EC2 tells nothing of, no zone is known, and EC2 is not asked once more.
            regions = dict.fromkeys(each.region for each in found.offers if each.zone)
            there = {place.zone: place for region in regions for place in await self._list_zones(region)}
        except UsageError:  # there is none, or no such zone
            raise
        except PoolError as error:
            notes.append(f"whether machines can go there is not known: {error_message(error)}")
        try:
            order = select_offers(found.offers, requirements, there)
        except UsageError as error:  # what is not known of offers may be why
            raise UsageError("; ".join([error_message(error), *found.notes])) from error
        requests, grouped = [], False
        if there is not None and order[0].zone:
            try:
                first = await attempts.make_attempt(order[0], there[order[0].zone], held)
                grouped = first.grouped
                notes += zones_and_placement.unused_network_notes(first.kind, most)
                wishes = self._launch_parameters(spec, PLACEHOLDER, "", "")
                requests = [await self._launch(LaunchJournal(spec.name, PLACEHOLDER), wishes).preview_request(first)]
            except PoolError as error:
                notes.append(f"what would be sent is not known: {error_message(error)}")
        disk = self.disk_gb or DEFAULT_DISK_GB
        if requests:
            disk = requests[0]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
        creates = describe_plan(least, most, disk, public=self.public, opens=not self.security_group, grouped=grouped)
        return RentalPlan(
            nodes=most, least=least if least < most else None, attempts=order, creates=creates,
            requests=requests, notes=list(dict.fromkeys(notes)),
        )  # fmt: skip

    async def warnings(self, spec: PoolSpec) -> list[str]:
        """What a person should know before a launch: that the credentials end before the pool may.

        Args:
            spec: all that was asked for.
        """
        return await boto_calls.expiry_warnings(self._calls.credentials_expire_at, spec.options.ttl)

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

    def _narrow_request(self, requirements: MachineRequirements) -> MachineRequirements:
        """A wish with what this provider was told itself."""
        plain = requirements.accelerator is None and not (self.instance_type or requirements.instance_type)
        return replace(
            requirements,
            instance_type=self.instance_type or requirements.instance_type,
            zones=tuple(self.zones or ()),
            regions=tuple(self.region or ()),
            # What runs here may well not run on the other kind of processor: who wants that says so. Where nothing at
            # all is said, nothing is said here either, and so the plain type is taken.
            architecture=requirements.architecture or ("x86_64" if plain and kinds.has_size(requirements) else ""),
        )

    @property
    def _extras(self) -> BilledExtras:
        return BilledExtras(self.disk_gb or DEFAULT_DISK_GB, self.public, self.ami)

    async def offers(self, requirements: MachineRequirements) -> OfferList:
        """What EC2 has for a wish, with prices; where it cannot be asked, what came with this release.

        Args:
            requirements: what a machine has to be; without regions those of this provider are meant.

        Raises:
            UsageError: there is no such region or instance type.
        """
        notes = []
        regions = (
            requirements.regions
            or self.region
            or tuple(filter(None, [await run_in_thread(self._calls.default_region)]))
        )
        if not regions:
            regions = tuple(instance_offers.shipped_regions())
            notes.append(f"no region is named, and a start needs one: this is of {' and '.join(regions)}")
        found = await list_offers(self._calls, self.name, regions, requirements, self._extras)
        return OfferList(offers=found.offers, notes=[*notes, *found.notes])

    async def blocks(self, requirements: MachineRequirements, nodes: int, hours: int) -> list[Block]:
        """Capacity Blocks that can be bought now; nothing is bought.

        Args:
            requirements: what a machine has to be.
            nodes: how many.
            hours: for how long.

        Raises:
            UsageError: none is sold for so long.
            SkywardError: EC2 cannot be asked.
        """
        if hours < HOURS_PER_DAY or hours % HOURS_PER_DAY:
            raise UsageError(
                f"Capacity Blocks are sold by days: {HOURS_PER_DAY} hours, {2 * HOURS_PER_DAY}, and so on, not {hours}"
            )
        found = []
        for region in requirements.regions or await self._regions():
            told = await query_region(self._calls, self.name, region, requirements, self._extras)
            sold = partial(_blocks_of_type, self._calls, self.name, region, nodes=nodes, hours=hours)
            by_type = await asyncio.gather(*(sold(kind.name) for kind in told.matching_types(requirements)))
            blocks = [each for some in by_type for each in some]
            found += sorted(blocks, key=lambda block: (block.starts_at, block.upfront))  # the earliest first
        return found

    async def still_sold(self, block: Block) -> Block | None:
        """A block that was listed earlier, as it is sold now; None where it is not any more.

        Args:
            block: as ``blocks`` named it.

        Raises:
            SkywardError: EC2 cannot be asked.
        """
        found = await _blocks_of_type(
            self._calls, block.provider, block.region, block.instance_type, block.count, block.hours
        )
        return next((each for each in found if each.id == block.id), None)

    async def buy(self, block: Block, token: str) -> Reservation:
        """Buy a Capacity Block, once; a call that gets no answer is not made again.

        Args:
            block: as ``blocks`` named it.
            token: a tag of what is bought.

        Raises:
            Unreachable: nobody knows whether it was bought.
            SkywardError: it was not.
        """
        return await instance_launch.buy_block(self._calls, block, token)

    async def bought(self, region: str, token: str) -> Reservation | None:
        """What was bought with a token, by its tag; None where nothing of it is seen.

        Args:
            region: where.
            token: as ``buy`` was given it.

        Raises:
            SkywardError: it cannot be told.
        """
        filters = [{"Name": f"tag:{instance_tags.PURCHASE}", "Values": [token]}]
        found = await instance_launch.find_reservations(self._calls, region, filters)
        return found[0] if found else None

    async def reserved(self) -> list[Reservation]:
        """All capacity reservations of its regions that have not ended.

        Raises:
            SkywardError: they cannot be told.
        """
        found = [await instance_launch.find_reservations(self._calls, each) for each in await self._regions()]
        return [each for some in found for each in some]

    async def find(self, pool: str, token: str) -> list[Machine]:
        """All machines of a pool that have not ended, by their tags and by what was asked for.

        Args:
            pool: the pool's name.
            token: as ``create`` was given it.

        Raises:
            SkywardError: it cannot be told now.
        """
        folder = LaunchJournal(pool, token)
        if (notes := folder.notes()) and not any(each["what"] == "ask" for each in notes):
            return []  # its creation came to nothing before it asked for any
        return await instance_lookup_and_end.find_machines(self._calls, folder, await self._regions())

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """The pool's machines with their state.

        "gone" is one that EC2 says is terminated; "ending" one that is on its way there, or that runs and has no agent.
        What lives on one that runs, SSH tells, as for hosts of one's own.

        Raises:
            SkywardError: EC2 cannot be asked now.
        """
        seen = await instance_lookup_and_end.update_states(self._calls, known)
        return await gather_bounded(self._update_machine(pool, machine) for machine in seen)

    async def _update_machine(self, pool: str, machine: Machine) -> Machine:
        if machine.state != "running" or not machine.address:
            return machine
        if not LaunchJournal(pool, machine.extra["token"]).login_key.exists():
            reason = "the key to log in with is not on this machine"
            return replace(machine, state="unreachable", extra=machine.extra | {"why": reason})
        there = await update_machine(machine, partial(self.transport, pool))
        # Without an agent it is of no use, and costs as much as before.
        return replace(there, state="ending") if there.state == "gone" else there

    def paid_for(self, machine: Machine) -> OrderedHardware | None:
        """What was bought of a machine, by its type; None where it is not to be looked at.

        Args:
            machine: it.
        """
        told = machine.extra.get("bought")
        return OrderedHardware(**told) if self.probe and told is not None else None

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """End what runs on the machines, over SSH alone; gives them with what lies there that nobody has fetched.

        Args:
            pool: the pool's name.
            machines: those that are meant.
        """
        return await gather_bounded(self._quiet_machine(pool, machine) for machine in machines)

    async def _quiet_machine(self, pool: str, machine: Machine) -> Machine:
        there = await self._update_machine(pool, machine)
        if there.state in ("running", "orphaned") and machine.address:
            await end_machine(machine, partial(self.transport, pool))
            there = await self._update_machine(pool, machine)
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
        await instance_lookup_and_end.tag_expiry(self._calls, machines, at)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have EC2 end the machines.

        Raises:
            SkywardError: EC2 was not told.
        """
        await instance_lookup_and_end.terminate(self._calls, machines)

    async def why_not_now(self) -> str:
        """Why machines cannot be ended without their shutdown, in words; "" where they can."""
        wanted = "ec2", (await self._regions())[0], "TerminateInstances", "SkipOsShutdown"
        if await run_in_thread(self._calls.supports_parameter, *wanted):
            return ""
        return "the boto3 that is installed knows no SkipOsShutdown: a newer one does (pip install -U boto3)"

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have EC2 end the machines without their shutdown.

        Args:
            pool: the pool's name.
            machines: those that are meant.

        Raises:
            SkywardError: EC2 was not told.
        """
        await instance_lookup_and_end.terminate(self._calls, machines, SkipOsShutdown=True)

    async def teardown(self, pool: str) -> None:
        """Remove the pool's placement and security groups and key pairs, and its keys here.

        Raises:
            SkywardError: something is still there; says what.
        """
        for folder in LaunchJournal.find_all(pool):
            await zones_and_placement.remove_placement_groups(self._calls, folder)
            await account_resources.remove_security_resources(self._calls, folder)
            await asyncio.to_thread(folder.remove)

    def needs_python(self, minor: str) -> str:
        """What a plan says of the Python of the machines.

        Args:
            minor: the version of the one that loads the script.
        """
        return describe_python(minor, self.machine, self.python, rented=True)

    async def check(self) -> list[Check]:
        """Whose these credentials are, what they may do, and how much at once, in words."""
        try:
            regions = await self._regions()
        except SkywardError as error:
            return [Check("AWS credentials", "fail", error_message(error), error_hint(error))]
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
        return [cls(profile=whose, endpoint_url=at, region=here) for whose, at, here in account.merge_accounts(places)]

    async def inventory(self, *, everywhere: bool) -> Inventory:
        """All that was made for pools in this account, whoever remembers it; reads only.

        Args:
            everywhere: look in all regions, not only in those that are named.

        Raises:
            SkywardError: the account cannot be asked.
        """
        regions = await self._regions()
        places = await account.list_regions(self._calls, regions[0]) if everywhere else regions
        return await account.find_leftovers(self._calls, places)

    async def remove(self, things: Sequence[Leftover]) -> list[str]:
        """End things, and see them gone; gives what is left of them, in words.

        Args:
            things: as ``inventory`` names them.
        """
        left = await account.remove_leftovers(self._calls, things)
        if not left:
            await asyncio.to_thread(LaunchJournal.remove_folders, {f"{each.pool}.{each.token}" for each in things})
        return left

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Import boto3 meanwhile, which takes longer than the first calls."""
        boto_calls.thread_pool().submit(self._calls.default_region)  # a failure is told to who needs it
        yield

    def notices(self, machine: Machine) -> str:
        """What asks on a spot machine whether EC2 takes it back; "" for machines on demand.

        Args:
            machine: the machine.
        """
        return spot_interruption_watcher.read_program() if machine.extra.get("market") == "spot" else ""

    def transport(self, pool: str, machine: Machine, *, patience: float | None = None) -> SSHTransport:
        """The way to one of the pool's machines.

        Args:
            pool: the pool's name.
            machine: the machine.
            patience: seconds of attempts to connect; None for 30, or as long as it may take to boot.
        """
        from skyward_core.providers.aws.instance_ssh import Ec2Transport, HostKeyFile
        from skyward_core.transport.ssh.ssh_transport import PATIENCE

        extra = machine.extra
        if patience is None:
            patience = max(PATIENCE, extra["launched"] + BOOT_TIMEOUT - time.time())
        folder = LaunchJournal(pool, extra["token"])
        own_key = HostKeyFile(folder.machine_known_hosts(machine.id))
        target = Target(
            host=machine.address,
            user=extra["user"],
            keys=(str(folder.login_key),),
            known_hosts=str(own_key.path if own_key.keys else folder.known_hosts),
            config=False,
            host_keys="known",
        )
        loaded_with = extra.get("loaded_with")
        return Ec2Transport(
            target, extra["folder"], own_key, python=self.python, loaded_with=loaded_with, patience=patience
        )

    @property
    def _calls(self) -> AwsCalls:
        return shared_calls(AwsAccount(self.profile, self.endpoint_url))

    async def _regions(self) -> Sequence[str]:
        if self.region:
            return self.region
        if found := await run_in_thread(self._calls.default_region):
            return (found,)
        raise UsageError(account.NO_REGION)

    async def _client_network(self) -> str:
        if self.security_group:
            return ""  # who lets whom in is the person's own affair
        return self.ssh_from or await zones_and_placement.find_client_network(self._calls, (await self._regions())[0])

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
