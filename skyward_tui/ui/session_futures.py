"""Waiting for the verbs of a session, and for how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from skyward_core.model.errors import SkywardError
from skyward_tui.text.error_hints import format_error

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

T = TypeVar("T")


async def wait_shielded(future: Future[T]) -> T:
    """Wait for a verb of the session. Not to wait any longer, as when the app quits, does not cancel it."""
    waiting = asyncio.wrap_future(future)
    # A shield that is left forgets what it shields: how that ends nobody would ask any more, and asyncio complains.
    waiting.add_done_callback(lambda over: over.cancelled() or over.exception())
    return await asyncio.shield(waiting)


@contextmanager
def flash_errors(app: SkywardApp, what: str = "") -> Iterator[None]:
    """Show an expected error as a message; the rest of the block is skipped.

    Args:
        what: Text in front of the error.
    """
    try:
        yield
    except (SkywardError, OSError) as error:
        app.flash(f"{what}{format_error(error)}", "error")
