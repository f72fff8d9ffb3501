"""Notifications and their command, times in log searches, and editor commands."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from skyward_core.client import notification_command_process
from skyward_core.client.notification_command_process import run_command, wait_for_commands
from skyward_core.client.user_settings_and_app_state import NotifySettings
from skyward_core.tasks import bounded_subprocess
from skyward_core.views import events
from skyward_tui.notifications import (
    Notification,
    NotificationWatch,
    Notifier,
    environment_variables,
    is_worth_notifying,
    message,
    osc9,
)
from skyward_tui.panels.log import parse_time
from skyward_tui.source_lookup_and_editor import EditorError, editor_command, find_local
from tests.support.fake_session import FakeSession, failed_run
from tests.support.processes import exists
from tests.support.waiting import wait_until

DONE = Notification("done", "llama-ft", "llama-ft-1", "train", "4/4 returned", 41.0)


@pytest.fixture
def session() -> FakeSession:
    return FakeSession()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_failure_notification_names_the_cause(session: FakeSession) -> None:
    view = session.pool("llama-ft")
    watch = NotificationWatch()
    watch.check(session.pools(), session.now)
    run = session.open_run(view)
    watch.check(session.pools(), session.now)
    view.runs.clear()
    run = failed_run(session, view)
    (notification,) = watch.check(session.pools(), session.now)
    assert (notification.kind, notification.run) == ("failed", run.id)
    assert message(notification) == (
        "train (llama-ft-1) on llama-ft failed after 41.0 s: rank 2 raised: ZeroDivisionError: division by zero"
    )


def test_run_of_a_gone_pool_is_not_notified(session: FakeSession) -> None:
    view = session.pool("llama-ft")
    run = session.open_run(view)
    watch = NotificationWatch()
    watch.check(session.pools(), session.now)
    session.emit(view, events.PoolState(pool="llama-ft", state="gone"))
    assert watch.check(session.pools(), session.now) == []
    session.end_run(view, run)
    assert watch.check(session.pools(), session.now) == []


def test_failed_start_budget_and_breakpoint_are_notified_once(session: FakeSession) -> None:
    starting = session.pool("fresh", state="starting", phase="requested")
    view = session.pool("llama-ft", price=1.0)
    watch = NotificationWatch()
    assert watch.check(session.pools(), session.now) == []
    session.emit(starting, events.PoolState(pool="fresh", state="failed", detail="no machine to be had"))
    session.emit(view, events.BudgetNews(pool="llama-ft", budget=2.0, state="asked", ends_at=session.now + 9))
    for rank in (2, 1):
        session.emit(view, events.RankPhase(pool="llama-ft", rank=rank, phase="paused"))
    notifications = watch.check(session.pools(), session.now)
    assert {(each.kind, each.pool) for each in notifications} == {
        ("failed", "fresh"), ("budget", "llama-ft"), ("breakpoint", "llama-ft"),
    }  # fmt: skip
    assert sorted(map(message, notifications)) == [
        "pool llama-ft has reached its budget. Raise the budget, or tear the pool down",
        "rank 1 (+1 more) of pool llama-ft waits at a breakpoint: skyward-tui debug llama-ft",
        "the start on fresh failed after 1:04: no machine to be had",
    ]
    assert watch.check(session.pools(), session.now) == []
    session.emit(view, events.RankPhase(pool="llama-ft", rank=1, phase="running"))
    assert watch.check(session.pools(), session.now) == []
    session.emit(view, events.RankPhase(pool="llama-ft", rank=1, phase="paused"))
    assert len(watch.check(session.pools(), session.now)) == 1, "it stops once more"


def test_start_of_a_dead_client_is_notified_as_failed(session: FakeSession) -> None:
    starting = session.pool("fresh", state="starting", phase="requested")
    watch = NotificationWatch()
    watch.check(session.pools(), session.now)
    starting.state, starting.detail = "unfinished", "its client was gone"
    assert [message(each) for each in watch.check(session.pools(), session.now)] == [
        "the start on fresh failed after 1:04: its client was gone"
    ]
    assert watch.check(session.pools(), session.now) == []


@pytest.mark.parametrize(
    ("notification", "looks", "untouched", "news"),
    [
        (DONE, True, 0.0, True), (DONE._replace(seconds=3.0), True, 99.0, False),
        (DONE._replace(seconds=3.0), False, 0.0, True), (DONE._replace(kind="cancelled"), True, 0.0, False),
        (DONE._replace(kind="cancelled"), True, 99.0, True),
        (DONE._replace(kind="hostkey", seconds=None), True, 0.5, False),
        (DONE._replace(kind="hostkey", seconds=None), True, 60.0, True),
    ],
)  # fmt: skip
def test_watching_user_is_not_notified_of_short_runs(
    notification: Notification, looks: bool, untouched: float, news: bool
) -> None:
    assert is_worth_notifying(notification, looks=looks, untouched=untouched, after=10.0) is news


def test_notification_texts_are_sanitized() -> None:
    evil = DONE._replace(what="tr\x1b]0;x\aain\n\x9b31m", pool="p\x1b\\q")
    for text in (message(evil), *environment_variables(evil).values()):
        assert text.isprintable(), text
    shown = osc9(message(evil), {})
    assert shown.startswith("\x1b]9;skyward: ") and shown.endswith("\x1b\\")
    assert shown[2:-2].isprintable()
    assert len(osc9("x" * 9999, {})) < 220
    inside = osc9("done", {"TMUX": "/tmp/tmux"})
    assert inside == "\x1bPtmux;\x1b\x1b]9;skyward: done\x1b\x1b\\\x1b\\"


@pytest.mark.parametrize(
    ("ways", "term", "written"),
    [
        (NotifySettings(), "xterm-256color", f"\x1b]9;skyward: {message(DONE)}\x1b\\\a"),
        (NotifySettings(terminal=False), "xterm-256color", "\a"),
        (NotifySettings(bell=False), "linux", ""),
        (NotifySettings(bell=False, terminal=False), "xterm-256color", ""),
    ],
)
def test_each_notification_channel_can_be_disabled(
    ways: NotifySettings, term: str, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("TMUX", raising=False)
    messages: list[str] = []
    Notifier(ways, messages.append, messages.append).notify_unless_seen(DONE, True, 99.0)
    assert "".join(messages) == written


def test_notify_command_gets_variables_and_runs_in_the_home(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    script = f'echo "$SKYWARD_POOL|$SKYWARD_RUN|$SKYWARD_OUTCOME|$SKYWARD_MESSAGE|$PWD" > {out}'
    failed: list[str] = []
    ways = NotifySettings(("sh", "-c", script), bell=False, terminal=False)
    Notifier(ways, failed.append, failed.append).notify_unless_seen(DONE._replace(what="$(touch x)"), True, 99.0)
    wait_for_commands()
    assert out.read_text() == (
        f"llama-ft|llama-ft-1|done|$(touch x) (llama-ft-1) on llama-ft done after 41.0 s: 4/4 returned|{home}\n"
    )
    assert failed == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("/no/such/program",), "No such file or directory: '/no/such/program'"),
        (("sh", "-c", "exit 3"), "it exited with status 3"),
        (("sh", "-c", "kill -9 $$"), "it was killed by signal 9"),
        (("./x",), "No such file or directory: './x'"),
    ],
)
def test_failing_notify_command_is_reported_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str
) -> None:
    (tmp_path / "x").write_text("#!/bin/sh\n")  # a project's file
    (tmp_path / "x").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    messages: list[str] = []
    notifier = Notifier(NotifySettings(words, bell=False, terminal=False), messages.append, messages.append)
    for _ in range(2):
        notifier.notify_unless_seen(DONE, True, 99.0)
        wait_for_commands()
    (one,) = messages
    assert one.startswith(f"the command of [notify], {words[0]}, does not work: ") and one.endswith(why)


def test_hanging_notify_command_is_killed_with_its_children(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notification_command_process, "COMMAND_TIMEOUT", 0.5)
    pids = tmp_path / "pids"
    failed: list[str] = []
    run_command(("sh", "-c", f"sleep 600 & echo $! $$ > {pids}; wait"), {}, failed.append)
    wait_for_commands()
    assert failed == ["it did not end within 0.5 s and was killed"]
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not exists(pid))  # type: ignore[misc]


def test_notify_commands_running_at_once_are_limited(home: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    failed: list[str] = []
    for _ in range(6):
        run_command(("sh", "-c", f"read line < {fifo}"), {}, failed.append)
    assert failed == ["4 notification commands are already running; this one was skipped"] * 2
    with open(fifo, "w"):
        wait_until(lambda: len(bounded_subprocess._running) == 4)
    wait_for_commands()


# Times as a person says them, and the line of a file that a traceback names.

NEWEST = datetime(2026, 11, 24, 0, 30, 10).timestamp()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("00:30", datetime(2026, 11, 24, 0, 30)),
        ("0:29:59.5", datetime(2026, 11, 24, 0, 29, 59, 500_000)),
        ("23:50", datetime(2026, 11, 23, 23, 50)),  # the day before, for it has not been today
        ("2026-11-20 12:00", datetime(2026, 11, 20, 12, 0)),
        ("-10", datetime(2026, 11, 24, 0, 30)),
        ("- 1.5m", datetime(2026, 11, 24, 0, 28, 40)),
        ("25:00", None),
        ("12:00:61", None),
        ("soon", None),
        ("2026-13-01 12:00", None),
    ],
)
def test_times_are_parsed_relative_to_the_newest_line(text: str, at: datetime | None) -> None:
    assert parse_time(text, NEWEST) == (None if at is None else at.timestamp())


def test_traceback_of_a_copy_names_the_local_file(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    (own / "nets").mkdir(parents=True)
    other.mkdir()
    for path in (own / "nets/model.py", own / "train.py", other / "lib.py"):
        path.write_text("pass\n")
    frames = [
        "Traceback (most recent call last):",
        '  File "/srv/copy-1f/train.py", line 3, in <module>',
        '\x1b[31m  File "/srv/copy-1f/nets/model.py", line 12, in forward\x1b[0m',
        f'  File "{other / "lib.py"}", line 5, in call',
        "ValueError: no",
    ]
    assert find_local(frames, [own]) == (own / "nets/model.py", 12)  # the innermost of the person's own
    assert find_local(frames[3:], [own]) == (other / "lib.py", 5)
    assert find_local(["nets/model.py:4: error"], [own]) == (own / "nets/model.py", 4)
    assert find_local(['File "../own/train.py", line 1', 'File "<string>", line 1', "at 12:30"], [own]) is None


def test_editor_command_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a b.py"
    assert editor_command({"EDITOR": "nano"}, path, 3) == ["nano", "+3", str(path)]
    assert editor_command({"EDITOR": "nano", "VISUAL": "code --wait"}, path, 3) == [
        "code",
        "--wait",
        "--goto",
        f"{path}:3",
    ]
    assert editor_command({"EDITOR": "/usr/bin/hx"}, path, 3) == ["/usr/bin/hx", f"{path}:3"]
    (tmp_path / "vi").touch(0o755)
    assert editor_command({"PATH": str(tmp_path)}, path, 3) == ["vi", "+3", str(path)]
    for wrong in ({}, {"EDITOR": "  "}, {"EDITOR": "'vi"}):
        with pytest.raises(EditorError):
            editor_command(wrong, path, 3)
