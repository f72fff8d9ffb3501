"""Where a command's output goes, and its errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .console import Console


@contextmanager
def console(as_json: bool) -> Iterator[Console]:
    """Where the command's output goes; an error ends there as one line, and in the exit status."""
    from skyward_core.model import exit_status
    from skyward_core.model.errors import SkywardError

    from .console import Console

    made = Console(as_json)
    try:
        _begin_log(made)
        yield made
    except SkywardError as error:
        made.fail(error)
        sys.exit(exit_status.of_error(error))
    except BrokenPipeError:
        made.silence()
        sys.exit(exit_status.FAILED)
    except OSError as error:
        made.fail(error)
        sys.exit(exit_status.FAILED)


def _begin_log(console: Console) -> None:
    if not os.environ.get("SKYWARD_LOG"):
        return
    from skyward_core.front import settings

    if said := settings.begin_log():
        console.note(said)
