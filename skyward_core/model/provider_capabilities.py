"""Optional capabilities of providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from skyward_core.model.machines import Check, Inventory, Leftover, Machine, OrderedHardware
    from skyward_core.model.offers import Block, MachineRequirements, OfferList, RentalPlan, Reservation
    from skyward_core.model.setting_descriptors import Setting


@runtime_checkable
class HasSettings(Protocol):
    """Its class says what a person may choose.

    Attributes:
        settings: the parameters of the class that can be given as texts.
    """

    settings: Sequence[Setting]


@runtime_checkable
class Priced(Protocol):
    """Its machines cost money.

    Attributes:
        price_hourly: dollars for a machine and an hour.
    """

    price_hourly: float


def hourly_price(provider: object) -> float | None:
    """What an hour of each of its machines costs in dollars; None where it does not say so of all alike."""
    return provider.price_hourly if isinstance(provider, Priced) else None


@runtime_checkable
class ServedByAnother(Protocol):
    """A name that scripts have for machines which another provider has, or nobody."""

    def served(self) -> Any:
        """The provider that serves in its place.

        Raises:
            UsageError: none does; says what to do.
        """


@runtime_checkable
class SizesDisk(Protocol):
    """Its machines have disks of the size that is asked for."""

    def with_disk(self, gb: int) -> Self:
        """The same provider, with disks of this size.

        Args:
            gb: in GB.
        """


@runtime_checkable
class Rents(Protocol):
    """Its machines cost money, and it does not say how much: nothing is shown as free.

    Attributes:
        rents: True.
    """

    rents: bool


def costs_money(provider: object) -> bool:
    """Whether its machines cost any, be it known how much or not."""
    return isinstance(provider, Rents | Priced)


@runtime_checkable
class Plans(Protocol):
    """It rents, and says before what it would try and make."""

    async def plan(self, spec: Any) -> RentalPlan:
        """What ``create`` would try for a pool, in its order; nothing is made.

        Args:
            spec: all that was asked for (``specs.PoolSpec``, which knows of this module).

        Raises:
            UsageError: nothing fits; says what comes nearest.
        """


@runtime_checkable
class Foresees(Protocol):
    """It knows machines that are there already, and tells what of them a pool would have now."""

    async def foresee(self, spec: Any) -> Sequence[str]:
        """What a plan says of them, in words; nothing is made.

        Args:
            spec: all that was asked for (``specs.PoolSpec``).

        Raises:
            PoolError: it could not be had now; says why.
            UsageError: it can never be had.
        """


@runtime_checkable
class TakesGpus(Protocol):
    """It may take single GPUs of machines that others use, too.

    Attributes:
        rank_per_gpu: whether it does, so that a pool which does not say how many ranks a node has gets one for each.
    """

    rank_per_gpu: bool


@runtime_checkable
class Warns(Protocol):
    """It knows of what may go wrong with a launch that nothing keeps from beginning."""

    async def warnings(self, spec: Any) -> Sequence[str]:
        """What a person should know before it, in words; raises nothing, and takes seconds at most.

        Args:
            spec: all that was asked for (``specs.PoolSpec``).
        """


@runtime_checkable
class Offers(Plans, Protocol):
    """It knows what can be had of it, where, and for how much, and chooses among that.

    Attributes:
        name: how people name it.
        payer: whose account it uses; a pool has machines of one account of a provider.
    """

    name: str
    payer: str

    async def offers(self, requirements: MachineRequirements) -> OfferList:
        """Return the offers for a wish, near misses among them; ``model.offers`` decides which fit, and their order.

        Where the provider cannot be asked, what this release knows of it; the notes say so.

        Args:
            requirements: what a machine has to be; without regions those that the provider was made for are meant.

        Raises:
            UsageError: a part of the wish makes no sense there.
        """

    def within(self, regions: Sequence[str]) -> Self:
        """The same provider, in these regions alone.

        Raises:
            UsageError: it is for others.
        """


@runtime_checkable
class SellsBlocks(Protocol):
    """Machines of it can be bought ahead, for some hours."""

    async def blocks(self, requirements: MachineRequirements, nodes: int, hours: int) -> Sequence[Block]:
        """What can be bought now, the earliest first; nothing is bought.

        Args:
            requirements: what a machine has to be.
            nodes: how many.
            hours: for how long.

        Raises:
            UsageError: it sells none for so long.
            PoolError: it cannot be asked.
        """

    async def still_sold(self, block: Block) -> Block | None:
        """A block that was listed earlier, as it is sold now; None where it is not any more.

        Raises:
            PoolError: it cannot be asked.
        """

    async def buy(self, block: Block, token: str) -> Reservation:
        """Buy one, once: nothing is tried again.

        Args:
            block: as ``blocks`` named it.
            token: what was bought is marked with it.

        Raises:
            Unreachable: nobody knows whether it was bought; ``bought`` may tell.
            SkywardError: it was not.
        """

    async def bought(self, region: str, token: str) -> Reservation | None:
        """What was bought with a token; None where nothing of it is seen.

        Raises:
            PoolError: it cannot be asked.
        """

    async def reserved(self) -> Sequence[Reservation]:
        """All that are held in its regions and have not ended; reads only.

        Raises:
            PoolError: it cannot be asked.
        """


@runtime_checkable
class HasHosts(Protocol):
    """It was given machines that are there already.

    Attributes:
        hosts: their names.
        default_nodes: nodes of a pool for which no number is asked.
    """

    hosts: Sequence[str]
    default_nodes: int


@runtime_checkable
class Finds(Protocol):
    """It knows by itself which machines it made: a client may have died, or been stopped, before it wrote them down."""

    async def find(self, pool: str, token: str) -> list[Machine]:
        """All machines that were made for a pool, those in another's place too, whatever anybody has written down of
        them. What is being made at this moment is waited for.

        Args:
            pool: the pool's name.
            token: as ``create`` was given it.

        Raises:
            PoolError: it cannot be told now, which says nothing of whether there are any.
        """


@runtime_checkable
class Quiets(Protocol):
    """Its machines go with all that lies on them, and can be reached before: what nobody has fetched comes home."""

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """End what runs on machines of a pool, which stay; gives them, with what lies there that nobody has fetched
        ("kept", see ``machines.Machine``). One that cannot be reached is "unreachable" or "lost", and says why.

        Args:
            pool: the pool's name.
            machines: those that are meant.
        """


@runtime_checkable
class EndsNow(Protocol):
    """It can have machines end without asking anything of what runs on them."""

    async def why_not_now(self) -> str:
        """Why it cannot do that here, in words; "" where it can."""

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """As ``terminate``, at once.

        Args:
            pool: the pool's name.
            machines: those that are meant.

        Raises:
            PoolError: it was not told.
        """


@runtime_checkable
class Sells(Protocol):
    """What it gives was paid for: a machine is looked at before it counts, and held against what was bought."""

    def paid_for(self, machine: Machine) -> OrderedHardware | None:
        """What was bought of a machine; None where nobody is to look.

        Args:
            machine: it.
        """


@runtime_checkable
class Dates(Protocol):
    """What it made says in its account when it ends."""

    async def date(self, pool: str, machines: Sequence[Machine], at: float) -> None:
        """Have machines, and what belongs to them, say so.

        Args:
            pool: the pool's name.
            machines: those that are meant.
            at: Unix time.

        Raises:
            PoolError: it could not be said.
        """


@runtime_checkable
class TakesBack(Protocol):
    """It may take machines back, and says so a while ahead; ``describe`` says of one that it took, under "preempted" in
    ``extra``, how that is known."""

    def notices(self, machine: Machine) -> str:
        """A program for the machine's Python, of the standard library alone, that says when the machine is about to be
        taken back; "" where it never is.

        It prints a line of JSON for each thing that it learns: {"kind": "terminate", "left": 120.0} with "stop" or
        "hibernate" in its place, seconds left, or null where nobody knows; {"kind": "rebalance", "left": null} where it
        has only become likelier; {"error": "..."} where it cannot be told. It ends when its standard input does.

        Args:
            machine: the machine.
        """


def notice_program(provider: object, machine: Machine) -> str:
    """What says on a machine that it is about to be taken back; "" where it never is."""
    return provider.notices(machine) if isinstance(provider, TakesBack) else ""


@runtime_checkable
class Sweeps(Protocol):
    """It can tell all that was ever made for pools in its account and is there still, whoever remembers it."""

    @classmethod
    def accounts(cls, used: Sequence[Any]) -> list[Any]:
        """The accounts of some of its providers, each once, at all places that these name.

        Args:
            used: the providers.
        """

    async def inventory(self, *, everywhere: bool) -> Inventory:
        """What is there; reads only.

        Args:
            everywhere: look at all places, not only at those that are named.

        Raises:
            PoolError: the account cannot be asked.
        """

    async def remove(self, things: Sequence[Leftover]) -> list[str]:
        """End things of this account, and see them gone; gives what is left of them, in words."""


@runtime_checkable
class Asks(Protocol):
    """It may ask the person about what nobody else can judge, such as a host's key."""

    def asking(self) -> Self:
        """The same provider, for a front end that can put such a question."""


