"""Where ranks are, as ``skyward-tui stacks`` tells it: of real ranks, by py-spy and by the signal."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.thread_stacks import Stacks
from skyward_core.node import stack_dumps_and_profiles
from skyward_core.node.stack_dumps_and_profiles import PathMapping, RankProcess, capture_stacks
from skyward_core.pool import rank_inspection
from skyward_core.protocol.node_paths import STACK_SIGNAL
from skyward_core.views.stack_groups import group_stacks, hottest_lines, parse_profile
from tests.support.cli import call
from tests.support.faults import agent_pids
from tests.support.waiting import wait_until

SPIN = "spin"  # the file that has rank 3 work
PLACES = PathMapping("/nowhere", "", None)
PY_SPY = str(Path(sys.executable).parent / "py-spy")
needs_py_spy = pytest.mark.skipif(not os.access(PY_SPY, os.X_OK), reason="py-spy is not installed")


@pytest.fixture(scope="module")
def ranks(world: Path) -> Iterator[sky.Compute]:
    """Four ranks on one node."""
    with sky.Compute(
        name="four", worker=sky.Worker(ranks_per_node=4), options=sky.Options(console=False, grace=2.0)
    ) as compute:
        yield compute


@pytest.fixture(scope="module")
def session(world: Path) -> Iterator[Session]:
    """A second client."""
    session = Session()
    yield session
    session.detach()


@sky.function
def waits(folder: str) -> str:
    """Rank 3 is in C, with the GIL; rank 2 waits elsewhere; the others wait here, until they are stopped."""
    me = sky.instance_info().rank
    Path(folder, f"at.{me}").touch()
    if me == 3:
        holds_gil(f"{folder}/{SPIN}")
    if me == 2:
        return elsewhere()
    return until()


def until() -> str:
    time.sleep(1_000_000)
    return "done"


def elsewhere() -> str:
    return until()


def holds_gil(spin: str) -> NoReturn:
    """It works while a test asks for that, and else sleeps there: to work all the time takes a core from others."""
    sleep = ctypes.PyDLL(None).usleep
    while True:
        sum(range(1_000_000)) if os.access(spin, os.F_OK) else sleep(20_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of files by which ranks and tests tell each other something."""
    return tmp_path_factory.mktemp("hung")


@pytest.fixture(scope="module")
def hung(ranks: sky.Compute, session: Session, folder: Path) -> Iterator[str]:
    """A run of theirs, which ends when it is cancelled."""
    with ThreadPoolExecutor() as beside:
        running = beside.submit(lambda: waits(str(folder)) @ ranks)
        wait_until(lambda: len(list(folder.glob("at.*"))) == 4)
        (run,) = ranks.pool.view.runs
        yield run
        session.cancel("four", run).result(30)
        assert running.exception(30) is not None


@pytest.fixture
def working(hung: str, folder: Path) -> Iterator[str]:
    """That run, while its rank 3 works."""
    (folder / SPIN).touch()
    yield hung
    (folder / SPIN).unlink()


def take(session: Session, **how: Any) -> Stacks:
    return session.stacks("four", **how).result(30)


def functions(stacks: Stacks) -> dict[int, list[str]]:
    return {each.rank: [frame.function for frame in each.threads[0].frames] for each in stacks.ranks}


def processes(ranks: sky.Compute, stacks: Stacks) -> dict[int, RankProcess]:
    folder = ranks.pool.context.machines[0].extra["folder"]
    return {each.rank: RankProcess(each.pid, f"{folder}/stacks.{each.rank}.0", PLACES) for each in stacks.ranks}


@needs_py_spy
def test_a_second_client_sees_where_each_rank_is(session: Session, hung: str) -> None:
    told = take(session, run=hung)
    while any(names[0] not in ("until", "holds_gil") for names in functions(told).values()):
        told = take(session, run=hung)  # one that had not come so far
    assert [(each.rank, each.at, each.how, each.runs) for each in told.ranks] == [
        (rank, "running", "py-spy", (hung,)) for rank in range(4)
    ]
    assert [(group.ranks, group.frames[0].function) for group in group_stacks(told)] == [
        ("0-1", "until"), ("2", "until"), ("3", "holds_gil"),
    ]  # fmt: skip
    assert functions(told)[2][:3] == ["until", "elsewhere", "waits"]


@needs_py_spy
def test_a_script_is_told_the_same(ranks: sky.Compute, session: Session, hung: str) -> None:
    mine, theirs = ranks.stacks(), take(session, run=hung)
    assert mine.run == hung
    assert (
        [group.ranks for group in group_stacks(mine)]
        == [group.ranks for group in group_stacks(theirs)]
        == ["0-1", "2", "3"]
    )
    with sky.attach("four") as attached:
        assert functions(attached.stacks(run=hung)) == functions(theirs)


@needs_py_spy
def test_ranks_write_their_stacks_at_the_signal_and_go_on(ranks: sky.Compute, session: Session, hung: str) -> None:
    told = take(session, run=hung)
    for rank, process in processes(ranks, told).items():
        found = capture_stacks(process, "", signal=True)  # as the agent does where it has no py-spy
        assert found["how"] == "signal", found
        names = [frame[0].rpartition(".")[2] for frame in found["threads"][0]["frames"]]
        assert names == [name.rpartition(".")[2] for name in functions(told)[rank]]
        assert capture_stacks(process, "", signal=False) == {
            "why": "py-spy is not installed on its node",
            "answers": True,
        }
    assert functions(take(session, run=hung)) == functions(told)


