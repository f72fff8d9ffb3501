"""Grouping of ranks with equal stacks, detection of collectives in stacks, and profiles."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

from skyward_core.model.thread_stacks import RankStack, StackFrame, Stacks, ThreadStack
from skyward_core.util import terminal_safe_text
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views import group_pairs

MAX_SHOWN = 3  # maximum number of groups of ranks listed on one line

# How collectives are recognized in stacks: end of the file's path, library, and names of functions (empty for all).
_JAX = "assert_equal broadcast_one_to_all process_allgather reached_preemption_sync_point sync_global_devices"
_C10D = "torch/distributed/distributed_c10d.py"
_DDP = "torch/nn/parallel/distributed.py"
_FSDP = "torch/distributed/fsdp/fully_sharded_data_parallel.py"
_CONSTRUCTORS = {_DDP: "DistributedDataParallel", _FSDP: "FullyShardedDataParallel"}
_COLLECTIVES: tuple[tuple[str, str, frozenset[str]], ...] = (
    (_C10D, "torch", frozenset()),
    (_DDP, "torch", frozenset({"__init__"})),
    (_FSDP, "torch", frozenset({"__init__"})),
    ("torch/distributed/_functional_collectives.py", "torch", frozenset({"wait_tensor"})),
    ("torch/distributed/rendezvous.py", "torch", frozenset()),
    ("jax/experimental/multihost_utils.py", "jax", frozenset(_JAX.split(" "))),
    ("jax/_src/distributed.py", "jax", frozenset({"initialize", "shutdown"})),
    ("jax/_src/xla_bridge.py", "jax", frozenset({"_init_backend"})),
)
# Prefixes of functions of torch.distributed that need no other rank.
_LOCAL = ("get_", "is_", "supports_")
# torch.distributed and DDP call native collectives from all of their files except these.
_NATIVE = re.compile(
    r"/torch/(distributed/(?!distributed_c10d|checkpoint/|elastic/|launcher/|rpc/|run\.py)"
    r"|nn/parallel/distributed\.py).*"
)
# Functions that wait for a GPU or another device. They may wait for a collective that is queued on the device.
_WAITS: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("torch/cuda/__init__.py", "torch", frozenset({"synchronize"})),
    ("torch/cuda/streams.py", "torch", frozenset({"synchronize"})),
    ("torch/autograd/graph.py", "torch", frozenset({"_engine_run_backward"})),
    (
        "jax/_src/array.py",
        "jax",
        frozenset({"_value", "block_until_ready", "__array__", "__float__", "__int__", "item"}),
    ),
    ("jax/_src/api.py", "jax", frozenset({"block_until_ready", "device_get"})),
    ("jax/_src/interpreters/pxla.py", "jax", frozenset({"__call__"})),
    ("jax/_src/pjit.py", "jax", frozenset({"cache_miss"})),
)
_PROGRAM = "a computation of all devices"


class Collective(NamedTuple):
    """A collective operation of several ranks, such as an all-reduce, found in a stack.

    Attributes:
        name: Name of the function.
        library: "torch" or "jax".
        is_named: Whether the stack names the collective. If not, the rank waits for device work that may be local.
    """

    name: str
    library: str
    is_named: bool = True

    def __str__(self) -> str:
        return f"{self.name} ({self.library})"


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Processes with equal stacks.

    Attributes:
        stacks: The stacks. The first one represents all.
        frames: Frames of the user's code and its callees, innermost first.
        state_text: Description of the processes if there are no frames.
        collective: The collective that the ranks are in, if any.
    """

    stacks: tuple[RankStack, ...]
    frames: tuple[StackFrame, ...]
    state_text: str
    collective: Collective | None

    @property
    def ranks(self) -> str:
        return format_ranges(each.rank for each in self.stacks)


def format_ranges(numbers: Iterable[int], prefix: str = "") -> str:
    """Format numbers as ranges, for example ``0-2,5`` for 0, 1, 2 and 5; with the prefix "r" as ``r0-2, r5``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    ranges = (f"{prefix}{first}" if first == last else f"{prefix}{first}-{last}" for first, last in parts)
    return (", " if prefix else ",").join(ranges)


def user_thread(stack: RankStack) -> ThreadStack | None:
    """Return the thread that runs the user's function: a task thread or the main thread."""
    own = [thread for thread in stack.threads if not thread.child]
    for thread in own:
        if (thread is own[0] or thread.name == "task") and user_frames(thread.frames):
            return thread
    return own[0] if own else None


