"""Optional capabilities of providers, as protocols that callers check with ``isinstance``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from skyward_core.model.errors import TooFewHosts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from skyward_core.model.leftovers import Inventory, Leftover
    from skyward_core.model.machines_checks_and_gpu_use import Check, Machine, OrderedHardware
    from skyward_core.model.offers_and_rental_plans import (
        Block,
        MachineRequirements,
        OfferList,
        RentalPlan,
        Reservation,
    )


@runtime_checkable
class Priced(Protocol):
    """Provider whose machines have one known price.

    Attributes:
        price_hourly: Price of one machine in dollars per hour.
    """

    price_hourly: float


def hourly_price(provider: object) -> float | None:
    """Return the price of each machine in dollars per hour. None if unknown or different between machines."""
    return provider.price_hourly if isinstance(provider, Priced) else None


@runtime_checkable
class ServedByAnother(Protocol):
    """Placeholder provider: a name from older API versions. Another provider may supply its machines."""

    def served(self) -> Any:
        """Return the provider that supplies the machines.

        Raises:
            UsageError: If no provider supplies them. The message has the alternatives.
        """


@runtime_checkable
class SizesDisk(Protocol):
    """Provider that can give its machines a disk of the requested size."""

    def with_disk(self, gb: int) -> Self:
        """Return the same provider with another disk size.

        Args:
            gb: Size in GB.
        """


@runtime_checkable
class Rents(Protocol):
    """Provider whose machines cost money, at prices that vary. Front ends must not show them as free.

    Attributes:
        rents: True.
    """

    rents: bool


def costs_money(provider: object) -> bool:
    """Check whether a provider's machines cost money, at known or unknown prices."""
    return isinstance(provider, Rents | Priced)


@runtime_checkable
class Plans(Protocol):
    """Provider that rents machines and can plan a rental."""

    async def plan(self, spec: Any) -> RentalPlan:
        """Return the attempts of ``create`` for a pool, in order. Nothing is created.

        Args:
            spec: The request (``specs.PoolSpec``, which imports this module).

        Raises:
            UsageError: If nothing satisfies the request. The message names the nearest offers.
        """


@runtime_checkable
class Foresees(Protocol):
    """Provider of existing machines that can predict which machines a pool would use."""

    async def foresee(self, spec: Any) -> Sequence[str]:
        """Return the prediction as lines of a plan. Nothing is created.

        Args:
            spec: The request (``specs.PoolSpec``).

        Raises:
            PoolError: If the request cannot be satisfied now.
            UsageError: If the request can never be satisfied.
        """


@runtime_checkable
class TakesGpus(Protocol):
    """Provider that may use single GPUs of machines shared with other users.

    Attributes:
        rank_per_gpu: Whether the provider uses single GPUs. A pool without ``ranks_per_node`` then gets one rank per
            GPU.
    """

    rank_per_gpu: bool


@runtime_checkable
class Warns(Protocol):
    """Provider that knows of possible problems that do not prevent a launch."""

    async def warnings(self, spec: Any) -> Sequence[str]:
        """Return warnings for the user. Raises nothing, and takes a few seconds at most.

        Args:
            spec: The request (``specs.PoolSpec``).
        """


@runtime_checkable
class Offers(Plans, Protocol):
    """Provider that lists offers with places and prices, and chooses among them.

    Attributes:
        name: Name of the provider.
        payer: Account that pays. All machines that a pool rents from one provider belong to one account.
    """

    name: str
    payer: str

    async def offers(self, requirements: MachineRequirements) -> OfferList:
        """Return the offers for requirements, including near misses. ``model.offers`` filters and sorts them.

        If the provider does not answer, the offers come from this release's list, and the notes say so.

        Args:
            requirements: Requirements for a machine. If they contain no regions, the provider's own regions are used.

        Raises:
            UsageError: If the requirements are invalid for this provider.
        """

    def within(self, regions: Sequence[str]) -> Self:
        """Return the same provider, limited to some regions.

        Raises:
            UsageError: If the provider is configured for other regions.
        """


