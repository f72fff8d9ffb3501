"""Helpers to wait for futures of the session and to show their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from skyward_core.model.errors import SkywardError
from skyward_tui.text.error_hint_text import format_error

if TYPE_CHECKING:
    from skyward_tui.app import SkywardApp

T = TypeVar("T")


async def wait_shielded(future: Future[T]) -> T:
    """Wait for a future of the session. If the waiting task is cancelled, the operation continues."""
    shielded = asyncio.wrap_future(future)
    # Mark the exception as retrieved even if the waiting task was cancelled, because asyncio logs an error for each
    # exception that is never retrieved.
    shielded.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(shielded)


@contextmanager
def flash_errors(app: SkywardApp, what: str = "") -> Iterator[None]:
    """If the ``with`` block raises an expected error, show the error as a message, and skip the rest of the block.

    Args:
        what: Text before the error.
    """
    try:
        yield
    except (SkywardError, OSError) as error:
        app.flash(f"{what}{format_error(error)}", "error")
