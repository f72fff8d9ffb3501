"""The Provider protocol, and helpers that providers share."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from skyward_core.model.machines_checks_and_gpu_use import Check, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from skyward_core.model.specs import PoolSpec
    from skyward_core.transport.ssh.host_address_and_python import Target
    from skyward_core.transport.transport import Transport


class Provider(Protocol):
    """Source of machines. Implementations are small values that ``from_json`` can rebuild.

    Attributes:
        name: Name of the provider in commands and settings.
        about: Short description, for forms.
        machine: Noun for one of its machines, for messages.
    """

    name: str
    about: str
    machine: str

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Create the pool's machines; the same token returns the same machines.

        Args:
            spec: Everything that the user requested.
            token: Idempotency token of this creation, recorded in the ledger beforehand.

        Raises:
            PoolError: If machines are not available. The message states the cause and a remedy.
        """

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Create a replacement for a lost machine; the same token returns the same machine.

        Args:
            pool: Name of the pool.
            token: Idempotency token of this replacement, not of the pool.
            node: Index of the node.
            machines: Machines of the other nodes.
            former: Machines that the pool lost or rejected, oldest first; includes the node's last machine.

        Raises:
            NoCapacity: If no machine is available now.
        """

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """Return the machines of a pool that the provider can see now, with their state.

        Args:
            pool: Name of the pool.
            known: Machines in the ledger.
        """

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Request termination of machines; idempotent. ``describe`` shows when they have ended.

        Args:
            pool: Name of the pool.
            machines: Machines to terminate.
        """

    async def teardown(self, pool: str) -> None:
        """Remove the resources other than machines that ``create`` made; idempotent.

        Args:
            pool: Name of the pool.
        """

    async def check(self) -> list[Check]:
        """Return checks of credentials, reachability and versions, described for users."""

    def transport(self, pool: str, machine: Machine) -> Transport:
        """Return the transport to one machine.

        Args:
            pool: Name of the pool.
            machine: The machine.
        """

    def warm(self, spec: PoolSpec) -> AbstractContextManager[object]:
        """Start slow preparations that create no machine, for the duration of a ``with`` block.

        Called from a thread other than the event loop's.

        Args:
            spec: Everything that the user requested.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that rebuilds this provider in another process, without secrets."""


class JsonSettings:
    """Conversion of a dataclass provider to and from JSON."""

    name: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild a provider from the JSON that ``to_json`` returned.

        Args:
            data: The JSON.

        Raises:
            UsageError: If a value is invalid.
        """
        return cls(**{key: value for key, value in data.items() if key != "provider"})


# This capability is defined here because ``Target`` belongs to the transport layer. All others are in
# ``model/provider_capability_protocols.py``.


@runtime_checkable
class ReachedOverSSH(Protocol):
    """Capability of providers whose machines accept SSH logins."""

    def target(self, host: str) -> Target:
        """Return how a host is reached over SSH.

        Args:
            host: Address of the host.
        """


def split_words(text: str) -> list[str]:
    """Return the lower-case words of a name, for example of an accelerator's name."""
    return [part for part in re.split(r"[^a-z0-9]+", text.lower()) if part]


def contains_words(parts: Sequence[str], words: Sequence[str]) -> bool:
    """Check whether the words ``words`` occur consecutively in ``parts``."""
    width = len(words)
    return any(list(parts[at : at + width]) == list(words) for at in range(len(parts) - width + 1))


def describe_python(minor: str, machine: str, named: str | None, *, rented: bool = False) -> str:
    """Return a sentence, for a plan, on the Python that each machine needs.

    Args:
        minor: Version of the Python that loads the script.
        machine: Noun for one machine.
        named: Interpreter that the user chose for the machines.
        rented: Whether packages may be installed on the machines without the user's permission.
    """
    needed = f"Python {minor} on each {machine}"
    if named:
        return f"{needed}: {named}"
    if rented:
        return f"{needed}; if its image has another version, the first login downloads uv, which installs it"
    return f"{needed}, or uv there, which fetches it"
