"""Tags of EC2 resources: pool, ledger, owner, node, expiry and price."""

from __future__ import annotations

import calendar
import getpass
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from skyward_core.store.ledger import ledger_id

POOL, TOKEN, LEDGER, EXPIRES, OWNER, NODE, HOURLY, PURCHASE = (
    f"skyward:{name}" for name in ("pool", "token", "ledger", "expires", "owner", "node", "hourly", "purchase")
)


DATE_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def pool_tags(
    pool: str,
    token: str,
    *,
    at: float = 0.0,
    ttl: float | None = None,
    node: int | None = None,
    hourly: float | None = None,
) -> dict[str, str]:
    """Return the tags of a pool's resources.

    Args:
        pool: Name of the pool.
        token: Token of the pool.
        at: Unix time of the first request.
        ttl: Seconds from ``at`` after which the resource should no longer exist, unless postponed; None for free
            resources.
        node: Index of the node that gets a replacement machine.
        hourly: Dollars per machine and hour at the time of the launch.
    """
    tags = {"Name": f"skyward-{pool}", POOL: pool, TOKEN: token} | _owner_tags()
    if ttl is not None:
        tags[EXPIRES] = format_date(at + ttl)
    if node is not None:
        tags[NODE] = str(node)
    if hourly is not None:
        tags[HOURLY] = f"{hourly:.4f}"
    return tags


def _owner_tags() -> dict[str, str]:
    """Return the tags of this client's ledger and its user; the user of a container may have no name."""
    try:
        owner = getpass.getuser()
    except (KeyError, OSError):
        owner = str(os.getuid())
    return {LEDGER: ledger_id("aws"), OWNER: owner}


def tagged_node(marks: Mapping[str, str]) -> int | None:
    """Return the node index of a replacement machine; None if the tags have no valid index, since any account user can
    edit tags.
    """
    text = marks.get(NODE, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


def format_date(at: float) -> str:
    """Format a Unix time for a tag."""
    return time.strftime(DATE_FORMAT, time.gmtime(at))


def purchase_tags(token: str) -> dict[str, str]:
    """Return the tags of purchased capacity, which belongs to no pool."""
    return {"Name": "skyward", PURCHASE: token} | _owner_tags()


def tagged_expiry(marks: Mapping[str, str]) -> float | None:
    """Return the time at which a tagged resource should have ended, as Unix time; None if the tags have none."""
    try:
        return float(calendar.timegm(time.strptime(marks.get(EXPIRES, ""), DATE_FORMAT)))
    except ValueError:
        return None


def tagged_hourly(marks: Mapping[str, str]) -> float | None:
    """Return the dollars per hour of a tagged machine; None if the tags have no valid price."""
    try:
        found = float(marks.get(HOURLY, ""))
    except ValueError:
        return None
    return found if 0 <= found < 1e6 else None


def tag_specifications(kinds: Sequence[str], tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return tags in the format of calls that create resources of some types."""
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]


def parse_tags(tagged: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags in EC2's description of a resource."""
    return {each["Key"]: each["Value"] for each in tagged.get("Tags", ())}
