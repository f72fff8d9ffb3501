"""Commands without pools: printed output, exit codes, signals and live status."""

from __future__ import annotations

import io
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyte
import pytest
import rich.console
import rich.progress
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.leftover_cleanup import JudgedLeftover, LeftoverScan
from skyward_core.model import errors
from skyward_core.model.errors import PoolError, PoolExistsError, RunError, ScriptError, ScriptFailed, TeardownError
from skyward_core.model.leftovers import Leftover
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause, RunStatus, Summary
from skyward_core.model.specs import PoolSpec
from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import LAST_LINE_BYTES, last_line
from skyward_core.providers.aws import boto_calls
from skyward_core.providers.local.provider import Local
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.tasks.pickled_calls_and_blobs import Blob, Task
from skyward_core.views.events import NodeLink, NodePhase, PoolState, RankPhase
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import PoolView, RunView, TaskView
from skyward_tui.cli import follow_run, pool_and_run_lookup
from skyward_tui.cli.commands import cancel_down_leftovers_prune, exec_launch_queue
from skyward_tui.cli.commands.doctor_diagnose_debug_dump import check_pool
from skyward_tui.cli.commands.launched_and_attached_runs import PoolCommand, run
from skyward_tui.cli.console_and_log_printer import Console, LogPrinter
from skyward_tui.cli.fault_tolerant_stdio import StandardStream
from skyward_tui.cli.follow_run import Follower, LiveStatus, Row, status_rows
from skyward_tui.cli.main import COMMAND_GROUPS, cli
from skyward_tui.cli.pool_and_run_lookup import split_rank
from skyward_tui.cli.result_tables_failures_and_receipts import aggregate_lines, failure_lines, receipt_line, run_table
from skyward_tui.launch_form import form
from skyward_tui.text.text_width_tables_and_ascii import table
from tests.support.commands import COMMANDS, parse_command_line
from tests.support.examples import examples
from tests.support.fake_session import FakeSession, failed_run, logged

# What is printed