@runtime_checkable
class SellsBlocks(Protocol):
    """Provider that sells capacity blocks: machines for a number of hours, paid in advance."""

    async def blocks(self, requirements: MachineRequirements, nodes: int, hours: int) -> Sequence[Block]:
        """Return the blocks for sale, the earliest first. Nothing is bought.

        Args:
            requirements: Requirements for a machine.
            nodes: Number of machines.
            hours: Duration in hours.

        Raises:
            UsageError: If blocks of that duration are not sold.
            PoolError: If the provider does not answer.
        """

    async def still_sold(self, block: Block) -> Block | None:
        """Return the current state of a listed block. None if the block is no longer for sale.

        Raises:
            PoolError: If the provider does not answer.
        """

    async def buy(self, block: Block, token: str) -> Reservation:
        """Buy a block. A failed purchase is not retried.

        Args:
            block: A block from ``blocks``.
            token: Tag that identifies the reservation.

        Raises:
            Unreachable: If it is unknown whether the block was bought. ``bought`` may find the reservation.
            SkywardError: If the block was not bought.
        """

    async def bought(self, region: str, token: str) -> Reservation | None:
        """Return the reservation whose tag is the token given to ``buy``. None if the provider does not show such a
        reservation.

        Raises:
            PoolError: If the provider does not answer.
        """

    async def reserved(self) -> Sequence[Reservation]:
        """Return all reservations in the provider's regions that have not ended. Changes nothing.

        Raises:
            PoolError: If the provider does not answer.
        """


@runtime_checkable
class HasHosts(Protocol):
    """Provider of a fixed list of existing machines.

    Attributes:
        hosts: Names of the machines.
        default_nodes: Default number of nodes of a pool.
    """

    hosts: Sequence[str]
    default_nodes: int


@runtime_checkable
class FindsMachines(Protocol):
    """Provider that can find the machines it created, even if the client died before recording them."""

    async def find(self, pool: str, token: str) -> list[Machine]:
        """Return all machines that were created for a pool, including replacements. Waits for creations in progress.

        Machines that have ended may be included, with the state "gone".

        Args:
            pool: Name of the pool.
            token: The token given to ``create``.

        Raises:
            PoolError: If the provider does not answer. Machines may exist nevertheless.
        """


@runtime_checkable
class StopsRuns(Protocol):
    """Provider whose machines are deleted with their disks. Unfetched data must be downloaded before that."""

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """Stop everything that runs on machines of a pool, and return the machines with their retained results.

        The machines keep running. Retained results are in ``extra["kept"]``, see ``machines.Machine``. A machine that
        cannot be reached gets the state "unreachable" or "lost", with the reason.

        Args:
            pool: Name of the pool.
            machines: The machines.
        """


@runtime_checkable
class EndsNow(Protocol):
    """Provider that can terminate machines without a connection to them."""

    async def why_not_now(self) -> str:
        """Return the reason why this client cannot terminate machines at once; "" if it can."""

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """Terminate machines at once, without a connection to them.

        Args:
            pool: Name of the pool.
            machines: The machines.

        Raises:
            PoolError: If the request failed.
        """


@runtime_checkable
class OrdersHardware(Protocol):
    """Provider of paid machines: each machine's hardware is measured and compared with the order before use."""

    def paid_for(self, machine: Machine) -> OrderedHardware | None:
        """Return the ordered hardware of a machine. None to skip the comparison.

        Args:
            machine: The machine.
        """


@runtime_checkable
class SetsExpiryDates(Protocol):
    """Provider that can mark its resources in the account with the time at which they should end."""

    async def date(self, pool: str, machines: Sequence[Machine], at: float) -> None:
        """Set the time at which machines and their resources should end.

        Args:
            pool: Name of the pool.
            machines: The machines.
            at: Unix time.

        Raises:
            PoolError: If the time could not be set.
        """


