"""What AWS has told of types and prices, kept for a while: whoever asks again within that time asks nobody."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...store.home import home
from ...store.loggers import logger
from ...store.user_files import json_of, read_bytes
from ...store.whole_file import write_whole

_log = logger("provider")

DAY = 86400.0
FILE = "aws-offers.json"


class PriceStore:
    """A file with pieces of what was told, each with its time.

    It may be lost, broken, or written by two at once: what is not there is asked for again.

    Args:
        of: whose answers these are; those of another endpoint are others.
    """

    def __init__(self, of: str) -> None:
        self._of = of

    async def told(
        self, name: str, ask: Callable[[], Awaitable[Any]], *, lasts: float = DAY
    ) -> tuple[Any, float]:
        """A piece, and when it was told; asked for where there is none that is young enough.

        Args:
            name: of the piece.
            ask: gives it, as JSON can hold it.
            lasts: seconds after which it is asked for again.

        Raises:
            SkywardError: as ``ask`` does.
        """
        key = f"{self._of} {name}"
        found = (await asyncio.to_thread(_read)).get(key)
        now = time.time()
        if found is not None and 0 <= now - found["at"] < lasts:
            return found["told"], found["at"]
        told = await ask()
        await asyncio.to_thread(_add, key, {"at": now, "told": told})
        return told, now


def _path() -> Path:
    return home() / FILE


def _read() -> dict[str, Any]:
    """All pieces; none where the file is not there, or holds something else."""
    try:
        found = json_of(read_bytes(_path()))
        return {
            key: each for key, each in found.items() if isinstance(each["at"], int | float) and "told" in each
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.info("%s is of no use and is made anew: %s: %s", FILE, type(error).__name__, error)
        return {}


def _add(key: str, piece: dict[str, Any]) -> None:
    pieces = {name: each for name, each in _read().items() if time.time() - each["at"] < DAY}
    # Of two that write at once one is left out: it is asked again.
    with suppress(OSError):
        write_whole(_path(), json.dumps(pieces | {key: piece}).encode())
