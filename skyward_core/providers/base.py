"""The provider protocol: methods that know machines and nothing of runs; :mod:`..model.capabilities` has what some
providers can do besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from ..model.machine import Check, Machine
    from ..model.spec import PoolSpec
    from ..transport.base import Transport
    from ..transport.ssh.target import Target


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


# The one capability that tells of a transport. All others are where a front end may have them.


@runtime_checkable
class ReachedOverSSH(Protocol):
    """A person can log in to its machines."""

    def target(self, host: str) -> Target:
        """How a machine is reached.

        Args:
            host: its address.
        """
