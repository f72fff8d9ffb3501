"""The threads in which AWS is asked, never on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

AT_ONCE = 8  # calls


@cache
def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="skyward-aws")


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run what takes its time, or imports boto3, beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(threads(), work, *arguments)
