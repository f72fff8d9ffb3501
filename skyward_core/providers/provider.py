"""The Provider protocol, and providers made from their settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from skyward_core.model.errors import SkywardError, UsageError, set_error_field
from skyward_core.model.machines import Machine
from skyward_core.model.provider_capabilities import declared_settings
from skyward_core.model.setting_descriptors import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from skyward_core.model.machines import Check
    from skyward_core.model.specs import PoolSpec
    from skyward_core.transport.ssh.host_address import Target
    from skyward_core.transport.transport import Transport


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


def split_words(text: str) -> list[str]:
    """Return the words of a name, such as that of an accelerator, in lower case."""
    return [part for part in re.split(r"[^a-z0-9]+", text.lower()) if part]


def contains_words(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Check whether words stand among others in a row."""
    width = len(wanted)
    return any(list(parts[at : at + width]) == list(wanted) for at in range(len(parts) - width + 1))


def describe_python(minor: str, machine: str, named: str | None, *, rented: bool = False) -> str:
    """In words.

    Args:
        minor: the version of the Python that loads the script.
        machine: what one of them is called.
        named: the interpreter that the person has named for them.
        rented: whether nobody is asked before something is installed there.
    """
    needed = f"Python {minor} on each {machine}"
    if named:
        return f"{needed}: {named}"
    if rented:
        return f"{needed}; where its image has another, the first login fetches uv, which brings it"
    return f"{needed}, or uv there, which fetches it"


def make_provider(provider: Any, texts: Mapping[str, str]) -> Any:
    """A provider of its class and of what a person wrote for its settings.

    Args:
        provider: the class.
        texts: name of a setting and what was written.

    Raises:
        UsageError: as :func:`parse_settings`; or it cannot be made of what is there; says why.
    """
    given = parse_settings(provider, texts)
    declared = {each.name: each.default for each in declared_settings(provider) if not each.required}
    try:
        return provider(**declared | given)
    except SkywardError:
        raise
    except Exception as error:  # one of another package may raise anything
        raise UsageError(
            f"provider {provider.name} cannot be made of {', '.join(declared | given) or 'nothing'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def parse_settings(provider: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """What a person wrote for a provider's settings, as values.

    Args:
        provider: the class.
        texts: name of a setting and what was written.

    Raises:
        UsageError: it has no such setting, or a text is none of its values; says why.
    """
    settings = {each.name: each for each in declared_settings(provider)}
    for name in texts:
        if name not in settings:
            near = get_close_matches(name, settings, 1)
            there = "; it has " + ", ".join(f"{each.name} ({each.help})" for each in settings.values())
            meant = f"; did you mean {near[0]!r}?" if near else there if settings else "; it has none"
            raise UsageError(f"provider {provider.name} has no setting {name!r}{meant}")
    found = {}
    for name, text in texts.items():
        with set_error_field(f"settings.{name}"):
            found[name] = settings[name].read(text)
    return found


def settings_error(provider: Any) -> str:
    """What is wrong with the settings that a class of another package declares; "" where nothing is."""
    try:
        declared = declared_settings(provider)
    except TypeError:
        return "its settings are no list"
    for each in declared:
        if not isinstance(each, Setting):
            return f"its settings hold {each!r}, which is no Setting"
        if not (each.name.isascii() and each.name.isidentifier()):
            return f"its setting {each.name!r} is no name of a parameter"
    names = [each.name for each in declared]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"it declares setting {twice[0]!r} twice" if twice else ""