def test_command_summaries_fit_into_80_columns() -> None:
    output = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    titles = re.findall(r"^(\w+):$", output, re.MULTILINE)
    assert titles == ["Options", *COMMAND_GROUPS] and "_SKYWARD_TUI_COMPLETE=bash_source" in output
    lines = re.findall(r"^  [a-z].*", output.partition("\nRun:\n")[2], re.MULTILINE)
    assert sorted(line.split(maxsplit=1) for line in lines) == [
        [name, command.get_short_help_str(80)] for name, command in sorted(COMMANDS.items())
    ]
    for line in lines:
        assert len(line) <= 80 and line.endswith(".") and not line.endswith("..."), line


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_example_of_a_command_is_a_valid_command_line(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("train.py", "task.yaml", "ddp.skyrec"):
        Path(file).touch()
    example = CliRunner().invoke(cli, [name, "--help"]).output.rpartition("Example: ")[2].partition(" > ")[0]
    assert example.startswith(f"skyward-tui {name}")
    with ExitStack() as ended:
        ended.enter_context(parse_command_line(example))


@given(st.integers(0, 10**6), st.sampled_from([("", 1), ("s", 1), ("m", 60), ("h", 3600), ("d", 86400)]))
def test_durations_of_options_have_units(number: int, unit: tuple[str, int]) -> None:
    seconds = parse_command_line(f"skyward-tui cancel r --grace {number}{unit[0]}").params["grace"]
    assert seconds == number * unit[1]


@pytest.mark.parametrize(
    ("older", "now"),
    [
        ("run train.py", "run train.py --down"),
        ("launch task.yaml -i 5", "launch task.yaml --idle-minutes 5"),
    ],
)
def test_older_spellings_of_options_are_accepted(older: str, now: str) -> None:
    assert parse_command_line(f"skyward-tui {older}").params == parse_command_line(f"skyward-tui {now}").params


@pytest.mark.parametrize("wrong", ["profile a:1 --seconds 0.5", "profile a:1 --seconds 11m", "cancel a --grace soon"])
def test_invalid_duration_names_its_option(wrong: str) -> None:
    with pytest.raises(click.BadParameter, match="should be"):
        parse_command_line(f"skyward-tui {wrong}")


def test_rank_is_split_from_a_run() -> None:
    assert [split_rank(each) for each in ("ddp:3", "ddp", "ddp:x", ":3")] == [
        ("ddp", 3), ("ddp", None), ("ddp:x", None), (":3", None),
    ]  # fmt: skip


def test_diagnose_reports_each_problem_of_a_pool() -> None:
    session = FakeSession()
    view = session.pool("p", 3)
    run, now = session.open_run(view), session.now
    view.machines = MachineMetrics()
    for node in (0, 1):
        sample: dict[str, Any] = {"at": now, "node": {"cpu": 5, "spool_free": 2e9}}
        view.machines.feed(node, json.dumps(sample).encode() + b"\n")
    assert [(each.subject, each.state) for each in check_pool(view, now)] == [
        (each, "ok") for each in ("pool", "nodes", "links", "agents", "clocks", "disks", "memory", "ranks")
    ]
    sample |= {"node": {"spool_free": 1e8}, "devices": [{"id": "G", "model": "H100"}], "gpus": [{"xid": 79, "ecc": 2}]}
    sample["at"] = now - 90
    view.machines.feed(1, json.dumps(sample).encode() + b"\n", 90.0)
    view.nodes[2].link_up, view.nodes[2].link_since, view.nodes[2].phase = False, now - 130, "connected"
    view.metrics.add_values(run.id, 2, now - 30, {"step": 7, "loss": float("nan")})
    view.budget, view.price_hourly, view.budget_state = 5.0, 1.0, "spent"
    failed = {each.subject: each.detail for each in check_pool(view, now) if each.state == "fail"}
    assert failed.keys() == {"nodes", "links", "clocks", "disks", "GPUs", "ranks", "budget"}
    assert failed["clocks"].startswith("n1: 1:30 behind the clock of this machine. Run timedatectl")
    assert failed["links"].startswith("n2: no connection for 2:10") and failed["disks"] == "n1: 100 MB free"
    assert "Xid 79" in failed["GPUs"] and "2 uncorrectable memory errors" in failed["GPUs"]
    assert "rank 2: loss is NaN from step 7 on" in failed["ranks"] and "of $5.00" in failed["budget"]


def test_command_output_is_sanitized(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[\x002J\x1b]0;t\x07\x9b2J\x1b[31mb\n\u202ec\x7f"
    console = Console()
    console.print_line(evil, 1)
    console.note(evil)
    console.report_error(OSError(evil))
    Console(as_json=True).result({evil: evil})
    out, err = capsys.readouterr()
    text, last_line = out.rsplit("\n", 2)[:2]
    assert text == "ab\n�c�"
    assert err == "ab\n�c�\nerror: ab\n�c�\n"
    assert json.loads(last_line) == {evil: evil} and last_line.isascii() and last_line.isprintable()


@given(st.text(), st.sampled_from(["utf-8", "ascii", "latin-1", "cp437", "utf-16-le", "shift-jis"]))
def test_standard_stream_prints_any_text_in_any_encoding(text: str, encoding: str) -> None:
    with tempfile.TemporaryFile("w+", encoding=encoding, newline="") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", file)
        out = StandardStream("stdout")
        out.write(text)
        out.restore()
        assert sys.stdout is file and not out.has_failed
        file.seek(0)
        written = file.read()
    for character in filter(str.isalnum, text):
        with suppress(UnicodeEncodeError):
            character.encode(encoding)
            assert character in written


# Reports


def a_run(*outcomes: Outcome, state: RunStatus = "done", cause: RootCause | None = None) -> RunView:
    view = RunView("r1", "p", "train", "broadcast", len(outcomes), 0.0, state=state, root_cause=cause)
    view.tasks = {o.index: TaskView(o.index, o.rank, o.node, o.kind, outcome=o) for o in outcomes}
    return view


def returned(rank: int, value: Any) -> Outcome:
    return Outcome(rank, rank, rank // 2, "returned", 1.5, Summary("dict", str(value), value, True, 10))


FAILED = Outcome(1, 1, 0, "raised", 0.25, error=ErrorInfo("ValueError", "bad\nvery", "Traceback:\n  here\n"))


def test_run_table_and_failure_lines_are_formatted() -> None:
    run = a_run(returned(0, {"loss": 1.0}), FAILED, state="failed", cause=RootCause.from_outcome(FAILED))
    assert table(run_table(run)[0]) == [
        "rank  node  outcome     time    result",
        "r000  n0    ✓ returned  1.5 s   {'loss': 1.0}",
        "r001  n0    ✗ raised    250 ms  ValueError: bad",
    ]
    assert failure_lines(run) == ["root cause: r001 raised: ValueError: bad\nvery", "Traceback:", "  here"]
    run.root_cause = RootCause(-1, "lost", "NodeLost", "its client has exited")  # of a trial that no rank had begun
    assert failure_lines(run) == ["root cause: lost: its client has exited"]
    assert aggregate_lines(a_run(returned(0, 1), returned(1, 3))) == ["value of 2: mean 2 ± 1, 1 … 3, sum 4"]
    assert aggregate_lines(a_run(returned(0, 1))) == []


TRACE = """Traceback (most recent call last):
  File "/here/train.py", line 3, in <module>
    step()
  File "/here/train.py", line 2, in step
    raise ValueError("no data")
ValueError: no data
"""


@pytest.mark.parametrize(
    ("printed", "is_repeated"),
    [
        (f"loading\n{TRACE}", False),
        (TRACE.replace("/here/", "/node/copy/"), False),
        (re.sub("^", "[rank1]: ", TRACE, flags=re.MULTILINE), False),
        ("", True),
        (TRACE.replace("line 2", "line 9"), True),
        ("ValueError: no data\n", True),
    ],
)
def test_root_cause_omits_a_traceback_that_the_rank_printed(printed: str, is_repeated: bool) -> None:
    failed = Outcome(1, 1, 0, "raised", error=ErrorInfo("ValueError", "no data", TRACE))
    run = a_run(failed, state="failed", cause=RootCause.from_outcome(failed))
    shown = failure_lines(run, {1: printed}.__getitem__)
    assert shown[0] == "root cause: r001 raised: ValueError: no data"
    assert shown[1:] == (TRACE.splitlines() if is_repeated else ["its traceback is in the output above"])


CLOSED = "[external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:26504"
ENV_RENDEZVOUS = (
    "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"
)


@pytest.mark.parametrize(
    ("function", "kind", "message", "early", "hints"),
    [
        ("tr.py", "KeyError", "'RANK'", [], ["Use: skyward-tui torchrun tr.py"]),
        ("a b.py", "KeyError", "'LOCAL_RANK'", [], ["Use: skyward-tui torchrun 'a b.py'"]),
        ("tr.py", "ValueError", ENV_RENDEZVOUS, [], ["Use: skyward-tui torchrun tr.py"]),
        ("train", "KeyError", "'RANK'", [], []),
        ("train", "RuntimeError", CLOSED, [1], ["rank 1 had already returned, so the connections of rank 0"]),
        ("train", "RuntimeError", CLOSED, [1, 2, 3], ["ranks 1-3 had already returned"]),
        ("train", "ValueError", "bad", [1], []),
    ],
)
def test_root_cause_names_a_known_reason(
    function: str, kind: str, message: str, early: list[int], hints: list[str]
) -> None:
    failed = Outcome(0, 0, 0, "raised", error=ErrorInfo(kind, message, ""))
    run = a_run(failed, *map(partial(returned, value=1), early), state="failed", cause=RootCause.from_outcome(failed))
    run.function = function
    found = failure_lines(run)[1:]
    assert len(found) == len(hints) and all(hint in line for hint, line in zip(hints, found, strict=True))


@pytest.mark.parametrize(
    "error, status",
    [
        (ScriptError("x"), 2),
        (ScriptFailed("x"), 1),
        (PoolError("x"), 1),
        (TeardownError("x"), 3),
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 1),
        (RunError("x", run="r", function="f", outcomes={}, root_cause=RootCause(0, "exited", "", "", 9)), 9),
        (RunError("x", run="r", function="f", outcomes={}, root_cause=RootCause(0, "exited", "", "", 0)), 1),
        (RunError("x", run="r", function="f", outcomes={}, root_cause=RootCause(0, "raised", "", "")), 1),
    ],
)
def test_exit_code_of_each_error_type(error: BaseException, status: int) -> None:
    assert errors.error_exit_code(error) == status


# Runs and teardowns, with a session that does as it is told


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


UP = PoolView("p", state="up", key="p.t")


class Session:
    """Session with pool "p" and a run that ends as given.

    A running run ends when it is cancelled. A pool created as None never starts. ``signals`` are sent to this process
    at a call. ``waits``: whether no node has received the run.
    """

    def __init__(
        self,
        run: RunView | None = None,
        receipt: Any = None,
        created: Any = UP,
        signals: dict[str, signal.Signals] | None = None,
        waits: bool = False,
    ) -> None:
        self.waits = waits
        self.run, self.receipt, self.created, self.signals = run, receipt, created, signals or {}
        self.calls: list[str] = []
        self.shown = PoolView("p", state="up", key="p.t")
        self.notice = ""
        self.is_heard = False
        self.unkept: OSError | None = None
        self.ended: Future[RunView] = Future()
        self.ledger = SimpleNamespace(  # its pool is not in one
            find_pool=lambda _: None, mark_receipts_printed=lambda _: None
        )

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if what in self.signals:
            signal.raise_signal(self.signals[what])

    def pools(self) -> list[PoolView]:
        return [self.shown]

    def view(self, pool: str) -> PoolView:
        return self.shown

    def scan_leftovers(self) -> Future[LeftoverScan]:
        thing = Leftover("instance", "i-1", "us-east-1", "q", "t", "l", True, "me", is_machine=True)
        return done(LeftoverScan((), [JudgedLeftover(thing, "left", 0)]))

    def attach(self, pool: str) -> Future[PoolView]:
        return done(self.shown)

    def create(self, spec: PoolSpec, *, begun: Future[PoolView], request: Any = None) -> Future[Any]:
        self._called("create")
        if isinstance(self.created, PoolExistsError):
            begun.set_exception(self.created)
        else:
            begun.set_result(self.shown)
        return Future() if self.created is None else done(self.created)

    def subscribe(self, pool: str, *_: Any, missed: bool = False) -> Future[Any]:
        assert pool == "p.t"
        self.is_heard = True
        return done(None)

    def launch(self, pool: str, task: Task, *, request: LaunchRequest, **_: Any) -> Future[Any]:
        assert pool == "p.t" and self.is_heard and request.script == "train.py"
        self._called("launch")
        return done(self.run)

    def save_launch(self, pool: str, run: str, request: LaunchRequest, *, joined: bool) -> Future[None]:
        assert pool == "p.t" and request.script == "train.py"
        return done(None) if self.unkept is None else done(self.unkept)

    def wait(self, pool: str, run: str) -> Future[Any]:
        assert self.run is not None and pool == "p.t"
        self._called("wait")
        if self.run.state != "running":
            self.ended.set_result(self.run)
        return self.ended

    def cancel(self, pool: str, run: str) -> Future[None]:
        assert pool == "p.t"
        self._called("cancel")
        if self.run is not None:
            self.run.state = "cancelled"
            self.ended.set_result(self.run)
        return done(None)

    def tear_down(self, pool: str, *, give_up: bool = False, now: bool = False) -> Future[Any]:
        assert pool == "p.t" and not now
        self._called("down")
        return done(self.receipt)

    def survives_exit(self, pool: str, run: str) -> Future[bool]:
        return done(not self.waits)

    def detach_pool(self, pool: str) -> Future[None]:
        assert pool == "p.t"
        self._called("leave")
        if self.waits and self.run is not None:
            self.run.state = "cancelled"
        return done(None)

    def detach(self) -> None:
        self._called("detach")


GONE = Receipt("p", 1, (0,), (), 0.1)
LEFT = Receipt("p", 2, (0,), ("i-0abc",), 60.0)
TASK = Task("train", Blob("", 0, b""), Blob("", 0, b""))
SPEC = PoolSpec(name="p", provider=Local())


def execute(
    session: Any, *, keep: bool = False, ours: bool = True, detach: bool = False, console: Console | None = None
) -> int:
    job = PoolCommand(session, console or Console(as_json=True), "p", ours=ours, keep=keep or detach)
    with job.follower.catch_signals():
        return job.execute(SPEC if ours else None, [TASK], LaunchRequest(script="train.py", detach=detach), None)


def test_launch_that_cannot_be_saved_is_reported_and_run_continues(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(a_run(state="done"), GONE)
    session.unkept = OSError(28, "No space left on device")
    assert execute(session, console=Console(as_json=False)) == errors.OK
    assert "so rerun may not find it: [Errno 28] No space left on device" in capsys.readouterr().err


def test_unverified_teardown_overrides_exit_code_of_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    session = Session(a_run(returned(0, 1)), LEFT)
    assert execute(session) == 3
    out, err = capfd.readouterr()
    assert "may still run and cost money" in err
    assert "i-0abc" in err
    assert json.loads(out)["receipt"]["unaccounted"] == ["i-0abc"]


def test_failed_teardown_exits_as_unverified(capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(Session(a_run(returned(0, 1)), PoolError("no answer"))) == 3
    assert "error: no answer" in capfd.readouterr().err


def test_kept_pool_is_reported_with_its_teardown_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(Session(a_run(returned(0, 1))), keep=True) == errors.OK
    assert "pool p stays up; tear down the pool: skyward-tui down p" in capfd.readouterr().err
    assert execute(Session(a_run(returned(0, 1)), GONE)) == errors.OK
    assert "stays up" not in capfd.readouterr().err


def test_failed_start_tears_down_a_pool_that_was_to_be_kept(capfd: pytest.CaptureFixture[str]) -> None:
    session = Session(None, GONE, created=PoolError("no machines"))
    assert execute(session, keep=True) == 1
    assert session.calls == ["create", "down"]
    assert json.loads(capfd.readouterr().out)["error"]["message"] == "no machines"


@pytest.mark.parametrize(
    ("state", "created", "signals", "keep", "status", "calls"),
    [
        ("done", UP, {}, False, 0, ["create", "launch", "wait", "down"]),
        (None, None, {"create": signal.SIGTERM}, True, 130, ["create", "down"]),
        (None, PoolExistsError("'p' is up"), {"create": signal.SIGTERM}, False, 130, ["create"]),
        ("running", UP, {"wait": signal.SIGINT}, True, 130, ["create", "launch", "wait", "cancel"]),
        (
            "running", UP, {"wait": signal.SIGINT, "cancel": signal.SIGINT}, True, 130,
            ["create", "launch", "wait", "cancel", "down"],
        ),
    ],
    ids=["no signal", "during startup", "name in use", "during the run", "second signal"],
)  # fmt: skip
def test_signal_during_a_command_decides_session_calls_and_exit_code(
    state: Any, created: Any, signals: dict[str, signal.Signals], keep: bool, status: int, calls: list[str]
) -> None:
    session = Session(a_run(returned(0, 1), state=state) if state else None, GONE, created=created, signals=signals)
    assert execute(session, keep=keep) == status
    assert session.calls == calls


class Terminal(Console):
    """Terminal with a user."""

    is_terminal = True


@pytest.mark.parametrize(
    "waits, asked, expected",
    [
        (False, "is still running. [d]etach: it keeps running (default)", "run r1 keeps running; watch: "),
        (
            True,
            "is still queued. [d]etach: this cancels it (default)",
            "run r1 was cancelled: it had not reached any node",
        ),
    ],
)
def test_detaching_user_is_told_whether_the_run_continues(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], waits: bool, asked: str, expected: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("d\n"))
    session = Session(a_run(state="running"), signals={"wait": signal.SIGINT}, waits=waits)
    assert execute(session, console=Terminal()) == 130
    assert session.calls == ["create", "launch", "wait", "leave"], "the pool stays"
    output = capfd.readouterr().err
    assert asked in output and expected in output
    assert "tear down the pool: skyward-tui down p" in output


def test_detach_after_the_end_of_a_run_names_the_results_command(capfd: pytest.CaptureFixture[str]) -> None:
    session = Session(a_run(returned(0, 1)))
    assert execute(session, detach=True) == 0
    assert session.calls == ["create", "launch", "leave"]
    assert "run r1 has ended (done); results: skyward-tui results r1" in capfd.readouterr().err


@pytest.mark.parametrize("price", [1.0, 0.0])
def test_detach_from_rented_machines_reports_their_shutdown_time(
    capfd: pytest.CaptureFixture[str], price: float
) -> None:
    session = Session(a_run(state="running"))
    session.shown.price_hourly, session.shown.spec = price, {"options": {"idle_timeout": 600.0}}
    session.run.tasks = {0: TaskView(0, 0, 0)}  # type: ignore[union-attr]
    session.run.total = 1  # type: ignore[union-attr]
    assert execute(session, detach=True) == 0
    expected = "its machines shut down 10:00 after the last run; unfetched results are lost then"
    assert (expected in capfd.readouterr().err) == bool(price)


def test_signal_during_teardown_does_not_interrupt_it(capfd: pytest.CaptureFixture[str]) -> None:
    session = Session(a_run(returned(0, 1)), GONE, signals={"down": signal.SIGINT})
    assert execute(session) == 0
    out, err = capfd.readouterr()
    assert "please wait" in err
    assert json.loads(out)["receipt"]["gone"] == [0]


def test_ignored_signals_stay_ignored(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Follower(Console()).catch_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_countdown_of_saving_ranks_ends_with_their_time(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_run, "COUNTDOWN_SECONDS", 0.0)
    monkeypatch.setattr(follow_run, "PATIENCE", 0.01)
    follower = Follower(Console())
    for rank, left in ((0, 60.0), (1, -1.0)):  # the machine of rank 1 has ended, so that its agent reports no end
        follower.on_event(RankPhase(pool="p", rank=rank, phase="saving", until=time.time() + left))
    follower.wait_until(lambda: False, timeout=0.05)
    assert re.fullmatch(r"(rank 0 still saves: killed in [01]:\d\d\n)+", capfd.readouterr().err)


def test_repeated_node_failures_are_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    follower = Follower(Console())
    for detail in ("connection refused", "connection refused", "no answer", "connection refused"):
        for node in (0, 1):
            follower.on_event(NodePhase(pool="p", node=node, phase="running", detail=detail, retry_at=1.0))
    follower.wait(done(None))
    details = [
        f"n{node} running: {detail}, retrying\n"
        for detail in ("connection refused", "no answer", "connection refused")
        for node in (0, 1)
    ]
    assert capfd.readouterr().err == "".join(details)


def test_reason_of_a_failed_start_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    for failure, text in ((PoolError("no host"), ""), (PoolError("worse"), "pool p starting: no host\n")):
        follower, start = Follower(Console()), Future[None]()
        follower.on_event(PoolState(pool="p", state="starting", detail="no host"))
        follower.on_event(PoolState(pool="p", state="stopping"))
        follower.on_event(NodePhase(pool="p", node=0, phase="gone"))
        start.set_exception(failure)
        with pytest.raises(PoolError):
            follower.wait(start)
        assert capfd.readouterr().err == text
    follower = Follower(Console())
    follower.on_event(PoolState(pool="p", state="starting", detail=".env stays here"))
    follower.on_event(NodeLink(pool="p", node=0, up=False, detail="no answer"))
    follower.wait(done(None))
    assert capfd.readouterr().err == "pool p starting: .env stays here\nn0 link down: no answer\n"


def test_log_line_is_flushed_although_a_silent_event_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python buffers printed lines if stdout is a pipe."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as reader, open(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        follower, waited = Follower(Console()), Future[None]()
        follower.on_log(0, "out", 0, b"waiting\n", "")
        follower.on_event(NodePhase(pool="p", node=0, phase="ready"))
        thread = threading.Thread(target=follower.wait, args=(waited,))
        thread.start()
        try:
            assert select.select([reader], [], [], 30)[0], "it is held back"
            assert reader.read(100) == b"r000| waiting\n"
        finally:
            waited.set_result(None)
            thread.join()


@pytest.mark.parametrize("receipt, status", [(GONE, 0), (LEFT, 3), (PoolError("no answer"), 3)])
def test_down_exits_with_the_verified_teardown_result(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], receipt: Any, status: int
) -> None:
    monkeypatch.setattr(pool_and_run_lookup, "Session", lambda: Session(receipt=receipt))
    monkeypatch.setattr(
        cancel_down_leftovers_prune,
        "live_and_retained_pools",
        lambda session, pools: ([SimpleNamespace(name="p", key="p.t", token="t", spec={"rents": True})], []),
    )
    assert cancel_down_leftovers_prune.down.function(Console(as_json=True), ("p",), False, True, False, False) == status
    output = capfd.readouterr()
    found = json.loads(output.out)["receipts"]
    assert [r["pool"] for r in found] == (["p"] if isinstance(receipt, Receipt) else [])
    assert "leftovers of ended pools: 1 machine ($?/h); skyward-tui leftovers" in output.err


ALL_HELP = """
from click.testing import CliRunner
from skyward_tui.cli.main import COMMAND_GROUPS, cli
from skyward_tui.cli.pool_and_run_lookup import split_rank

for name in ("", "replay", "down", "capacity"):
    print(CliRunner().invoke(cli, [*name.split(), "--help"], terminal_width=80).output)
"""


@pytest.mark.proof("1 s of a processor")
def test_command_help_is_complete_under_python_oo() -> None:
    plain, optimized = (
        subprocess.run([sys.executable, *flags, "-c", ALL_HELP], check=True, capture_output=True, text=True).stdout
        for flags in ([], ["-OO"])
    )
    assert optimized == plain and "Play a recording" in plain


def test_leftovers_without_a_cloud_account_exits_with_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(cancel_down_leftovers_prune, "scannable_providers", lambda: ["aws"])
    boto_calls.shared_calls.cache_clear()  # clients of earlier tests have credentials
    (script := tmp_path / "train.py").write_text("import skyward_core as sky\n\n@sky.function\ndef f(): ...\n")
    start = ["run", str(script), "--provider", "aws", "--set", "region=us-east-1", "--set", "instance_type=t3.micro"]
    for _ in range(2):
        done = CliRunner().invoke(cli, ["leftovers"], standalone_mode=False)
        assert "no machines were rented from this state folder; no cloud account to check" in done.stderr
        assert done.return_value == errors.OK
        started = CliRunner().invoke(cli, start, standalone_mode=False)  # an account without any machine
        assert started.return_value == errors.FAILED and "no AWS credentials were found" in started.stderr
        assert "could not check" not in started.stderr
    done = CliRunner().invoke(cli, ["leftovers", "--provider", "aws"])
    assert "--set region=us-east-1" in done.stderr


# Packaged examples as the command line shows, copies and names them.


def test_examples_command_lists_prints_and_copies_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["examples"], standalone_mode=False) == 0
    listed = capfd.readouterr().out
    assert "ddp" in listed and "DistributedDataParallel" in listed
    source = form.example_path("hello").read_text()
    assert cli.main(["examples", "hello"], standalone_mode=False) == 0
    assert capfd.readouterr().out.strip() == source.strip()
    assert cli.main(["examples", "hello", "--copy"], standalone_mode=False) == 0
    assert Path("hello.py").read_text() == source
    Path("hello.py").write_text("mine")
    for words, why in ((["hello", "--copy"], "was not changed"), (["helo"], "did you mean 'hello'")):
        with pytest.raises(SystemExit) as caught:
            cli.main(["examples", *words], standalone_mode=False)
        assert caught.value.code == 2
        assert why in capfd.readouterr().err
    assert Path("hello.py").read_text() == "mine"


def test_example_name_is_accepted_as_script_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = form.FOLDER / "ddp.py"
    assert form.expand_example("example:ddp") == str(path)
    assert form.expand_example("example:ddp:train") == f"{path}:train"
    assert form.script_argument(str(path)) == "example:ddp"
    Path("example:ddp").write_text("")
    assert form.expand_example("example:ddp") == "example:ddp"
    with pytest.raises(
        ScriptError, match="script hello does not exist\nTo run the packaged example: run example:hello"
    ):
        run(LaunchRequest(script="hello"), Console())
    with pytest.raises(ScriptError, match=r"script train\.py does not exist$"):
        run(LaunchRequest(script="train.py"), Console())


# What ranks print as a command shows it: whole lines, on a terminal and in a pipe.


def printed(*chunks: tuple[int, str, bytes], **options: Any) -> bytes:
    sink = io.BytesIO()
    printer = LogPrinter(sink, **options)
    for chunk in chunks:
        printer.feed(*chunk)
    printer.finish()
    return sink.getvalue()


def tqdm_bars() -> str:
    """Return the output of nested progress bars, with lines before, between and after them."""
    tqdm = pytest.importorskip("tqdm").tqdm
    file = io.StringIO()
    file.write("before\n\n")
    with ExitStack() as held:
        bars = [
            held.enter_context(tqdm(total=60, position=at, desc=f"bar {at}", file=file, mininterval=0, ncols=60))
            for at in range(3)
        ]
        for step in range(60):
            for bar in bars:
                bar.update()
            if step == 30:
                tqdm.write("between", file=file)
    file.write("\n" * 3 + "after\n\nlast\n")
    return file.getvalue()


def test_log_printer_pipes_the_last_state_of_nested_progress_bars() -> None:
    data = tqdm_bars().encode()
    written = printed((0, "err", data), prefix=False)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in written.decode().split("\n")]
    assert data.count(b"\n") > 120 and len(lines) < 30
    assert lines[:2] == ["before", ""] and lines[-4:] == ["after", "", "last", ""]
    assert lines.count("between") == 1
    for at in range(3):
        assert sum(line.startswith(f"bar {at}") and "100%" in line for line in lines) == 1, lines
    for cut in (1, 1000):
        pieces = [(0, "err", data[at : at + cut]) for at in range(0, len(data), cut)]
        found = printed(*pieces, prefix=False)
        assert found.endswith(b"last\n") and found.count(b"100%") == 3 and found.count(b"\n") < 40


def test_log_printer_pipes_the_last_state_of_rich_bars() -> None:
    file = io.StringIO()
    screen = rich.console.Console(file=file, force_terminal=True, width=60)
    with rich.progress.Progress(console=screen, auto_refresh=False) as progress:
        bars = [progress.add_task(f"bar {at}", total=950) for at in range(3)]
        for step in range(950):
            for bar in bars:
                progress.advance(bar)
            progress.refresh()
            if step == 500:
                progress.print("between")
    data = file.getvalue().encode()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", each) for each in printed((0, "out", data)).decode().splitlines()]
    assert data.count(b"\n") > 1900 and len(lines) < 20, lines
    assert "r000| between" in lines
    for at in range(3):
        assert sum(line.startswith(f"r000| bar {at}") and "100%" in line for line in lines) == 1, lines


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\x1b[A", b"\x1b[2A", b"\x1b[2K", b"\x1b[J", b"\x1b[9"])))
@settings(max_examples=examples(50))
def test_log_printer_memory_is_bounded_for_any_cursor_movement(parts: list[bytes]) -> None:
    printer = LogPrinter(io.BytesIO())
    for _ in range(10):
        for part in parts:
            printer.feed(0, "err", part)
    assert all(len(bars._rows) <= 101 and 0 <= bars._at < len(bars._rows) for bars in printer._bars.values())
    printer.finish()
    assert not printer._bars and not printer._unfinished


@pytest.mark.parametrize("cut", range(1, 12))
def test_log_printer_keeps_all_bytes_of_lines_in_a_pipe(cut: int) -> None:
    others = bytes(byte for byte in range(256) if byte != ord("\r"))
    data = b"\x1b]0;t\x07\x00\xff\n\r\n" + others + b"\r\ntail"
    chunks = [(7, "out", data[i : i + cut]) for i in range(0, len(data), cut)]
    assert printed(*chunks) == b"".join(b"r007| " + line + b"\n" for line in data.split(b"\n"))


BAR = b"start\n\r 10%\r 50%|###\rbelow\r100%\nnext\r\n\r 10%\r    \rdone\n 90%\r 95%\r"


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 100])
def test_log_printer_pipes_only_the_last_state_of_a_progress_bar(cut: int) -> None:
    chunks = [(0, "err", BAR[i : i + cut]) for i in range(0, len(BAR), cut)]
    assert printed(*chunks, prefix=False) == b"start\n100%\nnext\r\ndone\n 95%\n"
    assert printed((0, "err", b"\r 10%\r    \r")) == b"", "a bar that was erased"


def test_log_printer_keeps_one_state_of_an_endless_progress_bar() -> None:
    printer = LogPrinter(io.BytesIO())
    held = 0
    for step in range(2_000):
        printer.feed(0, "err", b"\rstep %d" % step)
        printer.feed(1, "err", b"step %d\r" % step)
        held = max(held, sum(len(piece) for pieces in printer._unfinished.values() for piece in pieces))
    assert held < 100


def test_endless_line_is_cut_only_on_a_terminal() -> None:
    cut = printed((0, "out", b"x" * 70_000), terminal=True)
    assert cut.endswith(" … [4,464 more bytes in the log file]\n".encode())
    assert len(printed((0, "out", b"x" * 70_000))) == 70_007


def texts(found: list[Row]) -> list[str]:
    return [text for text, _ in found]


def test_status_rows_show_start_run_and_failure() -> None:
    session = FakeSession()
    starting = session.pool("fresh", 4, state="starting", phase="requested", price=2.0)
    assert texts(status_rows(starting, None, "", session.now)) == [
        "◌ pool fresh starting  0/4 nodes  $2.00/h spent $0.04  1:04",
        "  4 requested",
    ]
    view = session.pool("llama-ft")
    run = session.open_run(view)
    logged(view, run, session, steps=3)
    session.end_rank(view, run, 1)
    assert texts(status_rows(view, run, "r002| hello", session.now)) == [
        "● train (llama-ft-1)  1/4 ended  0:41  pool llama-ft up  4/4 nodes",
        "  ● 3 running  ✓ 1 returned",
        "  step 2  loss 2.117  lr 0.003333  tokens/s 14.4k",
        "  r002| hello",
    ]
    failed = status_rows(view, failed_run(session, view), "", session.now)
    assert failed[1] == ("  ✗ 1 raised  ✗ 1 exited  ⊘ 1 stopped  ✓ 1 returned", 31)


# ``run --watch``: a few lines below what has been printed, that tell how a run is and leave nothing behind.


def terminal_in_place(monkeypatch: pytest.MonkeyPatch) -> pyte.Screen:
    """Terminal of 40 by 10 cells instead of standard error."""
    terminal = pyte.Screen(40, 10)
    stream = pyte.Stream(terminal)

    class Stderr:
        def write(self, text: str) -> None:
            stream.feed(text.replace("\n", "\r\n"))

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Stderr())
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((40, 10)))
    monkeypatch.setattr(follow_run, "PERIOD", 0.0)
    return terminal


def shown_lines(screen: pyte.Screen) -> list[str]:
    return [line.rstrip() for line in screen.display if line.strip()]


def test_live_status_stays_below_printed_lines_and_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal_in_place(monkeypatch)
    console = Console()
    received: list[Row] = [("one", 1), ("x" * 60, None)]
    block = LiveStatus(console, lambda message: [*received, (message, 2)] if message else received)
    block.draw()
    assert shown_lines(screen) == ["one", "x" * 38 + "…"]
    console.note("a note")
    assert shown_lines(screen) == ["a note"]
    block.on_output(3, b"\x1b[31mred\x1b[0m\x1b]0;t\x07\nlast \x1b[2J\n\n")
    block.draw()
    assert shown_lines(screen) == ["a note", "one", "x" * 38 + "…", "r003| last"]
    received[:] = [("two", None)]
    block.draw()
    assert shown_lines(screen) == ["a note", "two", "r003| last"]
    block.close()
    block.draw()
    assert shown_lines(screen) == ["a note"]
    block.open()  # of a job's next step
    block.draw()
    assert shown_lines(screen) == ["a note", "two"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["run", "example:hello", "--json"], "--watch cannot be combined with --json"),
        (["run", "example:hello"], "--watch needs a terminal on stderr"),
        (["exec", "--json", "p", "t.yaml"], "--watch cannot be combined with --json"),
        (["torchrun", "t.py"], "--watch needs a terminal on stderr"),
    ],
)
def test_watch_is_rejected_with_json_detach_or_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", f"{tmp_path}/home")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.yaml").write_text("run: echo hello\n")
    (tmp_path / "t.py").write_text("")
    command, *rest = options
    done = CliRunner().invoke(cli, [command, "--watch", *rest])
    assert done.exit_code and message in done.output


