"""Machines rented from Amazon EC2: they cost money while they exist, so nothing is made that cannot be found again."""

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

from ...model.arrival import Bought
from ...model.errors import PoolError, SkywardError, UsageError, hint_of, what_of
from ...model.machine import Check, Machine
from ...model.misuse import KnowsItsWords
from ...model.offer import OfferList, RentalPlan, Wish
from ...model.older_words import takes
from ...model.spec import PoolSpec
from ...transport.ssh.target import Target
from ..agents_over_ssh import all_of, end, look
from ..needed_python import there
from . import (
    account,
    belongings,
    checks,
    expiring,
    images,
    interruptions,
    kinds,
    network,
    placement,
    shipped,
)
from . import machines as rented
from .attempts import Attempts
from .block_sales import BlockSales
from .calls import Account, Calls, calls_of, in_thread
from .launching import MADE_THEN, Attempt, Launch, Wishes, deadman_minutes, disk_of, made_in_words
from .offers import DISK, Extras, fitting, known
from .older_words import OLDER, another_serves
from .pool_folder import PoolFolder
from .settings import SETTINGS

if TYPE_CHECKING:
    from ...model.leftover import Inventory, Leftover
    from ...model.setting import Setting
    from ...transport.ssh.transport import SSHTransport

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
        there = await rented.find(self._calls, folder, ()) if folder.notes() else []
        if spec.least_nodes <= len(there) <= spec.most_nodes and all(each.address for each in there):
            # By this token already.
            return await placement.neighbours_together(self._calls, sorted(there, key=lambda each: each.node))
        if there:
            raise PoolError(f"{len(there)} machines of an unfinished start of pool {spec.name} are there")
        folder.note("begun")
        regions, own_address = await self._regions(), await self._own_network()
        wishes = self._wishes(spec, token, own_address, await account.number(self._calls, regions))
        folder.note("wishes", ttl=wishes.ttl, boot_deadman=wishes.boot_deadman, deadman=wishes.deadman)
        attempts, left_out = await self._attempts(spec).in_order(regions)
        made = await self._launch(folder, wishes).machines(attempts, left_out)
        return await placement.neighbours_together(self._calls, made)

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
        async def image(attempt: Attempt) -> images.BootImage:
            region = attempt.place.region
            return await images.image_for(self._calls, region, attempt.kind, self.ami, self.ssh_user)

        return Launch(self._calls, folder, wishes, image, partial(rented.terminate, self._calls))

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
                notes += placement.unused(first.kind, most)
                requests = [await self._planned(spec, first)]
            except PoolError as error:
                notes.append(f"what would be sent is not known: {what_of(error)}")
        disk = disk_of(requests) or self.disk_gb or DISK
        creates = made_in_words(
            least, most, disk, public=self.public, opens=not self.security_group, grouped=grouped
        )
        return RentalPlan(
            nodes=most, least=least if least < most else None, attempts=order, creates=creates,
            requests=requests, notes=list(dict.fromkeys(notes)),
        )  # fmt: skip

    async def warnings(self, spec: PoolSpec) -> list[str]:
        """What a person should know before a launch: that the credentials end before the pool may.

        Args:
            spec: all that was asked for.
        """
        return await expiring.warnings(self._calls.expiry, spec.options.ttl)

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
            regions = tuple(shipped.regions())
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
        return await rented.find(self._calls, folder, await self._regions())

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """The pool's machines with their state.

        "gone" is one that EC2 says is terminated; "ending" one that is on its way there, or that runs and has no agent.
        What lives on one that runs, SSH tells, as for hosts of one's own.

        Raises:
            SkywardError: EC2 cannot be asked now.
        """
        seen = await rented.states(self._calls, known)
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
        await rented.date(self._calls, machines, at)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have EC2 end the machines.

        Raises:
            SkywardError: EC2 was not told.
        """
        await rented.terminate(self._calls, machines)

    async def why_not_now(self) -> str:
        """Why machines cannot be ended without their shutdown, in words; "" where they can."""
        return await rented.why_not_now(self._calls, (await self._regions())[0])

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have EC2 end the machines without their shutdown.

        Args:
            pool: the pool's name.
            machines: those that are meant.

        Raises:
            SkywardError: EC2 was not told.
        """
        await rented.terminate(self._calls, machines, SkipOsShutdown=True)

    async def teardown(self, pool: str) -> None:
        """Remove the pool's placement and security groups and key pairs, and its keys here.

        Raises:
            SkywardError: something is still there; says what.
        """
        for folder in PoolFolder.all_of(pool):
            await placement.remove(self._calls, folder)
            await belongings.remove(self._calls, folder)
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
        return await checks.look(self._calls, regions, subnet=self.subnet, zones=self.zones or ())

    @classmethod
    async def check_all(cls) -> AsyncIterator[Check]:
        """As ``check``, where this machine has credentials; who has none uses no AWS."""
        none = "no AWS credentials in the environment or ~/.aws, so nothing to look at"
        for line in await cls().check() if checks.has_credentials() else [Check(cls.name, "ok", none)]:
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
        return interruptions.program() if machine.extra.get("market") == "spot" else ""

    def transport(self, pool: str, machine: Machine, *, patience: float | None = None) -> SSHTransport:
        """The way to one of the pool's machines.

        Args:
            pool: the pool's name.
            machine: the machine.
            patience: seconds of attempts to connect; None for 30, or as long as it may take to boot.
        """
        from ...transport.ssh.transport import PATIENCE
        from .own_host_key import OwnHostKey
        from .rented_transport import RentedTransport

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
