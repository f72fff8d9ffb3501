"""The interpreter that runs this program, and others beside it. Light to import: every pool knows of it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from ..model.errors import UsageError
from ..model.interpreter import Interpreter

MINOR = ".".join(map(str, sys.version_info[:2]))
OWN = "this program's own"


def own(notes: tuple[str, ...] = (), source: str = OWN, *, chosen: bool = False) -> Interpreter:
    """The interpreter that runs this program."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Interpreter(sys.executable, sys.prefix, version, source, chosen=chosen, notes=notes)


def is_own(prefix: str) -> bool:
    """Whether that is the folder of the environment that this program runs in."""
    return os.path.realpath(prefix) == os.path.realpath(sys.prefix)


def disagreement(task: Interpreter | None, pool: Interpreter | None, *, here: bool) -> str:
    """Why what one interpreter has pickled cannot run in a pool of another; "" where it can.

    Args:
        task: the one that has pickled; None for the one that runs this.
        pool: the one that the pool was made with; None where that is not known.
        here: whether ranks run with that one itself, and not with one of its version on another machine.
    """
    if pool is None or (task is None and pool.minor == MINOR):
        return ""
    task = task or own()
    if pool.source == OWN and not is_own(pool.prefix):
        pool = replace(pool, source="that of the program which made it")
    if task.minor and task.minor != pool.minor:
        return f"that is {pool}, and this was loaded with {task}: functions travel as bytecode of one version"
    if here and task.chosen and os.path.realpath(task.prefix) != os.path.realpath(pool.prefix):
        return f"that is {pool}, and this was loaded with {task}, which has packages of its own"
    return ""


def refuse_another(
    name: str, pool: str, of_task: Interpreter | None, of_pool: Interpreter | None, *, here: bool
) -> None:
    """Refuse to have run in a pool of one interpreter what another has pickled, or would.

    Args:
        name: of what is called.
        pool: its name.
        of_task: as :func:`disagreement` has it, and so are ``of_pool`` and ``here``.

    Raises:
        UsageError: it cannot run there.
    """
    if said := disagreement(of_task, of_pool, here=here):
        raise UsageError(
            f"{name} cannot run in pool {pool}, whose ranks have one interpreter: {said}. "
            "Run it in a pool of its own, or end that one first"
        )
