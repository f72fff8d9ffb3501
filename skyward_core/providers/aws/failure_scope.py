"""What of a failure counts for one place alone: whoever has others goes on with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ...model.errors import CredentialsRefused, SkywardError, Unreachable, UsageError, together, what_of
from ..told import progress
from .failures import DENIED, THROTTLED, CallFailed, CapacityRefused

T = TypeVar("T")


def is_of_attempt(error: SkywardError) -> bool:
    """Whether another machine of the same region may be had all the same."""
    return isinstance(error, CapacityRefused) or (isinstance(error, CallFailed) and error.code in THROTTLED)


def is_of_region(error: SkywardError) -> bool:
    """Whether another region may do: this one does not answer, or lets these credentials do nothing."""
    if isinstance(error, CallFailed):
        return error.code in DENIED
    return isinstance(error, CredentialsRefused | Unreachable)


async def of_each(
    regions: Sequence[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[list[T], list[tuple[str, SkywardError]]]:
    """What regions say, all asked at once; and those that say nothing, with why.

    Raises:
        SkywardError: none says anything; names each.
    """
    found = await asyncio.gather(*map(ask, regions), return_exceptions=True)
    said: list[T] = []
    silent: list[tuple[str, SkywardError]] = []
    for region, each in zip(regions, found, strict=True):
        if isinstance(each, SkywardError) and (is_of_region(each) or isinstance(each, UsageError)):
            silent.append((region, each))
        elif isinstance(each, BaseException):
            raise each
        else:
            said.append(each)
    if not said:
        raise silent[0][1] if len(silent) == 1 else together(silent)
    for region, error in silent:
        progress(f"region {region} is left out: {what_of(error)}")
    return said, silent