@runtime_checkable
class TakesBack(Protocol):
    """Provider that may preempt machines and sends preemption notices.

    For a preempted machine ``describe`` sets ``extra["preempted"]`` to the evidence.
    """

    def notices(self, machine: Machine) -> str:
        """Return a program that watches for preemption notices on a machine; "" for a machine that is never preempted.

        The program runs in the machine's Python and uses the standard library only. It prints one JSON line per event:
        {"kind": "terminate", "left": 120.0}, also with "stop" or "hibernate", with the seconds left, or null if
        unknown; {"kind": "rebalance", "left": null} if preemption has become more likely; {"error": "..."} if notices
        cannot be read. The program ends when its standard input closes.

        Args:
            machine: The machine.
        """


def notice_program(provider: object, machine: Machine) -> str:
    """Return the program that watches for preemption notices on a machine; "" for a machine that is never preempted."""
    return provider.notices(machine) if isinstance(provider, TakesBack) else ""


@runtime_checkable
class ListsResources(Protocol):
    """Provider that can list all resources of pools in its account, regardless of the client that created them."""

    @classmethod
    def accounts(cls, used: Sequence[Any]) -> list[Any]:
        """Return the distinct accounts of some providers, each with all regions that these providers use.

        Args:
            used: The providers.
        """

    async def inventory(self, *, everywhere: bool) -> Inventory:
        """Return the account's contents. Reads only.

        Args:
            everywhere: Whether to inspect all regions, not only the configured ones.

        Raises:
            PoolError: If the provider does not answer.
        """

    async def remove(self, things: Sequence[Leftover]) -> list[str]:
        """Remove leftovers and verify that they no longer exist. Return descriptions of the leftovers that remain."""


@runtime_checkable
class Asks(Protocol):
    """Provider that may need a decision of the user, such as whether to trust a host's key."""

    def asking(self) -> Self:
        """Return the same provider for a front end that can ask the user."""


@runtime_checkable
class RunsHere(Protocol):
    """Provider whose nodes are on this machine. Ranks use the interpreter that loads the pool's scripts.

    Attributes:
        runs_here: True.
    """

    runs_here: bool


@runtime_checkable
class ChecksSettings(Protocol):
    """Provider whose check-up needs the user's settings."""

    @classmethod
    def check_all(cls) -> AsyncIterator[Check]:
        """Yield the results of ``check`` for everything in the user's ``skyward.toml``, as they become available."""


def default_nodes(provider: object) -> int:
    """Return the default number of nodes of a pool: all hosts, otherwise one."""
    return provider.default_nodes if isinstance(provider, HasHosts) else 1


def check_host_count(provider: object, nodes: int) -> None:
    """Check that a provider of existing machines has enough of them.

    Raises:
        TooFewHosts: If there are fewer hosts than nodes.
    """
    if isinstance(provider, HasHosts) and nodes > len(provider.hosts):
        raise TooFewHosts(
            f"{nodes} nodes were requested, but there are only {len(provider.hosts)} hosts: "
            f"{', '.join(provider.hosts)}. Add hosts, request fewer nodes, or leave the number out to use all hosts."
        )


@runtime_checkable
class NeedsPython(Protocol):
    """Provider whose machines may lack the Python version that a script's functions need."""

    def needs_python(self, minor: str) -> str:
        """Return a line for the plan about the required Python.

        Args:
            minor: Version, such as "3.12".
        """


@runtime_checkable
class ChecksPython(Protocol):
    """Provider whose check-up can verify the Python version that a script's functions need."""

    async def check_for(self, loaded_with: Sequence[str] | None) -> list[Check]:
        """Run ``check`` for a script.

        Args:
            loaded_with: The script's Python, from ``specs.Interpreter.for_hosts``. None for this process's
                Python.
        """