@runtime_checkable
class RunsHere(Protocol):
    """Its nodes are on this machine: their ranks run with the interpreter that the pool's scripts are loaded with.

    Attributes:
        runs_here: True.
    """

    runs_here: bool


@runtime_checkable
class ChecksSettings(Protocol):
    """It cannot be checked by its name alone, and knows what to look at here."""

    @classmethod
    def check_all(cls) -> AsyncIterator[Check]:
        """Yield what ``check`` says of all that the user's ``skyward.toml`` holds, as it is found out."""


def default_nodes(provider: object) -> int:
    """Nodes of a pool for which no number is asked: all hosts, else one."""
    return provider.default_nodes if isinstance(provider, HasHosts) else 1


def declared_settings(provider: object) -> tuple[Setting, ...]:
    """What a provider's class declares; nothing where it has no settings."""
    return tuple(provider.settings) if isinstance(provider, HasSettings) else ()


@runtime_checkable
class NeedsPython(Protocol):
    """Its machines may lack the Python that a script is loaded with, and which its functions need there."""

    def needs_python(self, minor: str) -> str:
        """What a plan says of that, in words.

        Args:
            minor: its version, such as "3.12".
        """


@runtime_checkable
class ChecksPython(Protocol):
    """Its check-up can tell whether its machines have the Python that a script is loaded with."""

    async def check_for(self, loaded_with: Sequence[str] | None) -> list[Check]:
        """As ``check``, for such a script.

        Args:
            loaded_with: as ``script_interpreter.Interpreter.for_hosts`` has it; None for what runs this.
        """
