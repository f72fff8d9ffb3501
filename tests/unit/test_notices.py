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
from skyward_core.node.agent.preemption_notices import NoticeDesk
from skyward_core.node.agent.worker_processes import Process
from skyward_core.runtime import preemption
from skyward_core.runtime.preemption import Notice, on_preempt
from tests.support.agent_parts import Node
from tests.support.waiting import until

SAYS = """
import sys
for line in open({path!r}):
    sys.stdout.write(line)
sys.stdout.flush()
sys.stdin.read()
"""


def node_that_hears(folder: Path, *lines: str) -> tuple[Node, NoticeDesk]:
    said = folder / "said"
    said.write_text("".join(f"{line}\n" for line in lines))
    node = Node(folder, notices=SAYS.format(path=str(said)))
    desk = NoticeDesk(node.state, node.audience, node.desk, node.slots)
    desk.begin()
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
    assert node.state.is_taken_back and list(node.state.notices) == ["terminate", "rebalance"]
    desk.end()


async def test_a_program_that_ends_or_never_stops_talking_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption_notices, "PAUSES", (0.01, 0.02))
    starts = tmp_path / "starts"
    for number, text in enumerate(("raise SystemExit(3)", "while True: print('x' * 9999, end='')")):
        folder = tmp_path / str(number)
        folder.mkdir()
        node = Node(folder, notices=f"open({str(starts)!r}, 'a').write('{number}')\n{text}")
        desk = NoticeDesk(node.state, node.audience, node.desk, node.slots)
        desk.begin()
        await until(lambda: starts.exists() and starts.read_text().count(str(number)) > 3)  # noqa: B023
        desk.end()
        assert len(node.peer.told) == 1, "it is said once"
        assert not node.state.is_taken_back


async def test_ranks_are_told_of_other_nodes_once_as_long_as_it_counts(tmp_path: Path) -> None:
    node, desk = node_that_hears(tmp_path)
    file = Path(node.state.config.paths.notices)

    def written() -> list[tuple[int, bool]]:
        return [(each[0], each[1]) for each in json.loads(file.read_text())]

    desk.warn(0, 60.0)
    before = file.read_text()
    desk.warn(0, 70.0)
    desk.warn(1, 60.0)  # itself
    assert file.read_text() == before and written() == [(0, False)]
    desk.warn(2, -5.0)
    desk.warn(3, 1e12)
    assert written() == [(0, False), (2, False), (3, False)]
    assert node.peer.told == [] and not node.state.is_taken_back
    desk.end()
    # The next agent goes on with it; garbage of a rank is no notice.
    file.write_text(json.dumps([[1, True, monotonic() + 60, [7], True]]))
    again = NoticeDesk(node.state, node.audience, node.desk, node.slots)
    again.begin()
    assert node.state.is_taken_back
    again.end()
    file.write_text('[{"node": []}]')
    node.state.is_taken_back = False
    again.begin()
    assert not node.state.is_taken_back
    again.end()


def running() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


@pytest.mark.parametrize("sent", [False, True])
async def test_an_agent_that_died_before_it_sent_the_signal_has_the_next_one_do_that(
    tmp_path: Path, sent: bool
) -> None:
    node = Node(tmp_path, notices="import sys; sys.stdin.read()")
    file = Path(node.state.config.paths.notices)
    with running() as rank:
        process = node.slots.all[0].process = Process(rank.pid)
        process.connection, process.ready = node.peer, True
        file.write_text(json.dumps([[1, True, monotonic() + 60, [rank.pid], sent]]))
        desk = NoticeDesk(node.state, node.audience, node.desk, node.slots)
        desk.begin()
        desk.end()
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
    before = signal.getsignal(preemption.NEWS)

    def write(*notices: Notice) -> None:
        file.write_text(json.dumps([each.to_json() for each in notices]))

    preemption.hear(str(file))
    preemption.begin(in_gang=True)
    yield write
    signal.signal(preemption.NEWS, before)
    preemption._file, preemption._registered[:], preemption._kept = "", [], 0
    preemption._signalled.clear()


def here(node: int = 0, ends: float | None = None, *, mine: bool = True) -> Notice:
    return Notice(node, mine, monotonic() + 60 if ends is None else ends, (os.getpid(),) if mine else ())


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
    os.kill(os.getpid(), preemption.NEWS)
    assert heard == [3], "in this order: the third has cleared what the first two have said"
    os.kill(os.getpid(), preemption.NEWS)
    told(one, here(4, ends=monotonic() - 60, mine=False))  # its time is over
    assert preemption.tell() and heard == [3], "once each"
    preemption.begin(in_gang=False)
    told(one, here(5, mine=False))
    assert preemption.tell() and heard == [3], "other nodes' machines are of no interest to a single task"
    told(one, here(0))
    assert preemption.tell() and heard == [0]


@pytest.mark.parametrize("callback", [lambda a, b, c: None, lambda *, into: None, "save"], ids=range(3))
def test_what_cannot_be_called_is_refused(callback: Any) -> None:
    before = list(preemption._registered)
    with pytest.raises(TypeError, match="on_preempt"):
        on_preempt(callback)
    assert preemption._registered == before


def test_what_a_callback_raises_stops_no_other(told: Any, capfd: Any) -> None:
    heard: list[int] = []
    told(here())

    @on_preempt
    def save() -> None:
        raise OSError("the disk is full")

    assert "save, a callback of on_preempt, failed" in (said := capfd.readouterr().err)
    assert "OSError: the disk is full" in said
    preemption._registered[:] = []
    told()
    for callback in (save, lambda: os._exit if heard else exit(7), lambda: heard.append(1)):
        on_preempt(callback)
    told(here(ends=monotonic() + 90))
    with pytest.raises(SystemExit) as left:
        preemption.tell()
    assert (left.value.code, heard) == (7, [1])


def test_the_first_sigterm_that_was_announced_is_the_notice_s(told: Any) -> None:
    assert not preemption.comes_with_notice() and not preemption.is_awaited()
    told(here(2, mine=False), Notice(0, True, monotonic() + 60, (1,)))
    assert not preemption.comes_with_notice() and not preemption.announced_here(), "it was started since"
    told(here())
    assert preemption.is_awaited() and preemption.announced_here()
    assert preemption.comes_with_notice() and not preemption.comes_with_notice() and not preemption.is_awaited()


def test_callbacks_of_a_call_end_with_it_and_those_of_plugins_stay(told: Any) -> None:
    heard: list[str] = []
    on_preempt(lambda: heard.append("plugin"))
    preemption.keep()
    on_preempt(lambda: heard.append("call"))
    preemption.forget()
    told(here())
    assert preemption.tell() and heard == ["plugin"]


def test_garbage_is_no_notice(told: Any, tmp_path: Path) -> None:
    for text in ("", "[", "7", "[7]", '[{"a": 1}]', "[[1, 2]]", "[[0, true, 1, 7, false]]"):
        (tmp_path / "notices.json").write_text(text)
        assert preemption.pending() == []


async def test_nothing_is_started_where_nobody_takes_machines_back(tmp_path: Path) -> None:
    from skyward_core.node.agent.agent import Agent

    agent = Agent(Node(tmp_path).state.config)
    agent._hear_of_the_end()
    agent.warn(0, 60.0)
    assert agent._notices is None and agent.notices() == []
    assert not Path(agent._state.config.paths.notices).exists()
    await asyncio.sleep(0)
