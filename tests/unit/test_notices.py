"""What an agent makes of what its provider's program says, and what a rank's process makes of notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from skyward_core.node.agent import preemption_notices
from skyward_core.node.agent.preemption_notices import PreemptionNotifier
from skyward_core.node.agent.worker_processes import Process
from skyward_core.runtime import preemption
from skyward_core.runtime.preemption import PreemptionNotice, on_preempt
from tests.support.agent_parts import Node
from tests.support.waiting import until

SAYS = """
import sys
for line in open({path!r}):
    sys.stdout.write(line)
sys.stdout.flush()
sys.stdin.read()
"""


def node_that_hears(folder: Path, *lines: str) -> tuple[Node, PreemptionNotifier]:
    said = folder / "said"
    said.write_text("".join(f"{line}\n" for line in lines))
    node = Node(folder, notices=SAYS.format(path=str(said)))
    desk = PreemptionNotifier(node.state, node.audience, node.desk, node.slots)
    desk.start()
    return node, desk


async def test_only_what_is_a_notice_is_told_and_once(tmp_path: Path) -> None:
    kind = '{"kind": "terminate", "left": %s}'
    nonsense = [
        "",
        "[]",
        "nothing",
        "[" * 3000,
        '{"kind": "explode", "left": 3}',
        '{"kind": ["stop"], "left": 3}',
        '{"left": 3}',
        *(kind % left for left in ("-1", "1e9", "NaN", '"soon"', "true", "[1]")),
    ]
    good = [kind % 100, kind % 99, '{"error": "no answer"}', '{"kind": "rebalance", "left": null}']
    node, desk = node_that_hears(tmp_path, *nonsense, *good)
    await until(lambda: len(node.peer.told) == 3)
    terminate, error, rebalance = node.peer.told
    assert (terminate["t"], terminate["kind"]) == ("notice", "terminate") and 98 < terminate["left"] <= 100
    assert error["message"].endswith("nobody tells whether its machine is about to be taken back: no answer")
    assert rebalance == {"t": "notice", "kind": "rebalance", "left": None}
    assert node.state.is_preempted and list(node.state.notices) == ["terminate", "rebalance"]
    desk.stop()


async def test_a_program_that_ends_or_never_stops_talking_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption_notices, "RESTART_DELAYS", (0.01, 0.02))
    starts = tmp_path / "starts"
    for number, text in enumerate(("raise SystemExit(3)", "while True: print('x' * 9999, end='')")):
        folder = tmp_path / str(number)
        folder.mkdir()
        node = Node(folder, notices=f"open({str(starts)!r}, 'a').write('{number}')\n{text}")
        desk = PreemptionNotifier(node.state, node.audience, node.desk, node.slots)
        desk.start()
        await until(lambda: starts.exists() and starts.read_text().count(str(number)) > 3)  # noqa: B023
        desk.stop()
        assert len(node.peer.told) == 1, "it is said once"
        assert not node.state.is_preempted


async def test_ranks_are_told_of_other_nodes_once_as_long_as_it_counts(tmp_path: Path) -> None:
    node, desk = node_that_hears(tmp_path)
    file = Path(node.state.config.paths.notices)

    def written() -> list[tuple[int, bool]]:
        return [(each[0], each[1]) for each in json.loads(file.read_text())]

    desk.on_remote_notice(0, 60.0)
    before = file.read_text()
    desk.on_remote_notice(0, 70.0)
    desk.on_remote_notice(1, 60.0)  # itself
    assert file.read_text() == before and written() == [(0, False)]
    desk.on_remote_notice(2, -5.0)
    desk.on_remote_notice(3, 1e12)
    assert written() == [(0, False), (2, False), (3, False)]
    assert node.peer.told == [] and not node.state.is_preempted
    desk.stop()
    # The next agent goes on with it; garbage of a rank is no notice.
    file.write_text(json.dumps([[1, True, monotonic() + 60, [7], True]]))
    again = PreemptionNotifier(node.state, node.audience, node.desk, node.slots)
    again.start()
    assert node.state.is_preempted
    again.stop()
    file.write_text('[{"node": []}]')
    node.state.is_preempted = False
    again.start()
    assert not node.state.is_preempted
    again.stop()


def running() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


@pytest.mark.parametrize("sent", [False, True])
async def test_an_agent_that_died_before_it_sent_the_signal_has_the_next_one_do_that(
    tmp_path: Path, sent: bool
) -> None:
    node = Node(tmp_path, notices="import sys; sys.stdin.read()")
    file = Path(node.state.config.paths.notices)
    with running() as rank:
        process = node.slots.slots[0].process = Process(rank.pid)
        process.connection, process.is_ready = node.peer, True
        file.write_text(json.dumps([[1, True, monotonic() + 60, [rank.pid], sent]]))
        desk = PreemptionNotifier(node.state, node.audience, node.desk, node.slots)
        desk.start()
        desk.stop()
        assert json.loads(file.read_text())[0][4] is True
        if sent:
            assert rank.poll() is None
            rank.kill()
        assert rank.wait() == (-signal.SIGKILL if sent else -signal.SIGTERM)


# -- in a rank's process ---------------------------------------------------------------------------------------


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Any]:
    """Writes notices for this process, as its node's agent does."""
    file = tmp_path / "notices.json"
    before = signal.getsignal(preemption.NOTICE_SIGNAL)

    def write(*notices: PreemptionNotice) -> None:
        file.write_text(json.dumps([each.to_json() for each in notices]))

    preemption.install_handler(str(file))
    preemption.start_call(in_gang=True)
    yield write
    signal.signal(preemption.NOTICE_SIGNAL, before)
    preemption._notice_file, preemption._callbacks[:], preemption._persistent_callbacks = "", [], 0
    preemption._received_sigterms.clear()


