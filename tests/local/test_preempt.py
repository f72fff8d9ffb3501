"""Preemption of local machines: notices to ranks, the outcome of their runs, and the display."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.outcomes_states_and_alerts import NoticeKind
from skyward_core.pool.agent_link import Link
from tests.support.loss import REPLACE, Lends, announce_preemption
from tests.support.processes import descendants
from tests.support.waiting import wait_until


@pytest.fixture
def pool(home: Path) -> Iterator[sky.Compute]:
    options = sky.Options(console=False, grace=1.0)
    with sky.Compute(provider=Lends(), nodes=2, options=options) as compute:
        yield compute


class Steps:
    """Synchronization between ranks and their test by files."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def submit(self, step: str) -> None:
        Path(self.folder, f"{step}-{sky.instance_info().rank}").touch()

    def advance(self, step: str) -> list[int]:
        return sorted(int(path.name.rpartition("-")[2]) for path in Path(self.folder).glob(f"{step}-*"))

    def wait(self, step: str, ranks: list[int]) -> None:
        wait_until(lambda: self.advance(step) == ranks, what=lambda: f"{step}: {self.advance(step)}")

    def await_all(self, step: str, ranks: list[int]) -> None:
        """Wait in a rank until all ranks have reached a step."""
        while self.advance(step) != ranks:
            time.sleep(0.01)


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