def user_frames(frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """Return the frames of the user's function and its callees, without the frames of this library that call it.

    Frames of the import system are omitted, as in Python's own tracebacks.
    """
    selected = list(frames)
    while selected and _is_ours(selected[-1]):
        selected.pop()
    return tuple(each for each in selected if not _is_of_imports(each))


def _is_of_imports(frame: StackFrame) -> bool:
    return frame.file.startswith("<frozen importlib.") or frame.file.endswith(
        "skyward_core/runtime/import_hooks_gc_pause_and_alias.py"
    )


def _is_ours(frame: StackFrame) -> bool:
    if _is_of_skyward(frame.file):
        return True
    if frame.file.endswith("/threading.py"):
        return _name(frame) in ("_bootstrap", "_bootstrap_inner", "run")
    return (
        frame.file in ("<string>", "<frozen runpy>")
        or frame.file.endswith("/runpy.py")
        or (not frame.file and frame.line == 0)
    )


def find_collective(frames: Sequence[StackFrame]) -> Collective | None:
    """Return the collective that a stack is in; None if there is none.

    This is the outermost collective, which the user's code called.
    """
    named = [
        Collective(_collective_name(each), library)
        for each in frames
        if (library := _match_library(each, _COLLECTIVES))
    ]
    if named:
        return named[-1]
    if frames and is_library(frames[0].file) and _NATIVE.search(frames[0].file):
        inner = [each for each in takewhile(lambda each: is_library(each.file), frames) if _NATIVE.search(each.file)]
        return Collective((inner or frames)[-1].function, "torch")
    waits = [(each, library) for each in frames if (library := _match_library(each, _WAITS))]
    if not waits:
        return None
    frame, library = waits[-1]
    return Collective(_PROGRAM if library == "jax" else _collective_name(frame), library, is_named=False)


def _collective_name(frame: StackFrame) -> str:
    if frame.file.endswith("rendezvous.py"):
        return "init_process_group"
    name = _name(frame)
    for ending, kind in _CONSTRUCTORS.items():
        if name == "__init__" and frame.file.endswith(ending):
            return f"the constructor of {kind}"
    return {"_engine_run_backward": "backward", "_init_backend": "the start of all devices"}.get(name, name)


def _name(frame: StackFrame) -> str:
    """Return a function's name without the class name that py-spy adds."""
    return frame.function.rpartition(".")[2]


def _match_library(frame: StackFrame, table: Sequence[tuple[str, str, frozenset[str]]]) -> str:
    for ending, library, functions in table:
        if frame.file.endswith(ending) and (not functions or _name(frame) in functions):
            is_local = ending == _C10D and _name(frame).lstrip("_").startswith(_LOCAL)
            return "" if is_local else library
    return ""


def merge_stacks(first: Stacks, second: Stacks) -> Stacks:
    """Return stacks, with those of ranks that were queried again replaced by their second stacks."""
    new = {(each.rank, each.number): each for each in second.ranks}
    ranks = tuple(new.get((each.rank, each.number), each) for each in first.ranks)
    return Stacks(second.at, ranks, second.run, second.returned, first.idle)


def group_stacks(stacks: Stacks) -> list[StackGroup]:
    """Group processes with equal stacks: the group with the most ranks first, unknown stacks last.

    Idle ranks outside the run are included if ranks of the run wait for other ranks.
    """
    groups = _group_equal(stacks, stacks.ranks)
    if stacks.idle and any(group.collective is not None and group.collective.is_named for group in groups):
        groups = _group_equal(stacks, (*stacks.ranks, *stacks.idle))
    return groups


def _group_equal(stacks: Stacks, ranks: Iterable[RankStack]) -> list[StackGroup]:
    found: dict[object, list[RankStack]] = {}
    frames: dict[object, tuple[StackFrame, ...]] = {}
    for stack in ranks:
        thread = None if _has_returned(stack, stacks) else user_thread(stack)
        own = user_frames(thread.frames) if thread is not None else ()
        # Compare files by short paths, because the same code may have different paths on different nodes.
        key: object = tuple(each._replace(file=short_file(each.file)) for each in own) or _describe_state(stack, stacks)
        found.setdefault(key, []).append(stack)
        frames[key] = own
    groups = [
        StackGroup(tuple(some), frames[key], "" if frames[key] else str(key), find_collective(frames[key]))
        for key, some in found.items()
    ]
    return sorted(groups, key=lambda group: (not group.frames, -len(group.stacks), group.stacks[0].rank))


def _has_returned(stack: RankStack, stacks: Stacks) -> bool:
    """Check whether a rank has finished its part of the run. The rank may already work for another run."""
    return bool(stacks.run) and stack.rank in stacks.returned and stacks.run not in stack.runs


def _describe_state(stack: RankStack, stacks: Stacks) -> str:
    if _has_returned(stack, stacks) and stack.at != "gone":
        return "its function has returned"
    if stack.why:
        return f"unknown: {stack.why}" if stack.at != "gone" else stack.why
    return {
        "gone": "no process",
        "starting": "starting Python",
        "ending": "stopping",
        "running": "entering or leaving its function",
    }.get(stack.at, "idle")


def summarize_collectives(stacks: Stacks) -> list[str]:
    """Describe each collective in one line: the ranks in it, and where all other ranks are.

    The list is empty if no rank is in a collective.
    """
    every = group_stacks(stacks)
    inside = group_pairs((group.collective, group) for group in every if group.collective is not None)
    lines = []
    for collective, some in inside.items():
        inside_it = {stack.rank for group in some for stack in group.stacks}
        ranks = format_ranges(inside_it)
        # Omit ranks that are in the collective with another process: a rank may have further, idle processes for tasks.
        away_from = [(group, [each for each in group.stacks if each.rank not in inside_it]) for group in every]
        others = [replace(each, stacks=tuple(missing)) for each, missing in away_from if each not in some and missing]
        away = "; ".join(f"{_be(group.ranks)} not: {describe_location(group)}" for group in others[:MAX_SHOWN])
        if len(others) > MAX_SHOWN:
            away += f"; {_be(format_ranges(s.rank for g in others[MAX_SHOWN:] for s in g.stacks))} not either"
        lines.append(f"{_be(ranks)} in {collective}{_call_sites(some)}; {away or 'so is every rank'}")
    return lines


def _call_sites(some: Sequence[StackGroup]) -> str:
    """Return the lines of user code from which ranks called a collective, if they differ.

    If they differ, the calls may not match each other.
    """
    calls = dict.fromkeys(_frame_location(frame) for group in some if (frame := calling_frame(group.frames)))
    return f" (from {', '.join(list(calls)[:MAX_SHOWN])})" if len(calls) > 1 else ""


def describe_location(group: StackGroup) -> str:
    """Describe in a few words where the ranks of a group are, and which exceptions they handle there."""
    handled = list(dict.fromkeys(sanitize_line(each.exception) for each in group.stacks if each.exception))
    return _location(group) + (f", handling {'; '.join(handled[:MAX_SHOWN])}" if handled else "")


def _location(group: StackGroup) -> str:
    if not group.frames:
        return group.state_text
    if group.collective is not None:
        return f"in {group.collective}"
    frame = calling_frame(group.frames)
    if frame is None and (module := _imported_package(group.frames)):
        return f"importing {module}"
    frame = frame or group.frames[0]
    return f"{sanitize_line(frame.function)}, {_frame_location(frame)}"


def _imported_package(frames: Sequence[StackFrame]) -> str:
    """Return the package that the outermost import statement in a stack is importing; "" if there is none."""
    file = next((each.file for each in reversed(frames) if each.function == "<module>"), "")
    return short_file(file).partition("/")[0].removesuffix(".py")


def calling_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame of user code in a stack."""
    return next((each for each in frames if each.file and not is_library(each.file)), None)


def is_library(file: str) -> bool:
    """Check whether a stack frame's code belongs to an installed package, to Python or to skyward."""
    return (
        _is_of_skyward(file)
        or "site-packages/" in file
        or "dist-packages/" in file
        or "/lib/python3." in file
        or file.startswith("<frozen ")
    )


def _is_of_skyward(file: str) -> bool:
    """Check whether a stack frame's code belongs to skyward, wherever skyward is installed."""
    return "/skyward_core/" in file or file.startswith("skyward_core/")


def _frame_location(frame: StackFrame) -> str:
    return f"{sanitize_line(frame.file.rpartition('/')[2])}:{frame.line}"


def _be(ranges: str) -> str:
    return f"{name_ranks(ranges)} {'is' if ranges.isdecimal() else 'are'}"


def name_ranks(ranges: str) -> str:
    """Return ranges of ranks with their noun: ``rank 3``, ``ranks 0-2,5``."""
    return f"rank {ranges}" if ranges.isdecimal() else f"ranks {ranges}"


def short_file(file: str, folders: Collection[str] = ()) -> str:
    """Return the path of a stack frame's file relative to its package, to Python's library or to one of the folders."""
    for mark in ("site-packages/", "dist-packages/"):
        if mark in file:
            return sanitize_line(file.rpartition(mark)[2])
    _, found, tail = file.rpartition("/lib/python3.")
    if found:
        return sanitize_line(tail.partition("/")[2])
    for folder in folders:
        if folder and file.startswith(folder.rstrip("/") + "/"):
            return sanitize_line(file[len(folder.rstrip("/")) + 1 :])
    return sanitize_line(file)


def frame_line(frame: StackFrame, folders: Collection[str] = ()) -> str:
    """Return a frame as ``function  file:line``, safe for terminals."""
    if not frame.file:
        return sanitize_line(frame.function)
    return f"{sanitize_line(frame.function)}  {short_file(frame.file, folders)}:{frame.line}"


def as_text(stacks: Stacks, folders: Collection[str] = (), *, threads: bool = False) -> list[str]:
    """Return the stacks as text lines: the collectives, then each group with its stack, innermost frame first.

    Args:
        stacks: The stacks.
        folders: Folders to which paths are made relative.
        threads: Whether to show all threads of each rank, not only the one that runs its function.
    """
    lines = summarize_collectives(stacks)
    for group in group_stacks(stacks):
        if lines:
            lines.append("")
        lines.append(head_line(group))
        if threads and group.frames:
            lines += thread_lines(group, folders)
        else:
            lines += [f"    {frame_line(frame, folders)}" for frame in group.frames]
    return lines


def head_line(group: StackGroup) -> str:
    """Return the heading of a group of ranks, for example ``ranks 0-2 (3): in all_reduce (torch)``."""
    count = f" ({len(group.stacks)})" if len(group.stacks) > 1 else ""
    by = " [by signal]" if {stack.how for stack in group.stacks} - {"", "py-spy"} else ""
    return f"{name_ranks(group.ranks)}{count}: {sanitize_line(describe_location(group))}{by}"


def thread_lines(group: StackGroup, folders: Collection[str] = ()) -> list[str]:
    """Return all threads of all processes of a group as text lines."""
    lines = []
    for stack in group.stacks:
        lines.append(f"  rank {stack.rank}, process {stack.pid}")
        for thread in stack.threads:
            if thread is not stack.threads[0] and not user_frames(thread.frames):
                continue  # Omit threads that skyward itself started, such as the one that waits for signals.
            of_child = f" of child {thread.child}" if thread.child else ""
            gil = ", holds the GIL" if thread.holds_gil else ""
            lines.append(f"    thread {sanitize_line(thread.name) or '?'}{of_child}{gil}")
            lines += [f"        {frame_line(frame, folders)}" for frame in thread.frames]
    return lines


_FRAME = re.compile(r"(.*) \((.*):(\d+)\)")


class HotLine(NamedTuple):
    """A line of code in a profile.

    Attributes:
        frame: The line.
        own: Number of samples in the line itself.
        total: Number of samples in the line or its callees.
    """

    frame: StackFrame
    own: int
    total: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A sampled profile.

    Attributes:
        stacks: Stacks and their numbers of samples. Frames are innermost first, without skyward's own.
    """

    stacks: tuple[tuple[tuple[StackFrame, ...], int], ...]

    @property
    def samples(self) -> int:
        return sum(count for _, count in self.stacks)


def parse_profile(raw: str) -> Profile:
    """Parse the raw profile that py-spy wrote. Skip invalid lines."""
    found: Counter[tuple[StackFrame, ...]] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if not (count.isascii() and count.isdecimal() and len(count) < 10 and stack):
            continue
        frames = user_frames([_parse_frame(each) for each in reversed(stack.split(";"))])
        if frames:
            found[frames] += int(count)
    return Profile(tuple(found.most_common()))


def _parse_frame(text: str) -> StackFrame:
    known = _FRAME.fullmatch(text)
    if known is None or len(known[3]) > 9:
        return StackFrame(text, "", 0)
    return StackFrame(known[1], known[2], int(known[3]))


def hottest_lines(profile: Profile, most: int = 20) -> list[HotLine]:
    """Return the lines of code with the most samples, sorted by the number of samples in the line itself."""
    own: Counter[StackFrame] = Counter()
    total: Counter[StackFrame] = Counter()
    for frames, count in profile.stacks:
        own[frames[0]] += count
        for frame in set(frames):
            total[frame] += count
    lines = [HotLine(frame, own[frame], total[frame]) for frame in total]
    return sorted(lines, key=lambda line: (-line.own, -line.total, line.frame))[:most]


def profile_table(profile: Profile, most: int = 20) -> list[tuple[str, str, str]]:
    """Return the hottest lines as table rows: own share of time, share with callees, place."""
    whole = max(1, profile.samples)
    rows = [("itself", "with calls", "line")]
    rows += [
        (f"{line.own / whole:.1%}", f"{line.total / whole:.1%}", frame_line(line.frame))
        for line in hottest_lines(profile, most)
    ]
    return rows


def speedscope(profile: Profile, name: str) -> str:
    """Return the profile as a file for https://www.speedscope.app."""
    places: dict[StackFrame, int] = {}
    samples = [[places.setdefault(frame, len(places)) for frame in reversed(frames)] for frames, _ in profile.stacks]
    weights = [count for _, count in profile.stacks]
    document: dict[str, Any] = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": name,
        "exporter": "skyward",
        "shared": {
            "frames": [
                {"name": sanitize_line(each.function), "file": sanitize_line(each.file), "line": each.line}
                for each in places
            ]
        },
        "profiles": [
            {
                "type": "sampled",
                "name": name,
                "unit": "none",
                "startValue": 0,
                "endValue": profile.samples,
                "samples": samples,
                "weights": weights,
            }
        ],
    }
    return json.dumps(document)


