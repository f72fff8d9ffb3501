"""Sessions of front ends: attaching, listing and ended pools."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import Hint
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import agent_link
from skyward_core.pool.pool import Pool
from skyward_core.protocol.frame_codec import VERSION
from skyward_core.providers.local.provider import Local
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.tasks.function_pickling import make_task
from skyward_core.views.events import PoolEnded
from skyward_tui.cli.commands import ls_logs_results_lock
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.text.error_hint_text import format_detail, format_error
from tests.support.sessions import new_session
from tests.support.waiting import wait_until


def test_session_unpickles_no_values_exceptions_or_items(home: Path, tmp_path: Path) -> None:
    """Invariant 13: a front end shows summaries sent by nodes and never unpickles a value."""
    mark = str(tmp_path / "unpickled")

    class Trap:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return (open, (mark, "w"))

    class Trapped(Exception):
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return (open, (mark, "w"))

    def returns() -> Trap:
        return Trap()

    def raises() -> None:
        raise Trapped("caught")

    def yields():  # type: ignore[no-untyped-def]
        yield Trap()

    session = Session()
    try:
        spec = PoolSpec(name="trap", provider=Local(), nodes=1, options=Options(console=False))
        session.create(spec).result(90)
        for body, state in ((returns, "done"), (yields, "done"), (raises, "failed")):
            # The worker itself loads an exception's pickle, to be sure that it can be loaded.
            run = session.launch("trap", make_task(sky.function(body)())).result(90)
            session.wait("trap", run.id).result(90)
            assert run.state == state
            made_by_worker = body is raises
            assert Path(mark).exists() is made_by_worker
            Path(mark).unlink(missing_ok=True)
        (outcome,) = run.outcomes()
        assert outcome.error is not None
        assert outcome.error.message == "caught"
    finally:
        session.tear_down("trap").result(90)
        session.detach()


def test_detach_on_the_receipt_event_leaves_the_receipt_in_the_ledger(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, ended = threading.Event(), Ledger.record_teardown

    def slowly(ledger: Ledger, *arguments: Any) -> None:
        assert answer.wait(60)
        time.sleep(0.2)  # the other thread goes on meanwhile
        ended(ledger, *arguments)

    monkeypatch.setattr(Ledger, "record_teardown", slowly)
    session = Session()
    session.create(PoolSpec(name="brief", provider=Local(), options=Options(console=False))).result(90)
    session.subscribe("brief", lambda event: answer.set() if isinstance(event, PoolEnded) else None).result(60)
    down = session.tear_down("brief")
    assert answer.wait(60)
    session.detach()
    assert down.result(60).unwritten == ""
    assert Ledger().live_pools() == []
    row = Ledger().find_pool("brief")
    assert row is not None and row.receipt is not None


def test_pool_of_another_release_is_rejected_but_can_be_ended(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    session = Session()
    spec = PoolSpec(name="older", provider=Local(), nodes=2, options=Options(console=False))
    session.create(spec).result(90)
    session.detach()
    monkeypatch.setattr(agent_link, "VERSION", VERSION + 1)
    with new_session() as session:
        (view,) = session.refresh().result(90)
        with pytest.raises(sky.PoolError) as refused:
            sky.attach("older")
        assert refused.value.hint == view.hint == Hint("down", "older")
        for text in (format_detail(view), format_error(refused.value)):
            assert f"has protocol version {VERSION}, this client {VERSION + 1}" in text
            assert text.endswith("; tear it down with: skyward-tui down older")
        ls_logs_results_lock.list_pools.function(Console(), False)
        # Who looks every second asks ever less often; who looks because a person says so, at once.
        watch, tries = session._watch, []

        async def counted(row: PoolRow, *, observer: bool) -> Pool:
            tries.append(row.name)
            return await watch(row, observer=observer)

        monkeypatch.setattr(session, "_watch", counted)
        for _ in range(3):
            assert [each.state for each in session.refresh(patient=True).result(90)] == [view.state]
        assert tries == []
        session.refresh().result(90)
        assert tries == ["older"]
        listed = capfd.readouterr()
        assert "older  unreachable" in listed.out and f"pool older: {format_detail(view)}\n" in listed.err
        receipt = session.tear_down("older").result(90)
        assert (receipt.ok, receipt.gone) == (True, (0, 1))


WIDE = """
import asyncio, pathlib, sys
import skyward_core as sky
from skyward_core.pool.startup_and_machine_verification import PoolStartup as Startup

start_node = Startup._start_node

async def late(self, link, gate):
    while link.node > 3 and not pathlib.Path(sys.argv[1]).exists():
        await asyncio.sleep(0.01)
    await start_node(self, link, gate)

Startup._start_node = late
with sky.Compute(provider=sky.Local(), nodes=8, name="wide", options=sky.Options(console=False)):
    sys.stdin.read()
