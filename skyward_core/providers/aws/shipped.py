"""Types and prices that come with this release, with their date: for whoever has no credentials, or where AWS does not
say its prices."""

from __future__ import annotations

import json
import pkgutil
from datetime import UTC, datetime
from functools import cache
from typing import Any

from ...model.errors import UsageError
from .kinds import Kind
from .prices import HOURS

FILE = "shipped_offers.json"


@cache
def _data() -> dict[str, Any]:
    raw = pkgutil.get_data(__package__, FILE)
    if raw is None:
        raise UsageError(f"{__package__} holds no {FILE}; install the package again")
    found: dict[str, Any] = json.loads(raw)
    return found


def date() -> str:
    """The day of these prices: "2026-01-19"."""
    return str(_data()["date"])


def at() -> float:
    """The same in seconds since the epoch."""
    return datetime.fromisoformat(date()).replace(tzinfo=UTC).timestamp()


def regions() -> list[str]:
    """Regions of which prices are there."""
    return list(_data()["gp3_gb_month"])


def kinds() -> list[Kind]:
    """The types that are there."""
    columns = _data()["columns"]
    rows = (dict(zip(columns, row, strict=True)) for row in _data()["kinds"])
    return [Kind(**{name: row[name] for name in columns if name not in regions()}) for row in rows]


def on_demand(region: str) -> dict[str, float]:
    """Dollars for an hour, by type; empty of a region that is not there."""
    if region not in regions():
        return {}
    column = _data()["columns"].index(region)
    return {row[0]: row[column] for row in _data()["kinds"]}


def beside(region: str) -> dict[str, float]:
    """As :func:`.prices.beside`; empty of a region that is not there."""
    if region not in regions():
        return {}
    return {
        "gb": _data()["gp3_gb_month"][region] / HOURS,
        "address": _data()["public_address"][region],
    }
