"""Providers as a person is offered them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.capabilities import Asks, HasHosts, Priced, settings_of
from ..model.errors import SkywardError
from ..model.setting import Field, Setting
from ..providers import DEFAULT, by_name, names, own_names
from ..providers.base import Provider
from ..providers.making import make

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DEFAULT",
    "Asks",
    "Field",
    "HasHosts",
    "Priced",
    "Provider",
    "ProviderInfo",
    "Setting",
    "available",
    "by_name",
    "make",
    "names",
    "own_names",
    "settings_of",
]


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """A provider that can be asked for.

    Attributes:
        name: how people name it.
        about: what it is, in a few words; "" of one that cannot be had.
        settings: what a person may choose.
        trouble: why it cannot be had; "" where it can.
    """

    name: str
    about: str = ""
    settings: Sequence[Setting] = ()
    trouble: str = ""


def available() -> list[ProviderInfo]:
    """The providers that come with this library, then those that other packages declare, by name.

    One that cannot be had is listed, too, with why.
    """
    return [_info(name) for name in names()]


def _info(name: str) -> ProviderInfo:
    try:
        found = by_name(name)
    except SkywardError as error:
        return ProviderInfo(name, trouble=str(error))
    return ProviderInfo(name, found.about, settings_of(found))