"""


@pytest.mark.proof("2 s of a processor")
def test_pool_created_by_another_process_is_shown_up_only_when_complete(home: Path) -> None:
    go_on = home.with_name("go-on")
    maker = subprocess.Popen([sys.executable, "-c", WIDE, go_on], stdin=subprocess.PIPE, text=True)
    session = Session()
    try:
        seen: list[Any] = []
        deadline = time.monotonic() + 90
        while "up" not in [state for state, _ in seen] and time.monotonic() < deadline:
            machines = [m for row in session.ledger.live_pools() for m in session.ledger.machines(row.token)]
            half_made = [Path(m.extra["folder"], "agent.json").exists() for m in machines].count(True) == 4
            seen += [(view.state, view.detail) for view in session.refresh().result(90)]
            if half_made:
                go_on.touch()
            time.sleep(0.02)  # else this loop takes the time of the processor from the starting pool
        (view,) = session.pools()
        assert {state for state, _ in seen} == {"starting", "up"}, seen
        assert seen[0][1] == f"pool wide is being started by process {maker.pid}"
        assert (view.nodes_ready, view.detail) == (8, "")
    finally:
        maker.communicate("", timeout=90)
        session.detach()


def test_node_unreachable_at_attach_is_joined_later(home: Path) -> None:
    spec = PoolSpec(name="pair", provider=Local(), nodes=2, options=Options(console=False))
    maker, session = Session(), Session()
    try:
        maker.create(spec).result(90)
        away = Path(maker.ledger.machines(maker.ledger.live_pools()[0].token)[1].extra["socket"])
        away.rename(away.with_suffix(".away"))
        (view,) = session.refresh().result(90)
        assert (view.state, view.nodes_ready) == ("degraded", 1)
        assert "node 1" in view.detail and "No such file" in view.detail, view.detail
        assert maker.ledger.live_pools()[0].state == "up", "who only looks changes nothing"
        away.with_suffix(".away").rename(away)
        deadline = time.monotonic() + 60
        while view.state != "up" and time.monotonic() < deadline:
            (view,) = session.refresh().result(90)
        assert (view.state, view.nodes_ready, view.detail) == ("up", 2, "")
    finally:
        session.detach()
        maker.tear_down("pair").result(90)
        maker.detach()


def test_pool_with_a_slow_connection_is_listed_meanwhile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker, looker, there = Session(), Session(), threading.Event()
    attach = Pool.attach

    async def slowly(self: Pool) -> None:
        await asyncio.to_thread(there.wait, 90)
        await attach(self)

    try:
        maker.create(PoolSpec(name="far", provider=Local(), nodes=1, options=Options(console=False))).result(90)
        monkeypatch.setattr(Pool, "attach", slowly)
        seen = looker.refresh()
        wait_until(looker.pools)
        assert [(view.name, view.state, view.is_live) for view in looker.pools()] == [("far", "connecting", True)]
        there.set()
        assert [(view.name, view.state) for view in seen.result(90)] == [("far", "up")]
    finally:
        there.set()
        maker.tear_down("far").result(90)
        looker.detach()
        maker.detach()


def test_ended_pools_are_listed_and_opened_by_key(home: Path) -> None:
    def repeat_words(words: str) -> str:
        print("heard", words)
        return words

    with new_session() as session:
        for words in ("first", "second"):
            spec = PoolSpec(name="twice", provider=Local(), nodes=1, options=Options(console=False))
            session.create(spec).result(90)
            run = session.launch("twice", make_task(sky.function(repeat_words)(words))).result(90)
            session.wait("twice", run.id).result(90)
            assert session.tear_down("twice").result(90).ok
    session = Session()  # as after a restart
    try:
        assert session.refresh().result(90) == []
        second, first = session.refresh(over=True).result(90)
        assert (second.name, first.name) == ("twice", "twice")
        for view, words in ((first, "first"), (second, "second"), (first, "first")):
            assert (view.state, [(r.function, r.state, r.outcomes()) for r in view.runs.values()]) == (
                "gone", [("repeat_words", "done", [])]
            )  # fmt: skip
            whole = session.load_ended_pool(view.key).result(90)
            assert whole is next(each for each in session.pools() if each.key == view.key)
            assert whole.logs.rank(0).lines(0, 9) == [f"heard {words}"]
            (run,) = whole.runs.values()
            assert [outcome.summary and outcome.summary.json for outcome in run.outcomes()] == [words]
            seen = session.preview_run(run.id).result(90)
            assert seen.view is not None and (seen.view.total, seen.rank, seen.lines) == (1, 0, [f"heard {words}"])
            assert (whole.receipt, [node.phase for node in whole.nodes]) == (view.receipt, ["gone"])
        assert session.preview_run("never").result(90).view is None
        with pytest.raises(sky.PoolError, match="no pool 'never'") as caught:
            session.load_ended_pool("never").result(90)
        assert caught.value.hint == Hint("list-all")
    finally:
        session.detach()
