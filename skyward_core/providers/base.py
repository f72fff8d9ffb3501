"""The provider protocol: methods that know machines and nothing of runs; and what some providers can do besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from ..model.machine import Check, Machine
    from ..model.spec import PoolSpec
    from ..transport.base import Transport
    from ..transport.ssh.target import Target
    from .setting import Setting


class Provider(Protocol):
    """Where machines come from. Implementations are small values that can be rebuilt by ``from_json``.

    Attributes:
        name: how people name it.
        about: what it is, in a few words, for a form.
        machine: what one of its machines is called there.
    """

    name: str
    about: str
    machine: str

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Create the pool's machines; the same token again gives the same machines.

        Args:
            spec: all that was asked for.
            token: of this creation, written down before it begins.

        Raises:
            PoolError: says what could not be had, and what to do.
        """

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Create another machine for a node whose own is lost; the same token again gives the same machine.

        Args:
            pool: the pool's name.
            token: of this creation, not of the pool.
            node: index of the node.
            machines: those of the other nodes.
            former: those that the pool has lost, or could not use, in that order; the node's own last one is there.

        Raises:
            NoCapacity: there is none to be had now; says why.
        """

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """The machines of a pool that the provider can see now, with their state.

        Args:
            pool: the pool's name.
            known: those that the ledger holds.
        """

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Ask for the machines' end; idempotent. ``describe`` tells when it has come.

        Args:
            pool: the pool's name.
            machines: those that shall end.
        """

    async def teardown(self, pool: str) -> None:
        """Remove what ``create`` made beside machines; idempotent.

        Args:
            pool: the pool's name.
        """

    async def check(self) -> list[Check]:
        """Whether a pool could be had: credentials, reachability, versions; in plain words."""

    def transport(self, pool: str, machine: Machine) -> Transport:
        """The way to one machine.

        Args:
            pool: the pool's name.
            machine: the machine.
        """

    def warm(self, spec: PoolSpec) -> AbstractContextManager[object]:
        """Begin what takes time but makes no machine; nothing of it outlives the block, or this process.

        Called by a thread that is not the loop's.

        Args:
            spec: all that was asked for.
        """

    def to_json(self) -> dict[str, Any]:
        """What rebuilds this provider in another process; no secrets."""


# What only some providers have. A front end asks for it by isinstance, of the class or of one that is made, and names
# no provider.


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
class Asks(Protocol):
    """It may ask the person about what nobody else can judge, such as a host's key."""

    def asking(self) -> Self:
        """The same provider, for a front end that can put such a question."""


@runtime_checkable
class ReachedOverSSH(Protocol):
    """A person can log in to its machines."""

    def target(self, host: str) -> Target:
        """How a machine is reached.

        Args:
            host: its address.
        """


@runtime_checkable
class ChecksSettings(Protocol):
    """It cannot be checked by its name alone, and knows what to look at here."""

    @classmethod
    async def check_all(cls) -> list[Check]:
        """What :meth:`Provider.check` says of all that the person's ``skyward.toml`` holds for it."""


def default_nodes(provider: object) -> int:
    """Nodes of a pool for which no number is asked: all hosts, else one."""
    return provider.default_nodes if isinstance(provider, HasHosts) else 1


def settings_of(provider: object) -> tuple[Setting, ...]:
    """What a provider's class declares; nothing where it has no settings."""
    return tuple(provider.settings) if isinstance(provider, HasSettings) else ()
