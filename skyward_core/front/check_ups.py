"""What a session asks of a provider before anything is made: whether it can do what will be asked of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from ..model.errors import SkywardError, hint_of, what_of
from ..model.interpreter import Interpreter
from ..model.machine import Check
from ..model.python_needs import ChecksPython
from ..providers import by_name
from ..providers.making import make
from .session_part import SessionPart

PATIENCE = 15.0  # seconds in which a provider says how it is


class CheckUps(SessionPart):
    """The part of :class:`.session.Session` that does so."""

    def check_provider(
        self, name: str, settings: Mapping[str, str], python: Interpreter | None = None
    ) -> Future[list[Check]]:
        """What a provider's own check-up says, of the machines or the account that the settings name; nothing is made.
        One that does not answer within 15 s is said to.

        Args:
            settings: of the provider, by name, as texts.
            python: what a script is loaded with, which its machines need then; None for what runs this.
        """
        return self._submit(checked(name, settings, python=python))


async def checked(
    name: str,
    settings: Mapping[str, str],
    patience: float = PATIENCE,
    *,
    python: Interpreter | None = None,
) -> list[Check]:
    """The same; the check-up has a thread and a loop of its own, so that what blocks there holds nobody up."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[list[Check]] = loop.create_future()

    def tell(lines: list[Check]) -> None:
        if not told.done():
            told.set_result(lines)

    def act() -> None:
        lines = asyncio.run(_lines(name, settings, patience, python))
        try:
            loop.call_soon_threadsafe(tell, lines)
        except RuntimeError:  # the loop has ended: nobody waits
            return

    threading.Thread(target=act, name=f"check of {name}", daemon=True).start()
    try:
        return await asyncio.wait_for(told, patience)
    except TimeoutError:
        return [_silent(name, patience)]


async def _lines(
    name: str, settings: Mapping[str, str], patience: float, python: Interpreter | None
) -> list[Check]:
    try:
        provider: Any = make(by_name(name), settings)
        async with asyncio.timeout(patience):
            if python is not None and isinstance(provider, ChecksPython):
                return await provider.check_for(python.for_hosts)
            return list(await provider.check())
    except TimeoutError:
        return [_silent(name, patience)]
    except (SkywardError, OSError) as error:
        return [Check(name, "fail", what_of(error), hint_of(error))]
    except Exception as error:  # noqa: BLE001  one of another package may raise anything
        return [Check(name, "fail", f"{type(error).__name__}: {error}")]


def _silent(name: str, patience: float) -> Check:
    return Check(name, "fail", f"no answer within {patience:g} s")
