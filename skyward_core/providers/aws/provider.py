"""AWS provider: settings, and the capabilities that EC2 supports."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core import providers
from skyward_core.model.deprecated_and_unknown_arguments import (
    Rule,
    Rules,
    accept_deprecated,
    ignored,
    rejected,
    renamed,
)
from skyward_core.model.errors import PoolError, SkywardError, UsageError, error_message
from skyward_core.model.leftovers import Inventory, Leftover
from skyward_core.model.machines_checks_and_gpu_use import Check, Machine, OrderedHardware
from skyward_core.model.misuse_guards import StrictKeywords
from skyward_core.model.offers_and_rental_plans import Block, MachineRequirements, OfferList, RentalPlan, Reservation
from skyward_core.model.provider_settings_schema import DeclaredSettings, Field, setting, word_list
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.agent_status_and_termination import end_machine, gather_bounded, update_rented_machine
from skyward_core.providers.aws import (
    boto_calls,
    instance_metadata_preemption_poller,
    instance_tags_and_launch_journal,
    instances_and_leftovers,
    launch_and_reservations,
    offers_and_images,
    zones_and_placement,
)
from skyward_core.providers.aws import security_groups_and_account_checks as account_setup
from skyward_core.providers.aws.boto_calls import AwsAccount, AwsCalls, run_in_thread, shared_calls
from skyward_core.providers.aws.ec2_errors import CallFailed, CapacityRefused
from skyward_core.providers.aws.instance_tags_and_launch_journal import LaunchJournal
from skyward_core.providers.aws.launch_and_reservations import (
    PLACEHOLDER,
    AttemptPlanner,
    InstanceLaunch,
    LaunchAttempt,
    LaunchParameters,
    deadman_minutes,
    describe_plan,
)
from skyward_core.providers.aws.offers_and_images import (
    DEFAULT_DISK_GB,
    BilledExtras,
    list_offers,
    query_region,
    select_offers,
)
from skyward_core.providers.provider import JsonSettings, describe_python
from skyward_core.transport.ssh.host_address_and_python import Target

if TYPE_CHECKING:
    from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport


HOURS_PER_DAY = 24  # Capacity Blocks are sold for whole days only


async def _blocks_of_type(
    calls: AwsCalls, provider: str, region: str, instance_type: str, nodes: int, hours: int
) -> list[Block]:
    try:
        rows = await calls.call_all(
            "ec2", region, "describe_capacity_block_offerings", "CapacityBlockOfferings",
            InstanceType=instance_type, InstanceCount=nodes, CapacityDurationHours=hours,
        )  # fmt: skip
    except (CallFailed, CapacityRefused, UsageError) as error:
        if not getattr(error, "code", "InvalidParameterValue").startswith(("Invalid", "Unsupported")):
            raise
        return []  # AWS sells no Capacity Blocks of most types, and rejects queries for them
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
        for each in rows
        if each.get("CurrencyCode", "USD") == "USD"
    ]


_CREDENTIALS_HELP = (
    "credentials come from boto3: set the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or profile="
)
_OFFERS_HELP = "offers are tried one after another, the cheapest first"


def _unless_overridden(rule: Rule) -> Rule:
    """Return a rule for a deprecated setting that does not apply if ``--provider`` replaces AWS, because the other
    provider may not need the setting.
    """

    def either(kind: str, name: str, value: Any) -> dict[str, Any]:
        if is_overridden():
            return ignored(f"--provider {providers.provider_override} serves instead")(kind, name, value)
        return rule(kind, name, value)

    return either


def is_overridden() -> bool:
    """Check whether ``--provider`` selects another provider than AWS."""
    return providers.provider_override not in (None, "aws")


def _validate_profile(value: Any) -> Any:
    if value == "auto" and not is_overridden():
        raise ValueError('"auto" is not supported: pass the name of an instance profile, or omit it')
    return value


RENAMED_SETTINGS: Rules = {
    "subnet_id": renamed("subnet"),
    "security_group_id": renamed("security_group"),
    "instance_profile_arn": renamed("instance_profile", _validate_profile),
    "username": renamed("ssh_user"),
    "ubuntu_version": ignored("ami= selects another machine image", "24.04"),
    "instance_timeout": ignored("sky.Options(start_timeout=...) bounds the whole start", 300),
    "request_timeout": ignored("calls to AWS have time limits of their own", 30),
    "allocation_strategy": ignored(_OFFERS_HELP, "price-capacity-optimized"),
    "launch_window": ignored("all machines of a pool are requested at once", 1.0),
    "multi_subnet": ignored("all machines of a pool are in one zone", False),
    "heterogeneous_instances": ignored("all machines of a pool have the same type", False),
    "exclude_burstable": ignored("instance_type= selects the type", False),
    "access_key_id": _unless_overridden(rejected(_CREDENTIALS_HELP)),
    "secret_access_key": _unless_overridden(rejected(_CREDENTIALS_HELP)),
    "session_token": _unless_overridden(rejected(_CREDENTIALS_HELP)),
}


@accept_deprecated(RENAMED_SETTINGS)
@dataclass(frozen=True)
class AWS(JsonSettings, StrictKeywords):
    """Machines rented from Amazon EC2.

    boto3 finds the credentials: in the environment, a profile, a sign-in, or the role of this machine.

    Args:
        region: Region, or several regions, of which the cheapest is tried first; None for the region of the environment
            or profile.
        instance_type: Type of the machines; None for the cheapest that fits the pool's requirements.
        zones: The only zones to use, in order; None for all.
        profile: Profile in ``~/.aws/config``; None for the default one.
        endpoint_url: Address of all services; None for AWS's own.
        ami: Machine image; None for AWS's Deep Learning image if there is an NVIDIA GPU, else Ubuntu.
        subnet: Subnet; None for the subnets of the default VPC.
        security_group: Existing security group; None for a group that is created and removed with the pool.
        instance_profile: Instance profile of the machines, by name or ARN.
        ssh_user: Login name; None for the image's default.
        ssh_from: Network from which SSH is allowed; None for this machine's address.
        public: Whether machines have public addresses. If not, this machine must be in their network.
        disk_gb: Size of each machine's disk in GB; None for 100. A larger image has its own size.
        placement_group: Whether several machines with GPUs or EFA are requested in a placement group. If the group has
            no capacity, the machines are requested anywhere in the zone.
        probe: Whether machines are measured before they count as ready, for at most 15 seconds: GPUs, disk, clock and
            network. A machine whose hardware differs from the order is replaced once.
        python: Interpreter on the machines; None to search for one with the Python version that loads the script.
        reservation: Id of a capacity reservation or Capacity Block that provides the machines and determines their type
            and zone. None for none.

    Attributes:
        name: Name of the provider in commands and settings.
        about: Short description, for forms.
        rents: Whether machines cost money, at prices that the provider does not state.
        machine: Noun for one of its machines, for messages.
        settings: Settings for forms and the command line.

    Raises:
        UsageError: If a value is invalid.
    """

    _: KW_ONLY
    region: str | Sequence[str] | None = setting(
        "region, or several separated by commas, cheapest first (default: region of the profile)",
        type=lambda text: word_list(text)[0] if len(word_list(text)) == 1 else word_list(text),
        example="us-east-1",
        field=lambda: Field("Region", placeholder="region of your AWS profile, or us-east-1"),
    )
    instance_type: str | None = setting(
        "instance type (default: the cheapest that fits)",
        example="g5.xlarge",
        field=lambda: Field("Machine", placeholder="cheapest type that fits, or g5.xlarge"),
    )
    zones: Sequence[str] | None = setting("zones to use, in order (default: all)")
    profile: str | None = setting("profile in ~/.aws/config")
    endpoint_url: str | None = setting("address of all services (default: AWS's own)")
    ami: str | None = setting("machine image (default: Deep Learning image or Ubuntu)")
    subnet: str | None = setting("subnet (default: those of the default VPC)")
    security_group: str | None = setting("security group (default: created with the pool)")
    instance_profile: str | None = setting("instance profile of the machines, by name or ARN")
    ssh_user: str | None = setting("login name (default: that of the image)")
    ssh_from: str | None = setting("network from which SSH is allowed (default: this machine's address)")
    public: bool = setting("whether machines have public addresses", default=True)
    disk_gb: int | None = setting("size of each machine's disk in GB (default: 100)")
    placement_group: bool = setting("whether to use a placement group for machines with GPUs or EFA", default=True)
    probe: bool = setting("whether to measure machines before they count as ready", default=True)
    python: str | None = setting("Python interpreter on the machines")
    reservation: str | None = setting("id of a capacity reservation or Capacity Block", example="cr-0123")

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
        if is_overridden():  # no validation of these settings, because --provider replaces this provider
            return
        if self.security_group and not self.subnet:
            raise UsageError("security_group= requires subnet=: pass a subnet in the group's network")
        if self.subnet and len(self.region or ()) > 1:
            raise UsageError("subnet= requires a single region: pass only the subnet's region")
        if self.disk_gb is not None and self.disk_gb < 1:
            raise UsageError(f"disk_gb={self.disk_gb}: must be at least 1")

    def with_disk(self, gb: int) -> AWS:
        """Return the same provider with another disk size.

        Args:
            gb: Size in GB.
        """
        return replace(self, disk_gb=gb)

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Rent machines, all of one type in one zone.

        The first attempt that has capacity for the requested number of machines (for a range: at least the smallest
        number) provides all of them.

        Raises:
            NoCapacity: If all attempts fail. The message has the reason of each.
            SkywardError: If a problem occurs that no other place would avoid.
        """
        folder = LaunchJournal(spec.name, token)
        existing = await instances_and_leftovers.find_machines(self._calls, folder, ()) if folder.notes() else []
        existing = [each for each in existing if each.state != "gone"]
        if spec.least_nodes <= len(existing) <= spec.most_nodes and all(each.address for each in existing):
            # An earlier call with this token created the existing machines.
            return await zones_and_placement.order_by_topology(
                self._calls, sorted(existing, key=lambda each: each.node)
            )
        # machines of an earlier, failed attempt that are still shutting down do not matter
        if any(each.state != "ending" for each in existing):
            raise PoolError(
                f"an earlier start of pool {spec.name} left {len(existing)} machines. Tear the pool down, "
                "then start it again"
            )
        folder.add("begun")
        regions = await self._regions()
        # the first call, because it also checks the credentials
        number = await account_setup.account_number(self._calls, regions)
        parameters = self._launch_parameters(spec, token, await self._client_network(), number)
        folder.add("wishes", ttl=parameters.ttl, boot_deadman=parameters.boot_deadman, deadman=parameters.deadman)
        attempts, failed_regions = await self._attempts(spec).list_attempts(regions)
        made = await self._launch(folder, parameters).launch_machines(attempts, failed_regions)
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
        """Parameters of a launch that are taken from the settings of this provider."""
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
        """Rent another machine of the same type in the same zone.

        Raises:
            NoCapacity: If no machine is available there now.
        """
        last = former[-1].extra
        folder = LaunchJournal(pool, last["token"])
        noted = next((each for each in folder.notes() if each["what"] == "wishes"), {})
        parameters = LaunchParameters(
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
        (kind,) = await offers_and_images.find_instance_types(
            self._calls, last["region"], MachineRequirements(instance_type=last["type"])
        )
        places = await zones_and_placement.list_zones(
            self._calls, last["region"], subnet=self.subnet, zones=[last["zone"]]
        )
        grouped = bool(last.get("group"))
        attempts = [LaunchAttempt(place, kind, last["market"], last["hourly"], grouped=grouped) for place in places]
        (machine,) = await self._launch(folder, parameters).launch_machines(attempts)
        return machine

    def _launch(self, folder: LaunchJournal, parameters: LaunchParameters) -> InstanceLaunch:
        async def image(attempt: LaunchAttempt) -> offers_and_images.BootImage:
            region = attempt.place.region
            return await offers_and_images.find_image(self._calls, region, attempt.kind, self.ami, self.ssh_user)

        return InstanceLaunch(
            self._calls, folder, parameters, image, partial(instances_and_leftovers.terminate, self._calls)
        )

    def _attempts(self, spec: PoolSpec) -> AttemptPlanner:
        return AttemptPlanner(
            self._calls, self.name, spec, self._narrow_request(spec.needs), self._extras, self._list_zones,
            reservation=self.reservation, together=self.placement_group,
        )  # fmt: skip

    async def _list_zones(self, region: str) -> list[zones_and_placement.Zone]:
        # with several regions, the setting lists zones of all of them, so use only those of this region
        several = len(self.region or ()) > 1
        zones = [zone for zone in self.zones or () if not several or zone.startswith(region)]
        return await zones_and_placement.list_zones(self._calls, region, subnet=self.subnet, zones=zones)

    async def plan(self, spec: PoolSpec) -> RentalPlan:
        """Return what a pool would rent; creates nothing.

        Args:
            spec: Everything that the user requested.

        Raises:
            UsageError: If no offer fits. The message names the nearest ones.
        """
        requirements, least, most = self._narrow_request(spec.needs), spec.least_nodes, spec.most_nodes
        attempts = self._attempts(spec)
        held = await attempts.find_reservation(await self._regions()) if self.reservation else None
        if held is not None:
            requirements = held.narrow_request(requirements)
        found = await self.offers(requirements)
        notes, zones = [*found.notes, *await self.warnings(spec)], None
        if held is not None:
            notes.append(held.note)
            found = replace(found, offers=[held.price_offer(each) for each in found.offers])
        try:
            # Only offers with a zone come from EC2. Offers without a zone come from the shipped list, because EC2 did
            # not answer, so do not query EC2 again.
            regions = dict.fromkeys(each.region for each in found.offers if each.zone)
            zones = {place.zone: place for region in regions for place in await self._list_zones(region)}
        except UsageError:  # skip a region that has no subnet, or none of the requested zones
            raise
        except PoolError as error:
            notes.append(f"cannot determine the usable zones: {error_message(error)}")
        try:
            order = select_offers(found.offers, requirements, zones, self.ami)
        except UsageError as error:  # raised with the notes on missing offers, which may explain the error
            raise UsageError("; ".join([error_message(error), *found.notes])) from error
        requests, grouped = [], False
        if zones is not None and order[0].zone:
            try:
                first = await attempts.make_attempt(order[0], zones[order[0].zone], held)
                grouped = first.grouped
                notes += zones_and_placement.unused_network_notes(first.kind, most)
                parameters = self._launch_parameters(spec, PLACEHOLDER, "", "")
                requests = [
                    await self._launch(LaunchJournal(spec.name, PLACEHOLDER), parameters).preview_request(first)
                ]
            except PoolError as error:
                notes.append(f"cannot preview the request: {error_message(error)}")
        disk = self.disk_gb or DEFAULT_DISK_GB
        if requests:
            disk = requests[0]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
        notes += await account_setup.quota_notes(self._calls, order, least)
        creates = describe_plan(least, most, disk, public=self.public, opens=not self.security_group, grouped=grouped)
        return RentalPlan(
            nodes=most, least=least if least < most else None, attempts=order, creates=creates,
            requests=requests, notes=list(dict.fromkeys(notes)),
        )  # fmt: skip

    async def warnings(self, spec: PoolSpec) -> list[str]:
        """Return warnings to show before a launch, for example that the credentials may expire before the pool ends.

        Args:
            spec: Everything that the user requested.
        """
        return await account_setup.expiry_warnings(self._calls.credentials_expire_at, spec.options.ttl)

    def within(self, regions: Sequence[str]) -> AWS:
        """Return the same provider restricted to some regions.

        Args:
            regions: Names of the regions.

        Raises:
            UsageError: If the provider is restricted to other regions.
        """
        if others := [each for each in regions if self.region and each not in self.region]:
            raise UsageError(
                f"this AWS provider is limited to {' and '.join(self.region or ())}: {others[0]} is not among them"
            )
        return replace(self, region=tuple(regions))

    @property
    def payer(self) -> str:
        """Profile and endpoint, which identify the account."""
        return f"{self.profile or 'the default profile'} at {self.endpoint_url or 'AWS'}"

    def _narrow_request(self, requirements: MachineRequirements) -> MachineRequirements:
        """Return machine requirements that include this provider's settings."""
        plain = requirements.accelerator is None and not (self.instance_type or requirements.instance_type)
        return replace(
            requirements,
            instance_type=self.instance_type or requirements.instance_type,
            zones=tuple(self.zones or ()),
            regions=tuple(self.region or ()),
            # Without a requested architecture, search for x86_64, because software for one architecture may not run on
            # the other. Without any requirements, the field stays empty and the default type applies.
            architecture=requirements.architecture
            or ("x86_64" if plain and offers_and_images.has_size(requirements) else ""),
        )

    @property
    def _extras(self) -> BilledExtras:
        return BilledExtras(self.disk_gb or DEFAULT_DISK_GB, self.public, self.ami)

    async def offers(self, requirements: MachineRequirements) -> OfferList:
        """Return EC2's offers for a request, with prices; if EC2 cannot be queried, those in this release.

        Args:
            requirements: Machine requirements. Their regions take precedence over those of this provider.

        Raises:
            UsageError: If a region or instance type does not exist.
        """
        notes = []
        regions = (
            requirements.regions
            or self.region
            or tuple(filter(None, [await run_in_thread(self._calls.default_region)]))
        )
        if not regions:
            regions = tuple(offers_and_images.shipped_regions())
            notes.append(f"no region is set, but a launch needs one: showing offers of {' and '.join(regions)}")
        found = await list_offers(self._calls, self.name, regions, requirements, self._extras)
        return OfferList(offers=found.offers, notes=[*notes, *found.notes])

    async def blocks(self, requirements: MachineRequirements, nodes: int, hours: int) -> list[Block]:
        """Return the Capacity Blocks that can be bought now; buys nothing.

        Args:
            requirements: Machine requirements.
            nodes: Number of machines.
            hours: Duration in hours.

        Raises:
            UsageError: If blocks of this duration are not sold.
            SkywardError: If EC2 cannot be queried.
        """
        if hours < HOURS_PER_DAY or hours % HOURS_PER_DAY:
            raise UsageError(
                f"Capacity Blocks are sold in whole days: request {HOURS_PER_DAY}, {2 * HOURS_PER_DAY}, ... hours, "
                f"not {hours}"
            )
        found = []
        for region in requirements.regions or await self._regions():
            known = await query_region(self._calls, self.name, region, requirements, self._extras)
            sold = partial(_blocks_of_type, self._calls, self.name, region, nodes=nodes, hours=hours)
            by_type = await asyncio.gather(*(sold(kind.name) for kind in known.matching_types(requirements)))
            blocks = [each for some in by_type for each in some]
            # the earliest block of each region first
            found += sorted(blocks, key=lambda block: (block.starts_at, block.upfront))
        return found

    async def still_sold(self, block: Block) -> Block | None:
        """Return the current offer of a block that was listed earlier; None if it is no longer sold.

        Args:
            block: Block from ``blocks``.

        Raises:
            SkywardError: If EC2 cannot be queried.
        """
        found = await _blocks_of_type(
            self._calls, block.provider, block.region, block.instance_type, block.count, block.hours
        )
        return next((each for each in found if each.id == block.id), None)

    async def buy(self, block: Block, token: str) -> Reservation:
        """Buy a Capacity Block once; a call without an answer is not repeated.

        Args:
            block: Block from ``blocks``.
            token: Token, saved as a tag of the reservation.

        Raises:
            Unreachable: If it is unknown whether the block was bought.
            SkywardError: If the block was not bought.
        """
        return await launch_and_reservations.buy_block(self._calls, block, token)

    async def bought(self, region: str, token: str) -> Reservation | None:
        """Return the reservation that was bought with a token; None if EC2 does not show any.

        Args:
            region: Region of the reservation.
            token: Token that was passed to ``buy``.

        Raises:
            SkywardError: If EC2 cannot be queried.
        """
        filters = [{"Name": f"tag:{instance_tags_and_launch_journal.PURCHASE}", "Values": [token]}]
        found = await launch_and_reservations.find_reservations(self._calls, region, filters)
        return found[0] if found else None

    async def reserved(self) -> list[Reservation]:
        """Return all capacity reservations in the provider's regions that have not ended.

        Raises:
            SkywardError: If EC2 cannot be queried.
        """
        found = [await launch_and_reservations.find_reservations(self._calls, each) for each in await self._regions()]
        return [each for some in found for each in some]

    async def find(self, pool: str, token: str) -> list[Machine]:
        """Return all machines of a pool, found by tags and by the journal. Ended ones have the state "gone".

        Args:
            pool: Name of the pool.
            token: Token that was passed to ``create``.

        Raises:
            SkywardError: If EC2 cannot be queried now.
        """
        folder = LaunchJournal(pool, token)
        if (notes := folder.notes()) and not any(each["what"] == "ask" for each in notes):
            return []  # the creation failed before it requested any machine
        return await instances_and_leftovers.find_machines(self._calls, folder, await self._regions())

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """Return the pool's machines with their state.

        "gone": EC2 reports the machine as terminated. "ending": EC2 reports that the machine is shutting down.
        "agentless": the machine runs without an agent, and costs money until EC2 ends the machine.
        The other states come from the host over SSH, as for ``SSH`` hosts.

        Raises:
            SkywardError: If EC2 cannot be queried now.
        """
        seen = await instances_and_leftovers.update_states(self._calls, known)
        return await gather_bounded(self._update_machine(pool, machine) for machine in seen)

    async def _update_machine(self, pool: str, machine: Machine) -> Machine:
        if machine.state != "running" or not machine.address:
            return machine
        login_key = LaunchJournal(pool, machine.extra["token"]).login_key
        return await update_rented_machine(machine, partial(self.transport, pool), login_key)

    def paid_for(self, machine: Machine) -> OrderedHardware | None:
        """Return the hardware that was ordered for a machine; None if the machine should not be measured.

        Args:
            machine: The machine.
        """
        bought = machine.extra.get("bought")
        return OrderedHardware(**bought) if self.probe and bought is not None else None

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """Stop everything that runs on the machines, over SSH; return the machines with their retained results.

        Args:
            pool: Name of the pool.
            machines: The machines to stop work on.
        """
        return await gather_bounded(self._quiet_machine(pool, machine) for machine in machines)

    async def _quiet_machine(self, pool: str, machine: Machine) -> Machine:
        updated = await self._update_machine(pool, machine)
        if updated.state in ("running", "orphaned") and machine.address:
            await end_machine(machine, partial(self.transport, pool))
            updated = await self._update_machine(pool, machine)
        return updated

    async def date(self, pool: str, machines: Sequence[Machine], at: float) -> None:
        """Tag the machines and their disks with the time at which they end.

        Args:
            pool: Name of the pool.
            machines: The machines to tag.
            at: Unix time.

        Raises:
            SkywardError: If a resource cannot be tagged.
        """
        await instances_and_leftovers.tag_expiry(self._calls, machines, at)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Terminate the machines.

        Raises:
            SkywardError: If EC2 does not accept the request.
        """
        await instances_and_leftovers.terminate(self._calls, machines)

    async def why_not_now(self) -> str:
        """Return why machines cannot be terminated without waiting for their shutdown; "" if they can."""
        parameter = "ec2", (await self._regions())[0], "TerminateInstances", "SkipOsShutdown"
        if await run_in_thread(self._calls.supports_parameter, *parameter):
            return ""
        return "the installed boto3 does not support SkipOsShutdown: run pip install -U boto3"

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """Terminate the machines without waiting for their shutdown.

        Args:
            pool: Name of the pool.
            machines: Machines to terminate.

        Raises:
            SkywardError: If EC2 does not accept the request.
        """
        await instances_and_leftovers.terminate(self._calls, machines, SkipOsShutdown=True)

    async def teardown(self, pool: str) -> None:
        """Remove the pool's placement groups, security groups and key pairs, and its local keys.

        Raises:
            SkywardError: If a resource still exists. The message names the resource.
        """
        for folder in LaunchJournal.find_all(pool):
            await zones_and_placement.remove_placement_groups(self._calls, folder)
            await account_setup.remove_security_resources(self._calls, folder)
            await asyncio.to_thread(folder.remove)

    def needs_python(self, minor: str) -> str:
        """Return the sentence in a plan about the Python on the machines.

        Args:
            minor: Version of the Python that loads the script.
        """
        return describe_python(minor, self.machine, self.python, rented=True)

    async def check(self) -> list[Check]:
        """Return checks of the account, permissions and quotas."""
        try:
            regions = await self._regions()
        except SkywardError as error:
            return [Check.from_error("AWS credentials", error)]
        return await account_setup.check_account(self._calls, regions, subnet=self.subnet, zones=self.zones or ())

    @classmethod
    async def check_all(cls) -> AsyncIterator[Check]:
        """Yield the checks if this machine has AWS credentials."""
        none = "no AWS credentials in the environment or ~/.aws, so nothing to check"
        for line in await cls().check() if account_setup.has_credentials() else [Check(cls.name, "ok", none)]:
            yield line

    @classmethod
    def accounts(cls, used: Sequence[AWS]) -> list[AWS]:
        """Return a provider for each account that some providers use, with all their regions.

        Args:
            used: The providers.
        """
        places = account_setup.merge_accounts((each.profile, each.endpoint_url, each.region) for each in used)
        return [cls(profile=profile, endpoint_url=endpoint, region=regions) for profile, endpoint, regions in places]

    async def inventory(self, *, everywhere: bool) -> Inventory:
        """Return all resources that were created for pools in this account, by any client. Changes nothing.

        Args:
            everywhere: Whether to search all regions, not only the provider's.

        Raises:
            SkywardError: If the account cannot be queried.
        """
        try:
            regions = await self._regions()
        except UsageError as error:
            found = Inventory((), {self.name: str(error)})
        else:
            places = await account_setup.list_regions(self._calls, regions[0]) if everywhere else regions
            found = await instances_and_leftovers.find_leftovers(self._calls, places)
        return replace(found, is_configured=account_setup.has_credentials() or not found.unknown)

    async def remove(self, things: Sequence[Leftover]) -> list[str]:
        """Remove leftovers, and wait until they no longer exist. Return a description of each leftover that remains.

        Args:
            things: Leftovers from ``inventory``.
        """
        remaining = await instances_and_leftovers.remove_leftovers(self._calls, things)
        if not remaining:
            await asyncio.to_thread(LaunchJournal.remove_folders, {f"{each.pool}.{each.token}" for each in things})
        return remaining

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Import boto3 in the background, because the import takes longer than the first calls."""
        # errors are ignored, because the first call that needs AWS reports them
        boto_calls.thread_pool().submit(self._calls.default_region)
        yield

    def notices(self, machine: Machine) -> str:
        """Return the program that reports preemption notices on a spot machine; "" for other machines.

        Args:
            machine: The machine.
        """
        return instance_metadata_preemption_poller.read_program() if machine.extra.get("market") == "spot" else ""

    def transport(self, pool: str, machine: Machine, *, patience: float | None = None) -> SSHTransport:
        """Return the transport to one of the pool's machines.

        Args:
            pool: Name of the pool.
            machine: The machine.
            patience: Limit for connection attempts, in seconds; None for 30, or for the boot time of a new machine.
        """
        from skyward_core.providers.aws.ec2_ssh_transport import BOOT_TIMEOUT, Ec2Transport, HostKeyFile
        from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import PATIENCE

        extra = machine.extra
        if patience is None:
            patience = max(PATIENCE, extra["launched"] + BOOT_TIMEOUT - time.time())
        folder = LaunchJournal(pool, extra["token"])
        own_key = HostKeyFile(folder.path / f"known_hosts.{machine.id}")
        target = Target(
            host=machine.address,
            user=extra["user"],
            keys=(str(folder.login_key),),
            known_hosts=str(own_key.path if own_key.keys else folder.known_hosts),
            config=False,
            host_keys="known",
        )
        is_open = bool(self.security_group or self.ssh_from)
        admit = None if is_open else partial(account_setup.admit_client, self._calls, folder, self._client_network)
        loaded_with = extra.get("loaded_with")
        return Ec2Transport(
            target, extra["folder"], own_key, admit, python=self.python, loaded_with=loaded_with, patience=patience
        )

    @property
    def _calls(self) -> AwsCalls:
        return shared_calls(AwsAccount(self.profile, self.endpoint_url))

    async def _regions(self) -> Sequence[str]:
        if self.region:
            return self.region
        if found := await run_in_thread(self._calls.default_region):
            return (found,)
        raise UsageError(account_setup.NO_REGION)

    async def _client_network(self) -> str:
        if self.security_group:
            return ""  # with a security group of the user, the user decides which networks may connect
        return self.ssh_from or await account_setup.find_client_network(self._calls, (await self._regions())[0])


PROVIDER = AWS