def here(node: int = 0, ends: float | None = None, *, mine: bool = True) -> PreemptionNotice:
    return PreemptionNotice(node, mine, monotonic() + 60 if ends is None else ends, (os.getpid(),) if mine else ())


def test_callbacks_are_called_in_order_with_what_they_require(told: Any, capfd: Any) -> None:
    heard: list[Any] = []

    class Saves:
        def __call__(self, seconds: float, /, into: str = "model.pt", *rest: int, quick: bool = True) -> None:
            heard.append((round(seconds), into, rest))

    on_preempt(lambda: heard.append("first"))
    on_preempt(Saves())
    assert on_preempt(heard.clear) is not None  # C code that requires nothing
    on_preempt(lambda seconds, node: heard.append(node))
    one = here(3, mine=False)
    told(one)
    os.kill(os.getpid(), preemption.NOTICE_SIGNAL)
    assert heard == [3], "in this order: the third has cleared what the first two have said"
    os.kill(os.getpid(), preemption.NOTICE_SIGNAL)
    told(one, here(4, ends=monotonic() - 60, mine=False))  # its time is over
    assert preemption.run_callbacks() and heard == [3], "once each"
    preemption.start_call(in_gang=False)
    told(one, here(5, mine=False))
    assert preemption.run_callbacks() and heard == [3], "other nodes' machines are of no interest to a single task"
    told(one, here(0))
    assert preemption.run_callbacks() and heard == [0]


@pytest.mark.parametrize("callback", [lambda a, b, c: None, lambda *, into: None, "save"], ids=range(3))
def test_what_cannot_be_called_is_refused(callback: Any) -> None:
    before = list(preemption._callbacks)
    with pytest.raises(TypeError, match="on_preempt"):
        on_preempt(callback)
    assert preemption._callbacks == before


def test_what_a_callback_raises_stops_no_other(told: Any, capfd: Any) -> None:
    heard: list[int] = []
    told(here())

    @on_preempt
    def save() -> None:
        raise OSError("the disk is full")

    assert "save, a callback of on_preempt, failed" in (said := capfd.readouterr().err)
    assert "OSError: the disk is full" in said
    preemption._callbacks[:] = []
    told()
    for callback in (save, lambda: os._exit if heard else exit(7), lambda: heard.append(1)):
        on_preempt(callback)
    told(here(ends=monotonic() + 90))
    with pytest.raises(SystemExit) as left:
        preemption.run_callbacks()
    assert (left.value.code, heard) == (7, [1])


def test_the_first_sigterm_that_was_announced_is_the_notice_s(told: Any) -> None:
    assert not preemption.is_preemption_sigterm() and not preemption.is_sigterm_pending()
    told(here(2, mine=False), PreemptionNotice(0, True, monotonic() + 60, (1,)))
    assert not preemption.is_preemption_sigterm() and not preemption.is_sigterm_announced(), "it was started since"
    told(here())
    assert preemption.is_sigterm_pending() and preemption.is_sigterm_announced()
    assert (
        preemption.is_preemption_sigterm()
        and not preemption.is_preemption_sigterm()
        and not preemption.is_sigterm_pending()
    )


def test_callbacks_of_a_call_end_with_it_and_those_of_plugins_stay(told: Any) -> None:
    heard: list[str] = []
    on_preempt(lambda: heard.append("plugin"))
    preemption.keep_callbacks()
    on_preempt(lambda: heard.append("call"))
    preemption.drop_callbacks()
    told(here())
    assert preemption.run_callbacks() and heard == ["plugin"]


def test_garbage_is_no_notice(told: Any, tmp_path: Path) -> None:
    for text in ("", "[", "7", "[7]", '[{"a": 1}]', "[[1, 2]]", "[[0, true, 1, 7, false]]"):
        (tmp_path / "notices.json").write_text(text)
        assert preemption.pending_notices() == []


async def test_nothing_is_started_where_nobody_takes_machines_back(tmp_path: Path) -> None:
    from skyward_core.node.agent.agent_lifetime import Agent

    agent = Agent(Node(tmp_path).state.config)
    agent._start_preemption_monitor()
    agent.on_remote_notice(0, 60.0)
    assert agent._preemption is None and agent.notice_frames() == []
    assert not Path(agent._state.config.paths.notices).exists()
    await asyncio.sleep(0)
