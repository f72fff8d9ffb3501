"""The tags by which everything that is made for a pool is found again, by who has lost all else."""

from __future__ import annotations

import calendar
import getpass
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...store.home import home
from ...store.whole_file import write_whole

POOL, TOKEN, LEDGER, EXPIRES, OWNER, NODE, HOURLY, PURCHASE = (
    f"skyward:{name}"
    for name in ("pool", "token", "ledger", "expires", "owner", "node", "hourly", "purchase")
)


DATE = "%Y-%m-%dT%H:%M:%SZ"


def ledger_id() -> str:
    """Which ledger knows of what this client makes; made once for each home."""
    path = home() / "aws" / "ledger-id"
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, secrets.token_hex(8).encode())
        return path.read_text(encoding="ascii").strip()


def known_ledger_id() -> str:
    """The same, where something was ever made; else ""."""
    try:
        return (home() / "aws" / "ledger-id").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def of_pool(
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
    tags = {
        "Name": f"skyward-{pool}",
        POOL: pool,
        TOKEN: token,
        LEDGER: ledger_id(),
        OWNER: getpass.getuser(),
    }
    if ttl is not None:
        tags[EXPIRES] = as_date(at + ttl)
    if node is not None:
        tags[NODE] = str(node)
    if hourly is not None:
        tags[HOURLY] = f"{hourly:.4f}"
    return tags


def as_date(at: float) -> str:
    """A Unix time as a tag says it."""
    return time.strftime(DATE, time.gmtime(at))


def of_purchase(token: str) -> dict[str, str]:
    """The tags of what is bought ahead, for no pool."""
    return {"Name": "skyward", PURCHASE: token, LEDGER: ledger_id(), OWNER: getpass.getuser()}


def expires(marks: Mapping[str, str]) -> float | None:
    """When what has these tags should have ended, in Unix time; None where they do not say."""
    try:
        return float(calendar.timegm(time.strptime(marks.get(EXPIRES, ""), DATE)))
    except ValueError:
        return None


def hourly(marks: Mapping[str, str]) -> float | None:
    """What a machine with these tags costs an hour; None where they do not say."""
    try:
        found = float(marks.get(HOURLY, ""))
    except ValueError:
        return None
    return found if 0 <= found < 1e6 else None


def specification(kinds: Sequence[str], tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Tags as a call takes them that makes things of some kinds."""
    listed = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]


def read(tagged: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a thing that a call tells of."""
    return {each["Key"]: each["Value"] for each in tagged.get("Tags", ())}
