"""What every command has: where its output goes, what its errors come to, and ``--json``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .standard_stream import StandardStream

if TYPE_CHECKING:
    from .commands.console import Console

of_json = click.option("--json", "as_json", is_flag=True, help="End stdout with one JSON object.")


@contextmanager
def console_of(as_json: bool) -> Iterator[Console]:
    """Where the command's output goes; an error ends there as one line, and in the exit status."""
    from skyward_core.model import exit_status
    from skyward_core.model.errors import SkywardError

    from .commands.console import Console

    console = Console(as_json)
    if as_json and isinstance(sys.stdout, StandardStream):
        sys.stdout.require()
    try:
        _begin_log(console)
        yield console
    except SkywardError as error:
        console.fail(error)
        sys.exit(exit_status.of_error(error))
    except OSError as error:
        console.fail(error)
        sys.exit(exit_status.FAILED)


def _begin_log(console: Console) -> None:
    if not os.environ.get("SKYWARD_LOG"):
        return
    from skyward_core.front import settings

    if said := settings.begin_log():
        console.note(said)
