"""Tags of EC2 resources: pool, ledger, owner, node, expiry and price."""

from __future__ import annotations

import calendar
import getpass
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from skyward_core.providers.pool_key_folder import ledger_id

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
    """The tags of what is made for a pool.

    Args:
        at: when it was asked for first, Unix time.
        ttl: seconds from then on after which it should be gone, unless that is put off; None where it costs nothing.
        node: the one that a machine in another's place is for.
        hourly: dollars for a machine and an hour, as they were known when it was made.
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
    """Return the tags of this client's ledger and its user; a user of a container may have no name."""
    try:
        owner = getpass.getuser()
    except (KeyError, OSError):
        owner = str(os.getuid())
    return {LEDGER: ledger_id("aws"), OWNER: owner}


def tagged_node(marks: Mapping[str, str]) -> int | None:
    """The node that a machine in another's place is for; None where its tags do not say: anybody of the account may
    write them."""
    text = marks.get(NODE, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


def format_date(at: float) -> str:
    """A Unix time as a tag says it."""
    return time.strftime(DATE_FORMAT, time.gmtime(at))


def purchase_tags(token: str) -> dict[str, str]:
    """The tags of what is bought ahead, for no pool."""
    return {"Name": "skyward", PURCHASE: token} | _owner_tags()


def tagged_expiry(marks: Mapping[str, str]) -> float | None:
    """When what has these tags should have ended, in Unix time; None where they do not say."""
    try:
        return float(calendar.timegm(time.strptime(marks.get(EXPIRES, ""), DATE_FORMAT)))
    except ValueError:
        return None


def tagged_hourly(marks: Mapping[str, str]) -> float | None:
    """What a machine with these tags costs an hour; None where they do not say."""
    try:
        found = float(marks.get(HOURLY, ""))
    except ValueError:
        return None
    return found if 0 <= found < 1e6 else None


def tag_specifications(kinds: Sequence[str], tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Tags as a call takes them that makes things of some kinds."""
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]


def parse_tags(tagged: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a thing that a call tells of."""
    return {each["Key"]: each["Value"] for each in tagged.get("Tags", ())}
