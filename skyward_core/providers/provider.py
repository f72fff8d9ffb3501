"""The Provider protocol, parsing of provider settings, and creation of providers from settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from skyward_core.model.errors import SkywardError, UsageError, set_error_field
from skyward_core.model.machines import Machine
from skyward_core.model.provider_capability_protocols import declared_settings
from skyward_core.model.provider_setting_descriptors import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from skyward_core.model.machines import Check
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
        """Start slow preparations that create no machine. They end with the block or with this process.

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


def make_provider(provider: Any, texts: Mapping[str, str]) -> Any:
    """Create a provider from its class and the texts of its settings.

    Args:
        provider: The class.
        texts: Name of each setting and its text.

    Raises:
        UsageError: If a setting is invalid (see :func:`parse_settings`) or the constructor fails.
    """
    given = parse_settings(provider, texts)
    declared = {each.name: each.default for each in declared_settings(provider) if not each.required}
    try:
        return provider(**declared | given)
    except SkywardError:
        raise
    except Exception as error:  # constructors of other packages may raise anything
        raise UsageError(
            f"provider {provider.name} cannot be created from {', '.join(declared | given) or 'no settings'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def parse_settings(provider: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the texts that a user wrote for a provider's settings.

    Args:
        provider: The class.
        texts: Name of each setting and its text.

    Returns:
        Name of each setting and its value.

    Raises:
        UsageError: If the provider has no such setting, or if a text is not a valid value.
    """
    settings = {each.name: each for each in declared_settings(provider)}
    for name in texts:
        if name not in settings:
            near = get_close_matches(name, settings, 1)
            available = "; it has " + ", ".join(f"{each.name} ({each.help})" for each in settings.values())
            hint = f"; did you mean {near[0]!r}?" if near else available if settings else "; it has none"
            raise UsageError(f"provider {provider.name} has no setting {name!r}{hint}")
    found = {}
    for name, text in texts.items():
        with set_error_field(f"settings.{name}"):
            found[name] = settings[name].read(text)
    return found


def settings_error(provider: Any) -> str:
    """Return the error in the settings that a class of another package declares, or ""."""
    try:
        declared = declared_settings(provider)
    except TypeError:
        return "its settings are not a list"
    for each in declared:
        if not isinstance(each, Setting):
            return f"its settings hold {each!r}, which is not a Setting"
        if not (each.name.isascii() and each.name.isidentifier()):
            return f"its setting {each.name!r} is not a valid parameter name"
    names = [each.name for each in declared]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"it declares setting {twice[0]!r} twice" if twice else ""
