"""Stacks of ranks: parsing, grouping, collectives that ranks wait in, and the command that collects them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward_core.model.thread_stacks import RankStack, StackFrame, Stacks, ThreadStack
from skyward_core.node.stack_dumps_and_profiles import (
    FRAMES_PER_THREAD,
    THREADS,
    PathMapping,
    limit_threads,
    parse_faulthandler,
    parse_py_spy,
)
from skyward_core.pool.rank_inspection_and_debugger import _split_by_run
from skyward_core.protocol.validators import is_stack_frame
from skyward_core.views.pool_view import RunView
from skyward_core.views.stack_groups_and_profiles import (
    as_text,
    describe_location,
    find_collective,
    format_ranges,
    group_stacks,
    short_file,
    stack_as_json,
    summarize_collectives,
    user_frames,
)
from skyward_tui.cli.commands import debug_stacks_profile
from skyward_tui.cli.console_and_log_printer import Console
from tests.support.examples import examples
from tests.support.fake_session import NOW, FakeSession
from tests.support.hostile_text import Acts
from tests.support.some_stacks import C10D, OURS, REDUCING, TORCH, VALIDATING, WORKER, stack

DDP = TORCH + "nn/parallel/distributed.py"
JAX = "/env/lib/python3.12/site-packages/jax/"
LOADING = (("read", "/w/data.py", 7), ("step", "/w/train.py", 28))


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([], ""), ([3], "3"), ([0, 1], "0-1"), ([0, 1, 2, 5], "0-2,5"), ([5, 1, 0, 2, 2], "0-2,5"), ([1, 3, 5], "1,3,5")],
)
def test_ranks_are_formatted_as_ranges(numbers: list[int], shown: str) -> None:
    assert format_ranges(numbers) == shown


@given(st.sets(st.integers(0, 300)))
def test_formatted_ranges_name_exactly_the_given_ranks(ranks: set[int]) -> None:
    named: set[int] = set()
    for part in filter(None, format_ranges(ranks).split(",")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == ranks


@pytest.mark.parametrize(
    ("frames", "named"),
    [
        (REDUCING, "all_reduce (torch)"),
        # The outermost one is what the person's code asked for.
        ([("all_gather", C10D, 1), ("all_gather_object", C10D, 2), ("f", "/w/a.py", 1)], "all_gather_object (torch)"),
        ([("_store_based_barrier", C10D, 1), ("init_process_group", C10D, 2)], "init_process_group (torch)"),
        ([("get_rank", C10D, 1), ("f", "/w/a.py", 1)], "None"),
        # A function that torch has added since.
        ([("all_gather_single", C10D, 1), ("f", "/w/a.py", 1)], "all_gather_single (torch)"),
        (
            [("broadcast", C10D, 1), ("DistributedDataParallel.__init__", DDP, 8), ("Net.__init__", "/w/a.py", 1)],
            "the constructor of DistributedDataParallel (torch)",
        ),
        (
            [("_broadcast_coalesced", DDP, 9), ("DistributedDataParallel.forward", DDP, 8), ("f", "/w/a.py", 1)],
            "DistributedDataParallel.forward (torch)",
        ),
        ([("Net.forward", "/w/a.py", 2), ("DistributedDataParallel.forward", DDP, 8)], "None"),
        ([("write", TORCH + "distributed/checkpoint/filesystem.py", 9), ("f", "/w/a.py", 1)], "None"),
        ([("f", "/w/a.py", 1), ("wrapper", TORCH + "distributed/elastic/errors.py", 9)], "None"),
        ([("_create_c10d_store", TORCH + "distributed/rendezvous.py", 9)], "init_process_group (torch)"),
        ([("Stream.synchronize", TORCH + "cuda/streams.py", 9)], "synchronize (torch)"),
        (
            [("_value", JAX + "_src/array.py", 9), ("__float__", JAX + "_src/array.py", 8)],
            "a computation of all devices (jax)",
        ),
        (
            [("_value", JAX + "_src/array.py", 9), ("sync_global_devices", JAX + "experimental/multihost_utils.py", 8)],
            "sync_global_devices (jax)",
        ),
        (LOADING, "None"),
        # A person's own function of that name is no collective.
        ([("all_reduce", "/w/mine.py", 3)], "None"),
    ],
)  # fmt: skip
def test_collective_operation_is_found_in_stack_frames(frames: Any, named: str) -> None:
    assert str(find_collective([StackFrame(*each) for each in frames])) == named


def test_hang_in_a_collective_is_summarized_in_one_line() -> None:
    ranks = [stack(rank, *REDUCING) for rank in (0, 1, 3)] + [stack(2, *LOADING)]
    stacks = Stacks(0.0, tuple(sorted(ranks, key=lambda each: each.rank)))
    assert summarize_collectives(stacks) == ["ranks 0-1,3 are in all_reduce (torch); rank 2 is not: read, data.py:7"]
    assert [group.ranks for group in group_stacks(stacks)] == ["0-1,3", "2"]
    assert user_frames(stacks.ranks[0].threads[0].frames) == tuple(StackFrame(*each) for each in REDUCING)


def test_ranks_in_a_collective_from_other_lines_are_named() -> None:
    other = (*REDUCING[:2], ("validate", "/w/train.py", 90))
    (line,) = summarize_collectives(Stacks(0.0, (stack(0, *REDUCING), stack(1, *other))))
    assert line == "ranks 0-1 are in all_reduce (torch) (from train.py:31, train.py:90); so is every rank"


def test_returned_dead_and_unreadable_ranks_are_named() -> None:
    silent = stack(2, at="silent", why="node 2 has not answered for 9 s")
    stacks = Stacks(0.0, (stack(0, *REDUCING), stack(1, at="idle"), silent, stack(3, at="gone")), "run", (1,))
    (line,) = summarize_collectives(stacks)
    assert line == (
        "rank 0 is in all_reduce (torch); rank 1 is not: its function has returned; "
        "rank 2 is not: unknown: node 2 has not answered for 9 s; rank 3 is not: no process"
    )


def test_rank_working_for_another_run_is_missing() -> None:
    elsewhere = stack(1, *LOADING, runs=("other",))
    (line,) = summarize_collectives(Stacks(0.0, (stack(0, *REDUCING, runs=("run",)), elsewhere), "run", (1,)))
    assert line == "rank 0 is in all_reduce (torch); rank 1 is not: its function has returned"


def test_rank_in_another_task_of_the_run_is_shown_there() -> None:
    again = stack(1, *LOADING, runs=("run",))
    (line,) = summarize_collectives(Stacks(0.0, (stack(0, *REDUCING, runs=("run",)), again), "run", (1,)))
    assert line == "rank 0 is in all_reduce (torch); rank 1 is not: read, data.py:7"


def test_rank_with_an_idle_task_process_is_not_missing() -> None:
    idle = [replace(stack(rank, at="idle"), number=1) for rank in (0, 1)]
    stacks = Stacks(0.0, (stack(0, *REDUCING), idle[0], stack(1, *LOADING), idle[1]))
    (line,) = summarize_collectives(stacks)
    assert line.startswith("rank 0 is in all_reduce (torch); rank 1 is not: read, data.py:7")
    assert "rank 0 is not" not in line


@pytest.mark.parametrize(
    ("frames", "kind", "nodes", "ranks"),
    [
        (REDUCING, "broadcast", (), [0, 1, 8, 16]),
        (REDUCING, "broadcast", (0, 1), [0, 1, 8]),
        (LOADING, "broadcast", (0, 1), [0, 1, 8]),
        (REDUCING, "gather", (), [0, 1, 8, 16]),
        (LOADING, "gather", (), [0, 8]),
    ],
)
def test_idle_ranks_belong_to_a_waiting_run(frames: Any, kind: Any, nodes: tuple[int, ...], ranks: list[int]) -> None:
    view = RunView("run", "pool", "train", kind, 2, 0.0, nodes=nodes)
    found = [stack(0, *frames, runs=("run",)), stack(1, at="idle"), stack(8, *LOADING, runs=("run",))]
    found.append(stack(16, at="idle"))
    of_run, idle = _split_by_run(found, view)
    stacks = Stacks(0.0, tuple(of_run), "run", (), tuple(idle))
    assert sorted(each.rank for group in group_stacks(stacks) for each in group.stacks) == ranks
    assert [line.rpartition(": ")[2] for line in summarize_collectives(stacks)] == ["idle"] * (frames is REDUCING)


def test_returned_ranks_are_not_asked_for_stacks() -> None:
    """A rank whose function has returned needs no inspection."""
    unread: dict[str, Any] = {"why": "py-spy is not installed on the node", "answers": True}
    stacks = Stacks(0.0, (stack(0, **unread), stack(1, at="idle", **unread)), "run", (1,))
    assert stacks.askable == [0] and [each.rank for each in stacks.unknown] == [0]
    assert [group.state_text for group in group_stacks(stacks)] == [
        "unknown: py-spy is not installed on the node",
        "its function has returned",
    ]


def test_stacks_without_a_collective_have_no_summary() -> None:
    assert summarize_collectives(Stacks(0.0, (stack(0, *LOADING), stack(1, at="idle")))) == []


IMPORTING = (
    ("<module>", TORCH + "nn/functional.py", 2124),
    ("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241),
    ("_find_and_load", "<frozen importlib._bootstrap>", 1176),
    ("<module>", TORCH + "__init__.py", 2254),
    ("_quieten.<locals>.load", "/b/all.zip/skyward_core/runtime/import_hooks_gc_pause_and_alias.py", 72),
    ("_find_and_load", "<frozen importlib._bootstrap>", 1176),
)


def test_importing_rank_is_shown_without_import_machinery() -> None:
    by_pickle = (*IMPORTING, ("subimport", "/env/lib/python3.12/site-packages/cloudpickle/cloudpickle.py", 476))
    own = (*IMPORTING, ("<module>", "/w/train.py", 3))
    assert as_text(Stacks(0.0, (stack(0, *by_pickle), stack(1, *own)))) == [
        "rank 0: importing torch",
        "    <module>  torch/nn/functional.py:2124",
        "    <module>  torch/__init__.py:2254",
        "    subimport  cloudpickle/cloudpickle.py:476",
        "",
        "rank 1: <module>, train.py:3",
        "    <module>  torch/nn/functional.py:2124",
        "    <module>  torch/__init__.py:2254",
        "    <module>  /w/train.py:3",
    ]


def test_location_inside_the_library_is_the_user_call() -> None:
    asking = (("ask", "/b/all.zip/skyward_core/runtime/shared.py", 90), ("step", "/w/train.py", 28))
    (group,) = group_stacks(Stacks(0.0, (stack(0, *asking),)))
    assert describe_location(group) == "step, train.py:28"


def test_call_in_a_thread_is_the_location_of_its_rank() -> None:
    main = ThreadStack("MainThread", tuple(StackFrame(*each) for each in OURS))
    task = ThreadStack("task", (StackFrame("step", "/w/train.py", 3), StackFrame("_run", WORKER, 300)))
    (group,) = group_stacks(Stacks(0.0, (RankStack(0, 0, 0, "running", how="py-spy", threads=(main, task)),)))
    assert group.frames == (StackFrame("step", "/w/train.py", 3),)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (C10D, "torch/distributed/distributed_c10d.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("/home/me/work/pkg/train.py", "pkg/train.py"),
        ("/other/train.py", "/other/train.py"),
        ("/home/me/work/\x1b[2Jx.py", "x.py"),
    ],
)
def test_file_names_in_stacks_are_shortened(file: str, shown: str) -> None:
    assert short_file(file, ("/home/me/work",)) == shown


DUMP = """\
Thread 0x00007f1 [pt_autograd_0] (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 355 in wait

Current thread 0x00007f2 (most recent call first):
  Garbage-collecting
  File "/w/train.py", line 12 in deep
  File "/w/odd", line 1 in name.py", line ??? in <module>
"""


def test_faulthandler_dump_is_parsed_main_thread_first() -> None:
    main, other = parse_faulthandler(DUMP)
    assert main["frames"] == [["deep", "/w/train.py", 12], ["<module>", '/w/odd", line 1 in name.py', 0]]
    assert (other["name"], other["frames"]) == ("pt_autograd_0", [["wait", "/usr/lib/python3.12/threading.py", 355]])


def py_spy_thread(pid: int, thread: int, name: str, *frames: str) -> dict[str, Any]:
    parsed = [{"name": each, "filename": "/w/a.py", "line": 1} for each in frames]
    return {"pid": pid, "os_thread_id": thread, "thread_name": name, "owns_gil": False, "frames": parsed}


def test_py_spy_output_is_parsed_children_last() -> None:
    threads_dumped = [
        py_spy_thread(70, 70, "Main", "child"),
        py_spy_thread(7, 8, "other", "f"),
        py_spy_thread(7, 7, "Main", "g"),
        py_spy_thread(7, 9, "none"),
    ]
    threads = parse_py_spy(json.dumps(threads_dumped).encode(), 7)
    assert [(each["name"], each.get("child", 0)) for each in threads] == [("Main", 0), ("other", 0), ("Main", 70)]


def test_deep_stacks_and_many_threads_are_limited() -> None:
    dumped = [py_spy_thread(7, 7 + number, "t" * 1000, *["f" * 400] * 200) for number in range(70)]
    threads = parse_py_spy(json.dumps(dumped).encode(), 7)
    assert len(threads) == THREADS
    assert all(len(each["frames"]) == sum(FRAMES_PER_THREAD) + 1 for each in threads)
    assert len(limit_threads(threads, 300)) == 2
    assert limit_threads(threads, 1) == threads[:1], "the first one is always told of"


KEYS = st.sampled_from(["pid", "os_thread_id", "thread_name", "frames", "name", "filename", "line", "owns_gil", "x"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda some: st.lists(some) | st.dictionaries(KEYS, some)
)


@settings(max_examples=examples(40))
@given(st.lists(JSON) | JSON)
def test_any_py_spy_output_yields_valid_frames(output: Any) -> None:
    try:
        threads = parse_py_spy(json.dumps(output).encode(), 7)
    except ValueError:
        return
    assert all(is_stack_frame(frame) for thread in threads for frame in thread["frames"])
    assert all(type(thread["name"]) is str and type(thread["gil"]) is bool for thread in threads)


LINES = st.sampled_from([*DUMP.splitlines(), '  File "', '", line 1 in ', "Thread 0x1 (most recent call first):"])


@given(st.lists(LINES | st.text()).map("\n".join))
def test_any_faulthandler_dump_yields_valid_frames(dump: str) -> None:
    assert all(is_stack_frame(frame) for thread in parse_faulthandler(dump) for frame in thread["frames"])


@given(st.text(), st.text(), st.text())
def test_stack_texts_are_sanitized(function: str, file: str, why: str) -> None:
    hostile = stack(0, (function + "\x1b]0;x\x07", file + "\x1b[2J\n", 1))
    stacks = Stacks(0.0, (hostile, stack(1, at="silent", why=why + "\x1b[31m")))
    for threads in (False, True):
        assert all(Acts.on(line.encode()).done <= {"draw"} for line in as_text(stacks, threads=threads))
    assert "\x1b" not in json.dumps(stack_as_json(stacks), ensure_ascii=False)


@pytest.mark.parametrize(
    ("file", "there", "known"),
    [
        ("/n/0/sent-source/abc123/train.py", "/home/me", "train.py"),
        ("/n/0/work/pkg/data.py", "/home/me", "/home/me/pkg/data.py"),
        ("/n/0/work/pkg/data.py", "", "pkg/data.py"),
        ("/n/0/work/pkg/data.py", None, "/n/0/work/pkg/data.py"),
        ("/usr/lib/python3.12/re.py", "/home/me", "/usr/lib/python3.12/re.py"),
    ],
)
def test_file_paths_in_stacks_are_mapped_to_client_paths(file: str, there: str | None, known: str) -> None:
    places = PathMapping("/n/0/sent-source", "/n/0/work", there)
    assert places.to_client_path(file) == known
    assert (
        places.map_raw_profile(f"a (<string>:1);f ({file}:3) 7\n".encode())
        == f"a (<string>:1);f ({known}:3) 7\n".encode()
    )


def test_equal_code_in_different_folders_is_one_stack_group() -> None:
    at = [f"/home/{user}/env/lib/python3.12/site-packages/torch/nn/m.py" for user in ("ann", "bob")]
    stacks = Stacks(0.0, tuple(stack(rank, ("forward", at[rank], 5)) for rank in (0, 1)))
    assert [group.ranks for group in group_stacks(stacks)] == ["0-1"]


# ``skyward-tui stacks`` where ranks cannot be read: nobody is sent a signal without a person's word.


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """Session in which the second of two ranks cannot be read."""
    made = FakeSession()
    unread = stack(1, why="py-spy is not installed on the node", answers=True)
    made.taken = Stacks(NOW, (stack(0, *REDUCING), unread), "r1")
    made.signalled = Stacks(NOW, (stack(1, *VALIDATING, how="signal"),), "r1")

    @contextmanager
    def opened(console: Console) -> Iterator[FakeSession]:
        yield made

    monkeypatch.setattr(debug_stacks_profile, "open_session", opened)
    monkeypatch.setattr(
        debug_stacks_profile, "live_run", lambda session, word: (SimpleNamespace(key="p.1", spec={}), "r1")
    )
    return made


@pytest.mark.parametrize(
    ("terminal", "answer", "signal", "sent"),
    [
        (False, "", False, False),
        (False, "", True, True),
        (True, "", False, False),
        (True, "no", False, False),
        (True, "yes", False, True),
    ],
)
def test_stack_dump_signal_requires_confirmation_or_the_option(
    session: FakeSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    answer: str,
    signal: bool,
    sent: bool,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Console, "is_terminal", terminal)

    def ask(self: Console, question: str) -> str:
        asked.append(question)
        return answer

    monkeypatch.setattr(Console, "ask", ask)
    if signal and session.signalled is not None:
        session.taken = session.signalled
    status = debug_stacks_profile.stacks.function(Console(), "r1", signal=signal, threads=False)
    out, err = capsys.readouterr()
    assert any(each[2] for each in session.asked_stacks) == sent
    assert status == (0 if sent else 1), "who is not known is no success"
    assert bool(asked) == (terminal and not signal)
    if not signal:
        assert "rank 1 cannot be read: py-spy is not installed on the node" in err and "EINTR" in err
        assert ("Pass --signal to allow this" in err) == (not terminal)
    assert ("rank 1 is not: validate, train.py:57" in out) == (sent and not signal)
    assert ("unknown: py-spy is not installed" in out) == (not sent)


def test_exception_that_a_rank_handles_is_named_beside_its_place() -> None:
    leaving = [("destroy_process_group", C10D, 1), ("train", "/w/train.py", 9)]
    handles = "ValueError: bad\x1b]0;title\x07 batch (train.py:7)"
    stacks = Stacks(0.0, (stack(0, *REDUCING), replace(stack(1, *leaving), exception=handles)))
    named = "in destroy_process_group (torch), handling ValueError: bad batch (train.py:7)"
    assert f"rank 1: {named}" in as_text(stacks) and named in as_text(stacks)[0]
    assert stack_as_json(stacks)["ranks"][1]["exception"] == "ValueError: bad batch (train.py:7)"