@contextmanager
def begun_call(pool: sky.Compute, steps: Steps, function: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Submit a function to both ranks, and wait until each of them has begun."""
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: sky.function(function)() @ pool)
        steps.wait("begun", [0, 1])
        yield running


def err(compute: sky.Compute, rank: int) -> str:
    return (Path(compute.pool.context.machines[rank].extra["folder"]) / "spool" / f"r{rank:03d}.err").read_text()


def listen() -> list[int]:
    heard: list[int] = []
    sky.on_preempt(lambda: heard.append(1))
    return heard


def test_preemption_callbacks_run_on_all_ranks_and_late_results_count(pool: sky.Compute, steps: Steps) -> None:
    def train() -> list[Any]:
        heard: list[Any] = []
        sky.on_preempt(lambda: heard.append("none"))

        @sky.on_preempt
        def fails(seconds: float) -> None:
            raise ValueError("the disk is full")

        sky.on_preempt(lambda seconds, node: heard.append((50 < seconds <= 60, node)))
        steps.submit("begun")
        while len(heard) < 2:
            time.sleep(0.01)
        sky.on_preempt(lambda node=7: heard.append("late"))
        steps.submit("told")
        steps.await_all("told", [0, 1])
        time.sleep(1.2)  # SIGTERM has come, and what is native has come out of it
        return heard

    def earlier() -> None:
        sky.on_preempt(lambda: print("stale", file=sys.stderr))

    sky.function(earlier)() @ pool
    with begun_call(pool, steps, train) as running:
        announce_preemption(pool, 1)
        assert running.result(30) == [["none", (True, 1), "late"]] * 2
    node = pool.pool.view.nodes[1]
    assert node.notice == "terminate" and node.notice_ends_at is not None
    assert 40 < node.notice_ends_at - time.time() < 61
    assert "the machine of node 1 is preempted in 60 s (terminate)" in pool.pool.view.detail

    # Callbacks of one call are none of the next, which hears of the notice itself.
    assert sky.function(listen)() @ pool == [[1], [1]]
    for rank in (0, 1):
        assert err(pool, rank).count("ValueError: the disk is full") == 1
        assert "fails, a callback of on_preempt, failed" in err(pool, rank) and "stale" not in err(pool, rank)


@pytest.mark.proof("1 s of a processor")
def test_child_processes_live_as_long_as_their_preempted_rank(pool: sky.Compute, steps: Steps) -> None:
    def train(goes_on: bool) -> bool:
        import multiprocessing

        if goes_on:
            sky.on_preempt(lambda: steps.submit("told"))

        def load() -> None:
            def leave(*_: object) -> None:
                steps.submit("left")
                os._exit(0)

            signal.signal(signal.SIGTERM, leave)
            steps.submit("loads")
            time.sleep(60)

        loader = multiprocessing.get_context("fork").Process(target=load, daemon=True)
        loader.start()
        if goes_on:
            steps.await_all("told", [0, 1])
        time.sleep(1.5 if goes_on else 60)
        alive = loader.is_alive()
        loader.kill()
        return alive

    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: sky.function(train)(True) @ pool)
        steps.wait("loads", [0, 1])
        announce_preemption(pool, 0)
        assert running.result(30) == [True, True] and steps.advance("left") == []
        for path in Path(steps.folder).glob("loads-*"):
            path.unlink()
        running = beside.submit(lambda: sky.function(train)(False) @ pool)
        steps.wait("loads", [0, 1])
        announce_preemption(pool, 1)
        with pytest.raises(sky.RunError):
            running.result(30)
    assert 1 in steps.advance("left")


def test_rank_without_callback_gets_sigterm_and_is_lost(pool: sky.Compute, steps: Steps) -> None:
    def train() -> None:
        steps.submit("begun")
        try:
            time.sleep(600)
        finally:
            steps.submit("cleaned")

    with begun_call(pool, steps, train) as running:
        announce_preemption(pool, 1, "rebalance", None)
        node = pool.pool.view.nodes[1]
        wait_until(lambda: node.notice == "rebalance")
        assert not node.is_preempted and not running.done()
        announce_preemption(pool, 1)
        with pytest.raises(sky.RunError, match="preempted") as caught:
            running.result(30)
    assert steps.advance("cleaned") == [0, 1]
    assert {rank: each.kind for rank, each in caught.value.outcomes.items()} == {0: "collateral", 1: "lost"}
    error = caught.value.outcomes[1].error
    assert error is not None and error.type == "Preempted"
    assert error.message == "preempted: the machine of node 1 was preempted by its provider"
    assert pool_notices(pool) == ["rebalance", "terminate"]
    # Who comes later is told, too.
    from skyward_core.client.session import Session  # which ranks do without

    session = Session()
    view = session.observe(pool.pool.row.key).result(30)
    assert view.nodes[1].is_preempted and not view.nodes[0].notice
    session.detach()


def test_tasks_go_to_nodes_without_a_preemption_notice(pool: sky.Compute) -> None:
    announce_preemption(pool, 0)  # the head
    wait_until(lambda: pool.pool.view.nodes[0].is_preempted)
    assert [sky.function(listen)() >> pool for _ in range(3)] == [[]] * 3
    assert sky.gather(*[sky.function(listen)() for _ in range(4)]) >> pool == ([],) * 4

    def nodes() -> list[int]:
        return [task.node for run in pool.pool.view.runs.values() for task in run.tasks.values()]

    wait_until(lambda: nodes() == [1] * 7, what=nodes)


def stop_by_flag(begun: Callable[[], None]) -> str:
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    sky.on_preempt(lambda: stop.append(2))
    begun()
    while len(stop) < 2:
        time.sleep(0.01)
    return f"early {stop}"


def stop_by_native_code(begun: Callable[[], None]) -> str:
    """Block in native code, and return long before the machine ends."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    begun()
    until = struct.pack("ll", int(time.time()) + 3, 0)  # a timespec
    heard: list[int] = []
    sky.on_preempt(lambda: heard.append(1))
    libc.pthread_mutex_timedlock(mutex, until)
    return f"native {heard}"


def stop_by_exit(begun: Callable[[], None]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    begun()
    time.sleep(600)


def stop_by_callback(begun: Callable[[], None]) -> None:
    sky.on_preempt(lambda: sys.exit(143))
    begun()
    time.sleep(600)


@pytest.mark.proof("1 s of a processor")
def test_own_sigterm_handler_decides_about_a_preempted_call(home: Path, steps: Steps, tmp_path: Path) -> None:
    """A call whose handler continues returns its result; a call whose handler exits is lost with any status."""
    leaves = tmp_path / "leaves.py"
    text = "import signal, sys, time\nfrom pathlib import Path\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    leaves.write_text(f"{text}Path({str(tmp_path)!r}, 'begun-0').touch()\ntime.sleep(600)\n")
    works: list[Any] = [
        sky.function(each)(lambda: steps.submit("begun"))
        for each in (stop_by_flag, stop_by_native_code, stop_by_exit, stop_by_callback)
    ]
    kinds = []
    for work in [*works, sky.script(leaves)]:
        (tmp_path / "begun-0").unlink(missing_ok=True)
        options = sky.Options(console=False, grace=1.0)
        with sky.Compute(provider=Lends(), options=options) as compute, ThreadPoolExecutor(1) as beside:
            running = beside.submit(lambda: work @ compute)  # noqa: B023
            steps.wait("begun", [0])
            announce_preemption(compute, 0)
            error = running.exception(30)
            root = error.root_cause if isinstance(error, sky.RunError) else None
            kinds.append(root.type if root else running.result())
    assert kinds == [["early [2, 1]"], ["native [1]"], "Preempted", "Preempted", "Preempted"]


SAVE = replace(REPLACE, on_loss="restart", grace=20.0, error_restarts=0, restarts=0)


def save_early(folder: str, reaction: str) -> tuple[int, int, str, list[str]]:
    """Train until a preemption notice in the first attempt, and save in a collective. Rank 0 then saves longer.

    The machine of rank 1 is the one that ends, so a stop of rank 0 because of rank 1's end would interrupt its save.
    """
    rank, attempt = sky.instance_info().rank, sky.attempt()
    saved = Path(folder, f"saved-{rank}")
    if attempt.is_restart:
        return attempt.number, rank, attempt.cause, saved.read_text().split()
    heard: list[str] = []
    if reaction == "callback":
        sky.on_preempt(lambda: heard.append("callback"))
    else:
        before = signal.getsignal(signal.SIGTERM)

        def handle(*given: Any) -> None:
            heard.append("signal")
            if reaction == "chain" and callable(before):
                before(*given)

        signal.signal(signal.SIGTERM, handle)
    Path(folder, f"begun-{rank}").touch()
    while not heard:
        time.sleep(0.01)
    Path(folder, f"heard-{rank}").touch()
    while len(list(Path(folder).glob("heard-*"))) < 2:
        time.sleep(0.01)
    if rank == 0:
        until = time.monotonic() + 2.0
        while time.monotonic() < until or not Path(folder, "shown").exists():
            time.sleep(0.01)  # longer than rank 1 and its agent need, and until the client has shown it
    saved.write_text(" ".join(heard))
    if reaction == "exit":
        sys.exit(143 if rank else 0)
    return 0, rank, "half a result", heard


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("reaction", ["exit", "return", "callback", "chain"])
def test_preempted_run_saves_on_all_nodes_and_restarts_before_the_machine_ends(
    home: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, reaction: str
) -> None:
    """SIGTERM reaches the ranks of all nodes once, and the wait ends when they have left."""
    folder = steps.folder
    if reaction == "exit":  # the agents notify each other, as without a client
        monkeypatch.setattr(Link, "warn_preemption", lambda *_: None)
    with sky.Compute(provider=Lends(), nodes=2, options=SAVE) as compute, ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: sky.function(save_early)(folder, reaction) @ compute)
        steps.wait("begun", [0, 1])
        announce_preemption(compute, 1, left=500.0)
        wait_until(lambda: set(compute.pool.view.saving) >= {0}, what="rank 0 is shown to save")
        Path(folder, "shown").touch()
        heard = ["callback" if reaction == "callback" else "signal"]
        assert running.result(60) == [(2, rank, "preemption", heard) for rank in (0, 1)]
        assert len(compute.pool.context.ledger.replaced_machines(compute.pool.context.token)) == 1


def test_next_attempt_waits_until_the_replacement_machine_is_connected(
    home: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new machine is recorded but not connected yet when the preempted one has been terminated."""

    def train() -> tuple[int, int]:
        if not sky.attempt().is_restart:
            steps.submit("begun")
            while True:  # until SIGTERM
                time.sleep(0.01)
        return sky.attempt().number, sky.instance_info().rank

    async def terminate(provider: Lends, pool: str, machines: Any) -> None:
        link = links[1]
        ending.append(asyncio.ensure_future(sky.Local.terminate(provider, pool, machines)))
        while links[1] is link:
            await asyncio.sleep(0)

    ending: list[asyncio.Future[None]] = []
    monkeypatch.setattr(Lends, "terminate", terminate)
    with sky.Compute(provider=Lends(), nodes=2, options=SAVE) as compute, ThreadPoolExecutor(1) as beside:
        links = compute.pool.context.links
        running = beside.submit(lambda: sky.function(train)() @ compute)
        steps.wait("begun", [0, 1])
        announce_preemption(compute, 1, left=500.0)
        assert running.result(60) == [(2, 0), (2, 1)]


@pytest.mark.proof("2 s of a processor", after=1)
@pytest.mark.parametrize("reaction", ["signal", "callback"])
def test_cancelled_run_saves_first_if_asked(home: Path, steps: Steps, reaction: str) -> None:
    """On machines without notices, too: callbacks run, one SIGTERM goes to the rank alone, and none interrupts it."""

    def train(reaction: str) -> None:
        import multiprocessing

        rank, heard, called = sky.instance_info().rank, list[str](), list[int]()
        loader = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
        loader.start()
        if reaction == "callback":
            sky.on_preempt(lambda seconds, node: heard.append(f"{1 < seconds <= 30} {node}"))
        else:
            sky.on_preempt(lambda: called.append(1))
            signal.signal(signal.SIGTERM, lambda *_: heard.append(f"signal, callbacks: {called}"))
        steps.submit("begun")
        while not heard:
            time.sleep(0.01)
        time.sleep(1.0)
        Path(steps.folder, f"saved-{rank}").write_text(f"{heard} {loader.is_alive()}")
        loader.kill()
        sys.exit(0)

    options = sky.Options(console=False, on_loss="restart")
    with sky.Compute(nodes=2, options=options) as compute, ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: sky.function(train)(reaction) @ compute)
        steps.wait("begun", [0, 1])
        with sky.attach(compute.pool.name) as other:
            other.cancel(next(iter(other.view.runs)), save=True)
            wait_until(lambda: set(compute.pool.view.saving) == {0, 1}, what="ranks are shown to save")
            with pytest.raises(sky.Cancelled):
                running.result(30)
        heard = ["True -1"] if reaction == "callback" else ["signal, callbacks: [1]"]
        assert [Path(steps.folder, f"saved-{rank}").read_text() for rank in (0, 1)] == [f"{heard} True"] * 2
        # The notice is not for later runs.
        assert sky.function(listen)() @ compute == [[], []]


def test_pool_on_own_machines_starts_no_notice_program(home: Path) -> None:
    with sky.Compute(options=sky.Options(console=False)) as compute:
        assert sky.function(lambda: signal.getsignal(signal.SIGURG) == signal.SIG_DFL)() @ compute == [True]
        assert notice_reader_count(compute) == 0
    with sky.Compute(provider=Lends(), options=sky.Options(console=False)) as compute:
        assert notice_reader_count(compute) == 1


def notice_reader_count(compute: sky.Compute, node: int = 0) -> int:
    """Return the number of processes of a node that poll for preemption notices."""
    below = descendants(compute.pool.links[node].welcome["pid"])
    return sum("select.select" in Path(f"/proc/{pid}/cmdline").read_text() for pid in below)


def pool_notices(compute: sky.Compute) -> list[NoticeKind]:
    from skyward_core.store.pool_folder import read_events
    from skyward_core.views.events import NodeNotice

    return [each.kind for each in read_events(compute.pool.archive.folder) if isinstance(each, NodeNotice)]


@pytest.mark.proof("0.5 s of a processor")
def test_next_agent_repeats_no_preemption_signal_or_callback(pool: sky.Compute, steps: Steps) -> None:
    def train() -> list[str]:
        heard: list[str] = []
        signal.signal(signal.SIGTERM, lambda *_: heard.append("signal"))
        sky.on_preempt(lambda: heard.append("callback"))
        steps.submit("begun")
        while len(heard) < 1 + sky.instance_info().rank:
            time.sleep(0.01)
        steps.submit("told")
        steps.await_all("end", [0])
        return heard

    with begun_call(pool, steps, train) as running:
        announce_preemption(pool, 1)
        steps.wait("told", [0, 1])
        notice = Path(pool.pool.context.machines[1].extra["folder"], "notices.json")
        words = notice.read_text()
        link = pool.pool.links[1]
        before = link.welcome["pid"]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: link.up and link.welcome["pid"] != before)
        wait_until(lambda: notice_reader_count(pool, 1) == 1)
        announce_preemption(pool, 1, left=59.5)
        announce_preemption(pool, 1, "rebalance", None)  # once that is heard, what stands before it was, too
        wait_until(lambda: pool_notices(pool) == ["terminate", "rebalance"])
        assert notice.read_text() == words, "no other notice, so no other signal"
        (Path(steps.folder) / "end-0").touch()
        assert running.result(30) == [["callback"], ["callback", "signal"]]