@needs_py_spy
def test_where_a_rank_spends_its_time(ranks: sky.Compute, session: Session, working: str) -> None:
    seen = parse_profile(session.profile("four", 3, 1).result(60))
    assert hottest_lines(seen)[0].frame.function == "holds_gil"
    with pytest.raises(UsageError, match="has no rank 4: its ranks are 0 to 3"):
        session.profile("four", 4, 1).result(60)
    folder = Path(ranks.pool.context.machines[0].extra["folder"])
    assert list(folder.glob("profile.*")) == []


@needs_py_spy
def test_the_command_line_tells_the_same(session: Session, hung: str) -> None:
    while sorted(names[0] for names in functions(take(session, run=hung)).values()) != [
        "holds_gil",
        *["until"] * 3,
    ]:
        pass  # one has not come so far
    lines = command("stacks", hung).splitlines()
    heads = [line for line in lines if line.startswith("rank")]
    file = Path(__file__).name
    assert [head.partition(f", {file}:")[0] for head in heads] == [
        "ranks 0-1 (2): until", "rank 2: until", "rank 3: holds_gil",
    ]  # fmt: skip
    assert any(line.startswith("    elsewhere  ") for line in lines)
    told = json.loads(command("stacks", "four", "--json"))
    assert (told["run"], told["collectives"]) == (hung, [])
    assert [(group["ranks"], group["frames"][0][0]) for group in told["groups"]] == [
        ([0, 1], "until"), ([2], "until"), ([3], "holds_gil"),
    ]  # fmt: skip
    assert "thread MainThread" in command("stacks", hung, "--threads")


@pytest.mark.proof("1 s of a processor")
@needs_py_spy
def test_the_command_line_profiles_a_rank_and_files_come_home(working: str, tmp_path: Path) -> None:
    said = command("profile", f"{working}:3", "--seconds", "1", "--to", str(tmp_path / "made"))
    head, hot = said.splitlines()[:2]
    assert head.split() == ["itself", "with", "calls", "line"] and "holds_gil" in hot
    (scope,) = (tmp_path / "made").iterdir()
    assert scope.name == f"profile-four-{working}-r3.speedscope.json"
    frames = json.loads(scope.read_text("utf-8"))["shared"]["frames"]
    assert "holds_gil" in {frame["name"] for frame in frames}
    assert "names no rank. Write RUN:RANK" in command("profile", working, status=2)


def command(*words: str, status: int = 0) -> str:
    """What it prints, or else complains of."""
    done = call(words, os.environ | {"COLUMNS": "200"})
    assert done.returncode == status, done.stderr
    return done.stdout or done.stderr


def test_who_works_is_told_from_who_waits(ranks: sky.Compute, session: Session, working: str) -> None:
    rhythms = session.observe("four").result(60).activity
    wait_until(lambda: 3 in rhythms._worked_at, what="word of the node that rank 3 works")
    assert set(rhythms._worked_at) == {3}


def test_an_agent_that_knows_no_stacks_is_named(
    ranks: sky.Compute, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.observe("four").result(60)
    (link,) = session._pools[ranks.pool.row.token].context.links  # the second client's
    monkeypatch.delitem(link.welcome, "knows")
    told = take(session)
    assert {each.at for each in told.ranks} == {"silent"}
    assert told.ranks[0].why.startswith("the agent of its node is from an older release without stacks")
    with pytest.raises(PoolError, match="of an older release without profiles"):
        session.profile("four", 0, 1).result(60)


def test_a_node_that_is_frozen_keeps_nobody_waiting(
    ranks: sky.Compute, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_inspection, "ANSWER_TIMEOUT", 10_000.0)
    session.observe("four").result(60)
    (agent,) = agent_pids(ranks)
    os.kill(agent, signal.SIGSTOP)
    try:
        told = take(session)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert {each.at for each in told.ranks} == {"silent"}
    assert told.ranks[0].why.startswith("node 0 has not answered for ")
    assert {each.at for each in take(session).ranks} != {"silent"}


def test_a_process_that_would_end_by_the_signal_is_not_sent_it(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            for signal_too in (True, False):
                found = capture_stacks(RankProcess(other.pid, str(tmp_path / "x"), PLACES), "", signal=signal_too)
                assert found == {"why": stack_dumps_and_profiles.NO_HANDLER, "answers": False}
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.proof("2 s of a processor")
def test_who_has_closed_the_file_is_not_sent_the_signal(home: Path) -> None:
    with sky.Compute(options=sky.Options(console=False)) as compute:
        folder = compute.pool.context.machines[0].extra["folder"]
        pid, refusals = (closes(f"{folder}/stacks.0.0") @ compute)[0]
        assert refusals == ["", "user code has replaced the signal handler or closed the answer file"]
        pid, caught = (takes_it() @ compute)[0]
        assert stack_dumps_and_profiles.refusal_reason(pid, f"{folder}/stacks.0.0"), (
            "what user code has taken for itself is its own"
        )
        assert caught == ["seen"]


@sky.function
def closes(path: str) -> tuple[int, list[str]]:
    from skyward_core.node.stack_dumps_and_profiles import refusal_reason

    me = os.getpid()
    before = refusal_reason(me, path)
    os.closerange(3, 64)
    return me, [before, refusal_reason(me, path)]


@sky.function
def takes_it() -> tuple[int, list[str]]:
    caught: list[str] = []
    signal.signal(STACK_SIGNAL, lambda *_: caught.append("seen"))
    os.kill(os.getpid(), STACK_SIGNAL)
    return os.getpid(), caught
