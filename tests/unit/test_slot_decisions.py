"""Decision table for the next step of a worker slot."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.node.agent.call_registry import Call
from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.gang_state import Gang
from skyward_core.node.agent.worker_processes import Process
from skyward_core.node.agent.worker_slot import Step, decide_step

CONNECTION = Connection(lambda *_: None, lambda _: None)


@dataclass
class Place:
    number: int = 0
    capacity: int = 1
    queue: deque[Call] = field(default_factory=deque)
    running: dict[tuple[str, int], Call] = field(default_factory=dict)
    process: Process | None = None
    failed_starts: int = 0
    left_epoch: int = -1
    is_task_slot: bool = False
    waits_for_twin: bool = False

    @property
    def has_turn(self) -> bool:
        return not self.waits_for_twin and len(self.running) < self.capacity


class Node:
    def __init__(
        self,
        gang: Gang,
        *,
        closing: bool = False,
        informed: bool = True,
        apart: bool = False,
    ) -> None:
        self.gang = gang
        self.has_separate_tasks = apart
        self.is_closing = closing
        self.env_known, self.gpus_known = asyncio.Event(), asyncio.Event()
        self.gpus_known.set()
        if informed:
            self.env_known.set()


@dataclass
class Apps:
    is_resolved: bool = False


def call(**header: Any) -> Call:
    told: Any = header
    return Call("r1", 0, told, b"", None)


def task(**header: Any) -> Call:
    return call(headless=False, **header)


def of_gang(epoch: int) -> Call:
    return call(gang=True, epoch=epoch)


def process(epoch: int | None = 1, *, greeted: bool = True, **told: Any) -> Process:
    made = Process(1)
    made.epoch = epoch
    made.connection = CONNECTION if greeted else None
    for name, value in told.items():
        setattr(made, name, value)
    return made


def place(*queue: Call, runs: int = 0, **told: Any) -> Place:
    return Place(queue=deque(queue), running={("r0", i): call() for i in range(runs)}, **told)


WHOLE, BROKEN = Gang(epoch=1), Gang(epoch=1, broken="a rank died")
HOOKED, NONE = Gang(epoch=1, broken="a rank died", hooks=True), Gang()
APPS = Gang(epoch=2, apps=True)
HOOKS = Gang(epoch=1, hooks=True)
LONE: dict[str, Any] = {"number": 1, "is_task_slot": True}
SPENT, SPENT_HOOKED = Gang(epoch=1, spent="a script ran"), Gang(epoch=1, spent="a script ran", hooks=True)

ROWS: dict[str, tuple[Step, Any, Any, Any]] = {
    "no process": ("start", place(), Node(NONE), Apps()),
    "no process, the agent ends": ("wait", place(task()), Node(NONE, closing=True), Apps()),
    "no process, its secrets are not known": ("wait", place(task()), Node(NONE, informed=False), Apps()),
    "no process, the last failed, nothing waits": ("wait", place(failed_starts=1), Node(NONE), Apps()),
    "no process, the last failed, a call waits": ("start", place(task(), failed_starts=1), Node(NONE), Apps()),
    "no process, the last one's calls are not told": ("wait", place(task(), runs=1), Node(WHOLE), Apps()),
    "it has not greeted": ("wait", place(task(), process=process(greeted=False)), Node(WHOLE), Apps()),
    "it is on its way out": ("wait", place(task(), process=process(kill_reason="so")), Node(WHOLE), Apps()),
    "its plugins failed": ("send away", place(process=process(is_unusable=True)), Node(WHOLE), Apps()),
    "its plugins failed, a call runs": ("wait", place(runs=1, process=process(is_unusable=True)), Node(WHOLE), Apps()),
    "its epoch is over": ("replace", place(process=process(1)), Node(Gang(epoch=2)), Apps()),
    "its epoch is over, a call runs": ("wait", place(runs=1, process=process(1)), Node(Gang(epoch=2)), Apps()),
    "its gang is broken": ("replace", place(process=process(1)), Node(BROKEN), Apps()),
    "its epoch is over, it is no rank's first": (
        "set up", place(process=process(1), number=1), Node(Gang(epoch=2)), Apps(),
    ),
    "it is fresh": ("set up", place(process=process(None)), Node(WHOLE), Apps()),
    "it is fresh, plugins are not around the node yet": ("wait", place(process=process(None)), Node(APPS), Apps()),
    "it is fresh, plugins are around the node": ("set up", place(process=process(None)), Node(APPS), Apps(True)),
    "it is fresh, there is no gang": ("look around", place(process=process(None)), Node(NONE), Apps()),
    "nothing to do": ("look around", place(process=process()), Node(WHOLE), Apps()),
    "nothing waits, a call runs": ("wait", place(runs=1, process=process()), Node(WHOLE), Apps()),
    "it is busy": ("wait", place(task(), runs=1, process=process()), Node(WHOLE), Apps()),
    "it has threads to spare": (
        "hand over", place(task(), runs=1, capacity=2, process=process()), Node(WHOLE), Apps(),
    ),
    "a call of its gang": ("hand over", place(of_gang(1), process=process()), Node(WHOLE), Apps()),
    "a call of another gang": ("hand back", place(of_gang(2), process=process()), Node(WHOLE), Apps()),
    "a call of a gang that broke": ("hand back", place(of_gang(1), process=process(None)), Node(BROKEN), Apps()),
    "a call of a gang that is spent, its rank has not begun": (
        "hand over", place(of_gang(1), process=process()), Node(SPENT), Apps(),
    ),
    "the same, its process starts late": ("set up", place(of_gang(1), process=process(None)), Node(SPENT), Apps()),
    "a call behind the one that spent it": (
        "hand back", place(of_gang(1), process=process(None), left_epoch=1), Node(SPENT), Apps(),
    ),
    "its gang is spent": ("look around", place(process=process(None), left_epoch=1), Node(SPENT), Apps()),
    "a task, the gang is spent": ("hand over", place(task(), process=process(None), left_epoch=1), Node(SPENT), Apps()),
    "a task, the gang with plugins is spent": (
        "wait", place(task(), process=process(None), left_epoch=1), Node(SPENT_HOOKED), Apps(),
    ),
    "ranks stand alone": ("hand over", place(of_gang(9), process=process()), Node(Gang(epoch=1, alone=True)), Apps()),
    "a call before any gang": ("wait", place(task(), process=process(None)), Node(NONE), Apps()),
    "a call where nobody can form one": (
        "hand over", place(call(headless=True), process=process(None)), Node(NONE), Apps(),
    ),
    "a task, the gang is broken": ("hand over", place(task(), process=process(None)), Node(BROKEN), Apps()),
    "a task, the gang with plugins is broken": ("wait", place(task(), process=process(None)), Node(HOOKED), Apps()),
    "the same, it is no rank's first": (
        "set up", place(task(), process=process(None), number=1), Node(HOOKED), Apps(),
    ),
    "tasks have another process": ("wait", place(process=process(None)), Node(HOOKS, apart=True), Apps()),
    "the same, a broadcast waits": (
        "set up", place(of_gang(1), process=process(None)), Node(HOOKS, apart=True), Apps(),
    ),
    "the other process of the rank has its turn": (
        "wait", place(of_gang(1), process=process(), waits_for_twin=True), Node(HOOKS, apart=True), Apps(),
    ),
    "the process for tasks, there is no task": ("wait", place(**LONE), Node(HOOKS, apart=True), Apps()),
    "the process for tasks, there is one": ("start", place(task(), **LONE), Node(HOOKS, apart=True), Apps()),
    "the same, it is fresh": ("set up", place(task(), process=process(None), **LONE), Node(HOOKED, apart=True), Apps()),
    "the same, nobody knows the plugins": (
        "wait", place(task(), process=process(None), **LONE), Node(NONE, apart=True), Apps(),
    ),
    "the same, the gang has broken since": (
        "hand over", place(task(), process=process(1), **LONE), Node(HOOKED, apart=True), Apps(),
    ),
    "the same, there is another gang": (
        "hand over", place(task(), process=process(1), **LONE),
        Node(Gang(epoch=2, hooks=True), apart=True), Apps(),
    ),
    "the same, all processes are to be new": (
        "replace", place(task(), process=process(1), **LONE),
        Node(Gang(epoch=2, renewed=2), apart=True), Apps(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_slot_step_follows_the_decision_table(row: str) -> None:
    step, slot, node, apps = ROWS[row]
    assert decide_step(slot, node, apps) == step


def test_decision_table_covers_every_step() -> None:
    assert {row[0] for row in ROWS.values()} == set(get_args(Step))


@given(
    epoch=st.sampled_from([None, 1, 2]),
    gang=st.builds(
        Gang,
        epoch=st.sampled_from([0, 1, 2]),
        broken=st.sampled_from(["", "so"]),
        spent=st.sampled_from(["", "so"]),
        hooks=st.booleans(),
        apps=st.booleans(),
        alone=st.booleans(),
    ),
    queue=st.lists(st.one_of(st.builds(task), st.builds(of_gang, st.integers(1, 2))), max_size=2),
    runs=st.integers(0, 2),
    flags=st.fixed_dictionaries({"greeted": st.booleans(), "kill_reason": st.sampled_from(["", "so"])}),
    number=st.integers(0, 1),
    left=st.sampled_from([-1, 1, 2]),
    settled=st.booleans(),
)
def test_call_is_never_given_to_an_unsuitable_process(
    epoch: int | None,
    gang: Gang,
    queue: list[Call],
    runs: int,
    flags: dict[str, Any],
    number: int,
    left: int,
    settled: bool,
) -> None:
    slot: Any = place(*queue, runs=runs, process=process(epoch, **flags), number=number, left_epoch=left)
    node: Any = Node(gang)
    apps: Any = Apps(settled)
    step = decide_step(slot, node, apps)
    if step == "hand over":
        first = slot.queue[0]
        assert flags["greeted"] and not flags["kill_reason"] and runs < slot.capacity
        if first.is_gang_call and not gang.is_standalone:
            assert not gang.broken_reason and first.header["epoch"] == gang.epoch == epoch != left
    if step in ("replace", "send away"):
        assert not runs, "a process that runs a call is not ended for another's sake"
