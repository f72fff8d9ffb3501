"""Advice about errors, in terms of skyward-tui's commands. The library provides hints as data without text."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from skyward_core.model.errors import Hint, command_hint, error_hint, error_message, message_with_hint
from skyward_core.model.root_cause import is_symptom

if TYPE_CHECKING:
    from skyward_core.model.machines_checks_and_gpu_use import Check
    from skyward_core.views.events import PoolState
    from skyward_core.views.pool_view import PoolView, RunView


def format_error(error: BaseException) -> str:
    """Return the message of an error, followed by advice."""
    return _joined(error_message(error), error_hint(error))


def format_detail(thing: PoolView | PoolState | Check) -> str:
    """Return the detail text of an object, followed by advice."""
    return _joined(thing.detail, thing.hint)


def _joined(what: str, hint: Hint | None) -> str:
    return what if hint is None else message_with_hint(what, advice(hint))


def advice(hint: Hint) -> str:
    """Return the advice for an error's hint, in terms of skyward-tui's commands."""
    name = shlex.quote(hint.subject)
    match hint.action:
        case "attach":
            return f"use it (skyward-tui attach {name}), end it (skyward-tui down {name}), or choose another name"
        case "trust-host-key":
            also = f" --known-hosts {shlex.quote(hint.path)}" if hint.path else ""
            return f"accept it with: skyward-tui trust {name}{also}"
        case "upgrade":
            return "a newer release can read it: pip install -U skyward-tui"
        case _:
            return command_hint(hint)


_TORCHRUN_VARIABLES = "(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_RUN_ID"
# Matches the message of an error about a missing environment variable of torchrun.
_MISSING_VARIABLE = rf"^'({_TORCHRUN_VARIABLES})'$|environment variable ({_TORCHRUN_VARIABLES}) expected"


def failure_hints(run: RunView) -> list[str]:
    """Return advice about the root cause of a failed run, in addition to the message of its exception."""
    cause = run.root_cause
    outcomes = run.outcomes() if cause is not None else []
    failed = next((each for each in outcomes if cause and (each.rank, each.kind) == (cause.rank, cause.outcome)), None)
    if failed is None or failed.error is None:
        return []
    hints = []
    # imported late, because most commands need no stacks
    from skyward_core.views.stack_groups_and_profiles import format_ranges

    early = [each.rank for each in outcomes if each.kind == "returned"]
    if run.kind == "broadcast" and early and is_symptom(failed):
        ranks = f"rank {early[0]}" if len(early) == 1 else f"ranks {format_ranges(early)}"
        hints.append(f"{ranks} had already returned, so the connections of rank {failed.rank} were closed")
    if run.function.endswith(".py") and re.search(_MISSING_VARIABLE, failed.error.message):
        hints.append(f"the script needs torchrun's variables. Use: skyward-tui torchrun {shlex.quote(run.function)}")
    return hints