def as_json(profile: Profile, most: int = 200) -> dict[str, Sequence[Any] | int]:
    """Return the hottest lines of a profile as JSON."""
    lines = [
        {"function": sanitize_line(each.frame.function), "file": sanitize_line(each.frame.file),
         "line": each.frame.line,
         "own": each.own, "total": each.total}
        for each in hottest_lines(profile, most)
    ]  # fmt: skip
    return {"samples": profile.samples, "lines": lines}


SIGNAL = (
    "Their stacks can be collected by a signal, at which each process writes its stack. A blocking native call may "
    "then return early (EINTR) if its code does not expect signals"
)


def stack_as_json(stacks: Stacks) -> dict[str, Any]:
    """Return the stacks as JSON that is safe to print."""
    data = {
        "at": stacks.at,
        "run": stacks.run,
        "collectives": summarize_collectives(stacks),
        "groups": [
            {
                "ranks": sorted({each.rank for each in group.stacks}),
                "collective": group.collective.name if group.collective else None,
                "frames": [list(frame) for frame in group.frames],
                "said": group.state_text,
            }
            for group in group_stacks(stacks)
        ],
        "ranks": [_rank_json(each) for each in stacks.ranks],
    }
    return dict(terminal_safe_text.sanitize_json(data))


def _rank_json(stack: RankStack) -> dict[str, Any]:
    thread = user_thread(stack)
    data = {
        name: getattr(stack, name)
        for name in ("rank", "number", "node", "pid", "at", "runs", "how", "why", "exception")
    }
    return data | {
        "frames": [list(frame) for frame in user_frames(thread.frames)] if thread else [],
        "threads": [asdict(each) | {"frames": [list(frame) for frame in each.frames]} for each in stack.threads],
    }
