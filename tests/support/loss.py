"""Permanent loss of nodes, replacement machines, and preemption notices."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import PoolError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from tests.support.faults import on_loop
from tests.support.processes import descendants
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from skyward_core.pool.agent_link import Link

REPLACE = sky.Options(console=False, grace=0.5, on_loss="replace", start_timeout=60.0)


def lose(compute: sky.Compute, node: int) -> set[int]:
    """Destroy a node with all of its processes. Return their pids."""
    agent = compute.pool.links[node].welcome["pid"]
    below = descendants(agent)
    destroy(Path(compute.pool.context.machines[node].extra["folder"]), (agent, *below))
    return below


def destroy(folder: Path, pids: Iterable[int]) -> None:
    """Remove the folder of a node, and kill its processes."""

    def is_removed() -> bool:
        shutil.rmtree(folder, ignore_errors=True)  # who lives yet may write there meanwhile
        return not folder.exists()

    wait_until(is_removed)
    for pid in pids:
        with suppress(ProcessLookupError):  # what is below the agent may end with it
            os.kill(pid, signal.SIGKILL)


def wait_for(compute: sky.Compute, state: str) -> None:
    wait_until(lambda: compute.pool.view.state == state, 60.0, f"{state}: {compute.pool.view}")


class Provider:
    """Patch of a provider's ``replace`` that records its calls and may reject them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses = True
        self.asked: list[str] = []
        real = sky.Local.replace

        async def replace(local: sky.Local, pool: str, token: str, *more: Any) -> Machine:
            self.asked.append(token)
            if self.refuses:
                raise PoolError("none is left in the shop")
            return await real(local, pool, token, *more)

        monkeypatch.setattr(sky.Local, "replace", replace)


def cut(link: Link) -> Path:
    """Redirect a link to a socket path that does not exist, and close its connection. Return the former path."""
    there: Path = link.transport.socket  # type: ignore[attr-defined]

    def work() -> None:
        link.transport.socket = there.with_name("elsewhere")  # type: ignore[attr-defined]
        link._pipe.close()  # type: ignore[union-attr]

    on_loop(work)
    return there


PROGRAM = """
import os, select, sys
printed = 0
while not select.select([0], [], [], 0.02)[0]:
    lines = open({path!r}).read().splitlines(True) if os.path.exists({path!r}) else []
    for line in lines[printed:]:
        sys.stdout.write(line)
    sys.stdout.flush()
    printed = len(lines)
"""


class Lends(sky.Local):
    """Provider that preempts a machine when a file beside the machine says so."""

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """Report preempted machines as gone, with the reason."""
        seen = await super().describe(pool, known)
        taken = {"preempted": "it says so"}
        return [replace(each, extra=each.extra | taken) if Path(f"{each.id}.taken").exists() else each for each in seen]

    def notices(self, machine: Machine) -> str:
        return PROGRAM.format(path=f"{machine.id}.says")


def announce_preemption(compute: sky.Compute, node: int, kind: str = "terminate", left: float | None = 60.0) -> None:
    """Announce a preemption, as the machine's provider does."""
    with open(f"{compute.pool.context.machines[node].id}.says", "a") as file:
        file.write(json.dumps({"kind": kind, "left": left}) + "\n")
