"""The options of PyTorch's torchrun (2.13), and what each of them means where a pool launches the script."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import click

from skyward_core.front.user_files import is_file

from .number_options import number_of_nodes

MEETS = "the ranks meet at node 0 of the pool, at a port that is free there"
LOGS = (
    "every rank's log is shown with the rank in front, and kept: skyward-tui logs shows it, --rank one rank's"
)
WATCHED = "each node's agent sees at once how a rank ends"
ONE_POOL = "one command starts all nodes: run it once, and leave this out"


@dataclass(frozen=True)
class Other:
    """An option of torchrun that is taken and does nothing here, or is refused; ``why`` says it."""

    why: str
    refused: bool = False
    is_flag: bool = False
    short: str = ""
    nothing: str = ""  # a value of it that asks for nothing


OTHERS: Mapping[str, Other] = {
    "standalone": Other("", is_flag=True),
    "run-path": Other("", is_flag=True),
    "rdzv-backend": Other(MEETS, nothing="c10d"),
    "rdzv-endpoint": Other(MEETS),
    "rdzv-id": Other("TORCHELASTIC_RUN_ID is the pool's name"),
    "rdzv-conf": Other(MEETS),
    "master-addr": Other(MEETS, nothing="127.0.0.1"),
    "master-port": Other(MEETS),
    "local-addr": Other("the provider knows each node's address"),
    "node-rank": Other(ONE_POOL, refused=True, nothing="0"),
    "max-restarts": Other("a run that fails is not started again", nothing="0"),
    "monitor-interval": Other(WATCHED),
    "start-method": Other("every rank is a fresh interpreter", nothing="spawn"),
    "event-log-handler": Other(WATCHED, nothing="null"),
    "role": Other("ROLE_NAME is default", nothing="default"),
    "no-python": Other("ranks run Python scripts alone", refused=True, is_flag=True),
    "log-dir": Other(LOGS),
    "redirects": Other(LOGS, short="-r", nothing="0"),
    "tee": Other(LOGS, short="-t", nothing="0"),
    "local-ranks-filter": Other(LOGS),
    "duplicate-stdout-filters": Other(LOGS),
    "duplicate-stderr-filters": Other(LOGS),
    "logs-specs": Other("logs have no other form here", refused=True),
    "numa-binding": Other("ranks are bound to no processors", refused=True),
    "signals-to-handle": Other("a pool passes SIGTERM on, when its run is cancelled"),
    "shutdown-timeout": Other("a rank has 5 s from SIGTERM to SIGKILL"),
    "virtual-local-rank": Other(
        "--nproc-per-node gpu shows each rank its own GPU alone, and LOCAL_RANK counts",
        refused=True,
        is_flag=True,
    ),
}


def others(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options, unseen in its help, which lists those that do something."""
    for name, other in OTHERS.items():
        spelled = {f"--{name}": None, f"--{name.replace('-', '_')}": None} | (
            {other.short: None} if other.short else {}
        )
        how: dict[str, Any] = (
            {"is_flag": True} if other.is_flag else {"envvar": f"PET_{name.replace('-', '_').upper()}"}
        )
        command = click.option(*spelled, name.replace("-", "_"), hidden=True, default=None, **how)(command)
    return command


def judged(said: Mapping[str, Any]) -> Iterator[str]:
    """What to say of those that were given.

    Args:
        said: the values by name; takes no notice of others.

    Raises:
        click.UsageError: one cannot be meant here.
    """
    for name, other in OTHERS.items():
        value = said.get(name.replace("-", "_"))
        if value in (None, False, "", other.nothing) or not other.why:
            continue
        if other.refused:
            _refuse(name, other.why)
        yield f"--{name} is not used: {other.why}"


def _refuse(name: str, why: str) -> NoReturn:
    raise click.UsageError(f"--{name}: {why}")


def nodes_of(text: str | None) -> int | str | None:
    """``--nnodes`` as a number, or a range as ``run --nodes`` takes it; None where nothing was said.

    Raises:
        click.UsageError: it is neither.
    """
    try:
        return None if text is None else number_of_nodes(text)
    except ValueError as error:
        _refuse("nnodes", str(error))


def ranks_of(text: str, *, is_here: bool) -> int | Literal["gpu"]:
    """``--nproc-per-node`` as ranks of each node.

    Args:
        is_here: whether the nodes are this machine.

    Raises:
        click.UsageError: it is no number of them, or one that only the machine itself could tell.
    """
    if text == "auto":
        text = "cpu" if is_here and not Path("/dev/nvidia0").exists() else "gpu"
    if text == "cpu" and is_here:
        text = str(min(os.cpu_count() or 1, 64))
    if text == "gpu":
        return "gpu"
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        _refuse(
            "nproc-per-node", f"{text!r} is no number from 1 to 64; on this machine also cpu, and gpu or auto"
        )
    return int(text)


def file_of(module: str) -> Path:
    """The file of a module below the current folder, which ``-m`` runs.

    Raises:
        click.UsageError: there is none.
    """
    here = Path(*module.split("."))
    for path in (here.with_suffix(".py"), here / "__main__.py"):
        if is_file(path):
            return path
    raise click.UsageError(
        f"-m {module}: there is neither {here}.py nor {here}/__main__.py in the current folder"
    )
