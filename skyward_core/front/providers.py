"""Providers as a person is offered them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.capabilities import Offers, costs_money, settings_of
from ..model.errors import SkywardError
from ..providers import DEFAULT, by_name, names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.setting import Setting

__all__ = ["DEFAULT", "ProviderInfo", "available"]


@dataclass(frozen=True, slots=True)
class ProviderInfo:
    """A provider that can be asked for.

    Attributes:
        name: how people name it.
        about: what it is, in a few words; "" of one that cannot be had.
        settings: what a person may choose.
        chooses: whether it has offers to choose from: markets, prices, regions.
        costs: whether its machines may cost money.
        trouble: why it cannot be had; "" where it can.
    """

    name: str
    about: str = ""
    settings: Sequence[Setting] = ()
    chooses: bool = False
    costs: bool = False
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
    costs = costs_money(found)
    return ProviderInfo(name, found.about, settings_of(found), isinstance(found, Offers), costs)
