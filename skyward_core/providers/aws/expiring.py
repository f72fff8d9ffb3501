"""Credentials that end before a pool does: its machines end by themselves then, and nobody can see that they did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ...model.errors import SkywardError
from .threads import in_thread

# Those that renew themselves for as long as the machine, or the program that gives them, is there.
RENEWED = frozenset({"iam-role", "container-role", "custom-process", "assume-role-with-web-identity"})
PATIENCE = 5.0  # seconds in which credentials say when they end
SOON = 3600.0  # seconds; a pool without a time to live is warned of no later end


def expiry(session: Any) -> float | None:
    """When the credentials of a botocore session end, in Unix time; None where they do not, or nobody knows. May ask a
    sign-in service, and takes its time."""
    from botocore.exceptions import BotoCoreError

    try:
        found = session.get_credentials()
        if found is None or found.method in RENEWED:
            return None
        found.get_frozen_credentials()  # those that are fetched when they are needed say it then
    except (BotoCoreError, RuntimeError):  # who needs them is told
        return None
    at = getattr(found, "_expiry_time", None)  # botocore has no other way to ask
    return at.timestamp() if isinstance(at, datetime) else None


async def warnings(expires: Callable[[], float | None], ttl: float | None) -> list[str]:
    """What to say before a launch of a pool with a time to live.

    Args:
        expires: says when the credentials end; in a thread, as it takes its time.
    """
    try:
        async with asyncio.timeout(PATIENCE):
            at = await in_thread(expires)
    except (SkywardError, TimeoutError):  # who needs the credentials is told
        return []
    return list(filter(None, [warning(at, ttl, time.time())]))


def warning(at: float | None, ttl: float | None, now: float) -> str:
    """What to say of credentials that end then, of a pool with a time to live; "" where there is nothing."""
    if at is None or at - now > (SOON if ttl is None else ttl):
        return ""
    ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    left = "they have expired" if at <= now else f"in {max(1, int((at - now) / 60))} min"
    before = "soon" if ttl is None else "before the pool's time to live is over"
    return (
        f"the AWS credentials expire at {ends} ({left}), {before}: renew them by then, by `aws sso login` say, or its "
        "teardown can verify nothing, and its machines end by their lease alone"
    )