@pytest.mark.parametrize(
    ("line", "words", "options", "note"),
    [
        ("exec p 'echo a' --json --nodes 0", ("echo a",), {"nodes": (0,), "detach": False}, ""),
        ("exec --nodes 1 p 'echo a' --detach", ("echo a",), {"nodes": 1, "detach": True}, ""),
        ("exec p 'echo a' --env B=1", ("echo a",), {"env": {"B": "1"}}, ""),
        ("exec p -- 'echo a' --json", ("echo a", "--json"), {}, ""),
        ("exec p -- echo --json", ("echo", "--json"), {}, ""),
        ("exec p echo --json", ("echo", "--json"), {}, "--json is an option of echo here"),
    ],
)
def test_exec_honors_options_after_a_quoted_command_only(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    words: tuple[str, ...],
    options: dict[str, Any],
    note: str,
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", f"{tmp_path}/home")
    given: list[Any] = []

    def execute(pool: str, words: tuple[str, ...], console: Console, **options: Any) -> int:
        given.append((pool, tuple(words), console.as_json, options))
        return 0

    monkeypatch.setattr(exec_launch_queue, "execute", execute)
    done = CliRunner().invoke(cli, shlex.split(line))
    ((pool, found, as_json, how),) = given
    assert (pool, found) == ("p", words), done.output
    assert as_json == ("--json" in line and "--json" not in words)
    assert options.items() <= how.items()
    assert note in done.output and bool(note) == ("is an option of" in done.output)


def test_exec_rejects_an_unknown_option_after_a_quoted_command() -> None:
    done = CliRunner().invoke(cli, ["exec", "p", "echo a", "--jsn"])
    assert done.exit_code == 2 and "No such option '--jsn'" in done.output and "'--json'" in done.output
    done = CliRunner().invoke(cli, ["exec", "--restarts", "3", "p", "true"])
    assert done.exit_code == 2 and "No such option '--restarts'" in done.output


# last_line


@pytest.mark.parametrize(
    "text, line",
    [
        ("", ""),
        ("\n \n", ""),
        ("only", "only"),
        ("a\nb\n\n", "b"),
        ("x" * 9000, "x" * LAST_LINE_BYTES),
        ("é" * LAST_LINE_BYTES + "z", "é" * (LAST_LINE_BYTES // 2 - 1) + "z"),
    ],
)
def test_last_line_skips_blank_lines_and_is_bounded(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert last_line(path).lstrip("\N{REPLACEMENT CHARACTER}") == line


def test_receipt_line_lists_machines_only_if_requested() -> None:
    receipt = Receipt("p", 2, (0, 1), (), 1.0, machines=("i-1", "i-2"))
    assert receipt_line(receipt, machines=True).endswith("\n  machines: i-1, i-2")
    assert "i-1" not in receipt_line(receipt)
