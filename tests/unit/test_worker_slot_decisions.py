"""Decision table for the next step of a worker slot."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.node.agent.call_registry import Call, CallRegistry
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.gang_state import Gang
from skyward_core.node.agent.worker_processes import Process
from skyward_core.node.agent.worker_slot_queue_and_process import Step, decide_step

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
        self, gang: Gang, *, closing: bool = False, informed: bool = True, apart: bool = False, active: int = 1
    ) -> None:
        self.gang = gang
        self.registry = CallRegistry()
        self.registry.active = active
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
    fields: Any = header
    return Call("r1", 0, fields, b"", None)


def task(**header: Any) -> Call:
    return call(headless=False, **header)


def gang_call(epoch: int) -> Call:
    return call(gang=True, epoch=epoch)


def process(epoch: int | None = 1, *, greeted: bool = True, **fields: Any) -> Process:
    made = Process(1)
    made.epoch = epoch
    made.connection = CONNECTION if greeted else None
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def place(*queue: Call, runs: int = 0, **fields: Any) -> Place:
    return Place(queue=deque(queue), running={("r0", i): call() for i in range(runs)}, **fields)


WHOLE, BROKEN = Gang(epoch=1), Gang(epoch=1, broken="a rank died")
HOOKED, NONE = Gang(epoch=1, broken="a rank died", hooks=True), Gang()
APPS = Gang(epoch=2, apps=True)
HOOKS = Gang(epoch=1, hooks=True)
LONE: dict[str, Any] = {"number": 1, "is_task_slot": True}
SPENT, SPENT_HOOKED = Gang(epoch=1, spent="a script ran"), Gang(epoch=1, spent="a script ran", hooks=True)

ROWS: dict[str, tuple[Step, Any, Any, Any]] = {
    "no worker process": ("start", place(), Node(NONE), Apps()),
    "no worker process while the agent closes": ("wait", place(task()), Node(NONE, closing=True), Apps()),
    "no worker process before the environment is known": ("wait", place(task()), Node(NONE, informed=False), Apps()),
    "failed worker start and an empty queue": ("wait", place(failed_starts=1), Node(NONE), Apps()),
    "failed worker start and a waiting call": ("start", place(task(), failed_starts=1), Node(NONE), Apps()),
    "ended worker process with unreported calls": ("wait", place(task(), runs=1), Node(WHOLE), Apps()),
    "worker process before its hello": ("wait", place(task(), process=process(greeted=False)), Node(WHOLE), Apps()),
    "worker process being killed": ("wait", place(task(), process=process(kill_reason="so")), Node(WHOLE), Apps()),
    "failed plugin entry": ("send away", place(process=process(is_unusable=True)), Node(WHOLE), Apps()),
    "failed plugin entry during a call": (
        "wait", place(runs=1, process=process(is_unusable=True)), Node(WHOLE), Apps(),
    ),
    "worker process of an earlier epoch": ("replace", place(process=process(1)), Node(Gang(epoch=2)), Apps()),
    "worker process of an earlier epoch during a call": (
        "wait", place(runs=1, process=process(1)), Node(Gang(epoch=2)), Apps(),
    ),
    "idle worker process of a broken gang": ("replace", place(process=process(1)), Node(BROKEN), Apps()),
    "later slot of a rank in an earlier epoch": (
        "set up", place(process=process(1), number=1), Node(Gang(epoch=2)), Apps(),
    ),
    "new worker process": ("set up", place(process=process(None)), Node(WHOLE), Apps()),
    "new worker process before the plugin process is entered": (
        "wait", place(process=process(None)), Node(APPS), Apps(),
    ),
    "new worker process after the plugin process is entered": (
        "set up", place(process=process(None)), Node(APPS), Apps(True),
    ),
    "new worker process without a gang": ("look around", place(process=process(None)), Node(NONE), Apps()),
    "idle worker process": ("look around", place(process=process()), Node(WHOLE), Apps()),
    "idle worker process on an idle node": ("wait", place(process=process()), Node(WHOLE, active=0), Apps()),
    "running call and an empty queue": ("wait", place(runs=1, process=process()), Node(WHOLE), Apps()),
    "waiting task without a free thread": ("wait", place(task(), runs=1, process=process()), Node(WHOLE), Apps()),
    "waiting task with a free thread": (
        "hand over", place(task(), runs=1, capacity=2, process=process()), Node(WHOLE), Apps(),
    ),
    "call of the current gang": ("hand over", place(gang_call(1), process=process()), Node(WHOLE), Apps()),
    "call of another gang": ("hand back", place(gang_call(2), process=process()), Node(WHOLE), Apps()),
    "call of a broken gang": ("hand back", place(gang_call(1), process=process(None)), Node(BROKEN), Apps()),
    "call of a spent gang on an unused rank": (
        "hand over", place(gang_call(1), process=process()), Node(SPENT), Apps(),
    ),
    "call of a spent gang on a new worker process": (
        "set up", place(gang_call(1), process=process(None)), Node(SPENT), Apps(),
    ),
    "call of a spent gang after a call on its rank": (
        "hand back", place(gang_call(1), process=process(None), left_epoch=1), Node(SPENT), Apps(),
    ),
    "idle new worker process after its gang is spent": (
        "look around", place(process=process(None), left_epoch=1), Node(SPENT), Apps(),
    ),
    "task after the gang is spent": (
        "hand over", place(task(), process=process(None), left_epoch=1), Node(SPENT), Apps(),
    ),
    "task after a gang with plugins is spent": (
        "wait", place(task(), process=process(None), left_epoch=1), Node(SPENT_HOOKED), Apps(),
    ),
    "call on a standalone rank": (
        "hand over", place(gang_call(9), process=process()), Node(Gang(epoch=1, alone=True)), Apps(),
    ),
    "task before the first gang": ("wait", place(task(), process=process(None)), Node(NONE), Apps()),
    "detached call without a gang": (
        "hand over", place(call(headless=True), process=process(None)), Node(NONE), Apps(),
    ),
    "task in a broken gang": ("hand over", place(task(), process=process(None)), Node(BROKEN), Apps()),
    "task in a broken gang with plugins": ("wait", place(task(), process=process(None)), Node(HOOKED), Apps()),
    "task on a later slot in a broken gang with plugins": (
        "set up", place(task(), process=process(None), number=1), Node(HOOKED), Apps(),
    ),
    "rank slot with a separate task process": ("wait", place(process=process(None)), Node(HOOKS, apart=True), Apps()),
    "rank slot with a separate task process and a waiting broadcast": (
        "set up", place(gang_call(1), process=process(None)), Node(HOOKS, apart=True), Apps(),
    ),
    "gang call during the turn of the task process": (
        "wait", place(gang_call(1), process=process(), waits_for_twin=True), Node(HOOKS, apart=True), Apps(),
    ),
    "task slot without a task": ("wait", place(**LONE), Node(HOOKS, apart=True), Apps()),
    "task slot with a task": ("start", place(task(), **LONE), Node(HOOKS, apart=True), Apps()),
    "new task process in a broken gang with plugins": (
        "set up", place(task(), process=process(None), **LONE), Node(HOOKED, apart=True), Apps(),
    ),
    "new task process without a gang": (
        "wait", place(task(), process=process(None), **LONE), Node(NONE, apart=True), Apps(),
    ),
    "task process after its gang broke": (
        "hand over", place(task(), process=process(1), **LONE), Node(HOOKED, apart=True), Apps(),
    ),
    "task process after a newer gang": (
        "hand over", place(task(), process=process(1), **LONE),
        Node(Gang(epoch=2, hooks=True), apart=True), Apps(),
    ),
    "task process after a renewal of all processes": (
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
    queue=st.lists(st.one_of(st.builds(task), st.builds(gang_call, st.integers(1, 2))), max_size=2),
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
