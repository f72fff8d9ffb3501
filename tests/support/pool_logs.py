"""Logs of a pool that the client has stored."""

from __future__ import annotations

from pathlib import Path

import skyward_core as sky
from skyward_core.store.ledger import Ledger
from skyward_core.store.run_log_reader import RunLogs
from skyward_core.views.log_buffers_and_rank_activity import Line
from tests.support.faults import on_loop
from tests.support.processes import read_log
from tests.support.waiting import wait_until


def log_of(pool: sky.Compute, run: str, rank: int, stream: str = "out") -> bytes:
    on_loop(pool.pool.news.records.flush)
    return read_log(Ledger(), run, rank, stream)


def last_run(pool: sky.Compute) -> str:
    return list(pool.pool.view.runs)[-1]


def settled(pool: sky.Compute) -> None:
    """Wait until the client has all log bytes of the nodes and has written its records."""
    on_loop(pool.pool.context.background.run_deferred)
    spools = [Path(machine.extra["folder"]) / "spool" for machine in pool.pool.context.machines]

    def complete() -> bool:
        sizes = {f.name: f.stat().st_size for spool in spools for f in spool.glob("r*.*")}
        return all(pool.pool.archive.cursors.get(name, 0) == size for name, size in sizes.items() if size)

    wait_until(complete, what="the last log byte")


def stored(pool: sky.Compute, run: str) -> list[Line]:
    on_loop(pool.pool.news.records.flush)
    return list(RunLogs(Ledger(), run).lines(0))
