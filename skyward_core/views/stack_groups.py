"""Equal stacks grouped, collectives recognized, profiles."""

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

MAX_SHOWN = 3  # groups that are named on one line

# Where ranks wait for one another: end of the file's path, and functions there; none for any.
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
# Functions of torch.distributed that ask no other rank, by their first letters.
_LOCAL = ("get_", "is_", "supports_")
# torch.distributed and DDP call collectives of native code from all their files but these.
_NATIVE = re.compile(
    r"/torch/(distributed/(?!distributed_c10d|checkpoint/|elastic/|launcher/|rpc/|run\.py)"
    r"|nn/parallel/distributed\.py).*"
)
# Where a device's work is waited for: a collective of that work may be what does not come to its end.
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
    """What ranks do together.

    Attributes:
        is_named: the stack names it; else it is work of a device, and may be something of the rank's own.
    """

    name: str
    library: str
    is_named: bool = True

    def __str__(self) -> str:
        return f"{self.name} ({self.library})"


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Processes whose stacks are equal.

    Attributes:
        stacks: of which the first one stands for all.
        frames: of the person's code and what that called, the innermost first.
        state_text: what is told where there are no frames.
    """

    stacks: tuple[RankStack, ...]
    frames: tuple[StackFrame, ...]
    state_text: str
    collective: Collective | None

    @property
    def ranks(self) -> str:
        return format_ranges(each.rank for each in self.stacks)


def format_ranges(numbers: Iterable[int]) -> str:
    """``0-2,5`` for 0, 1, 2 and 5."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def user_thread(stack: RankStack) -> ThreadStack | None:
    """The thread that runs the person's function: the main thread, or, where calls run in threads, one of these."""
    own = [thread for thread in stack.threads if not thread.child]
    for thread in own:
        if (thread is own[0] or thread.name == "task") and user_frames(thread.frames):
            return thread
    return own[0] if own else None


def user_frames(frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """What the person's function and its callees are at, without what of ours called the function.

    What an import goes through says nothing, and is left out, as in Python's own tracebacks.
    """
    kept = list(frames)
    while kept and _is_ours(kept[-1]):
        kept.pop()
    return tuple(each for each in kept if not _is_of_imports(each))


def _is_of_imports(frame: StackFrame) -> bool:
    return frame.file.startswith("<frozen importlib.") or frame.file.endswith("skyward_core/runtime/import_hooks.py")


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
    """What the ranks do together that a stack is inside of; the outermost call, which the person's code has made."""
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
    """A function's name without that of its class, which py-spy has before it."""
    return frame.function.rpartition(".")[2]


def _match_library(frame: StackFrame, table: Sequence[tuple[str, str, frozenset[str]]]) -> str:
    for ending, library, functions in table:
        if frame.file.endswith(ending) and (not functions or _name(frame) in functions):
            is_local = ending == _C10D and _name(frame).lstrip("_").startswith(_LOCAL)
            return "" if is_local else library
    return ""


def merge_stacks(first: Stacks, second: Stacks) -> Stacks:
    """What was told the second time in place of the first, of ranks that were asked again."""
    new = {(each.rank, each.number): each for each in second.ranks}
    ranks = tuple(new.get((each.rank, each.number), each) for each in first.ranks)
    return Stacks(second.at, ranks, second.run, second.returned, first.idle)


def group_stacks(stacks: Stacks) -> list[StackGroup]:
    """Equal stacks together: those of most ranks first, what is not known last.

    Idle ranks outside the run are included if ranks of the run wait for others.
    """
    made = _group_equal(stacks, stacks.ranks)
    if stacks.idle and any(group.collective is not None and group.collective.is_named for group in made):
        made = _group_equal(stacks, (*stacks.ranks, *stacks.idle))
    return made


def _group_equal(stacks: Stacks, ranks: Iterable[RankStack]) -> list[StackGroup]:
    found: dict[object, list[RankStack]] = {}
    frames: dict[object, tuple[StackFrame, ...]] = {}
    for stack in ranks:
        thread = None if _has_returned(stack, stacks) else user_thread(stack)
        own = user_frames(thread.frames) if thread is not None else ()
        # Nodes may have the same code in different places.
        key: object = tuple(each._replace(file=short_file(each.file)) for each in own) or _describe_state(stack, stacks)
        found.setdefault(key, []).append(stack)
        frames[key] = own
    made = [
        StackGroup(tuple(some), frames[key], "" if frames[key] else str(key), find_collective(frames[key]))
        for key, some in found.items()
    ]
    return sorted(made, key=lambda group: (not group.frames, -len(group.stacks), group.stacks[0].rank))


def _has_returned(stack: RankStack, stacks: Stacks) -> bool:
    """Return whether a rank has ended its part of the run; by now it may work for another run."""
    return bool(stacks.run) and stack.rank in stacks.returned and stacks.run not in stack.runs


def _describe_state(stack: RankStack, stacks: Stacks) -> str:
    if _has_returned(stack, stacks) and stack.at != "gone":
        return "its function has come to its end"
    if stack.why:
        return f"not known: {stack.why}" if stack.at != "gone" else stack.why
    return {
        "gone": "it has no process",
        "starting": "its Python starts",
        "ending": "it was told to end",
        "running": "it begins, or ends, its function",
    }.get(stack.at, "it waits for something to run")


def summarize_collectives(stacks: Stacks) -> list[str]:
    """Who is inside which collective, and who is not: a line for each; none where no rank is inside of one."""
    every = group_stacks(stacks)
    inside: dict[Collective, list[StackGroup]] = {}
    for group in every:
        if group.collective is not None:
            inside.setdefault(group.collective, []).append(group)
    lines = []
    for collective, some in inside.items():
        inside_it = {stack.rank for group in some for stack in group.stacks}
        ranks = format_ranges(inside_it)
        others = []
        for group in every:  # a rank may have further processes, for tasks, which are idle
            if group not in some and (missing := [each for each in group.stacks if each.rank not in inside_it]):
                others.append(replace(group, stacks=tuple(missing)))
        away = "; ".join(
            f"{_format_ranks(group.ranks)} not: {describe_location(group)}" for group in others[:MAX_SHOWN]
        )
        if len(others) > MAX_SHOWN:
            away += f"; {_format_ranks(format_ranges(s.rank for g in others[MAX_SHOWN:] for s in g.stacks))} not either"
        verb = "is" if ranks.isdecimal() else "are"
        lines.append(f"{_format_ranks(ranks)} {verb} in {collective}{_call_sites(some)}; {away or 'so is every rank'}")
    return lines


def _call_sites(some: Sequence[StackGroup]) -> str:
    """Lines of the person's code from which they came there, where these differ: they may not mean the same one."""
    calls = dict.fromkeys(_frame_location(frame) for group in some if (frame := calling_frame(group.frames)))
    return f" (from {', '.join(list(calls)[:MAX_SHOWN])})" if len(calls) > 1 else ""


def describe_location(group: StackGroup) -> str:
    """Where the ranks of a group are, in a few words."""
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
    """The package whose code is loaded, by the outermost import; "" where none is."""
    file = next((each.file for each in reversed(frames) if each.function == "<module>"), "")
    return short_file(file).partition("/")[0].removesuffix(".py")


def calling_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost frame that is no library's."""
    return next((each for each in frames if each.file and not is_library(each.file)), None)


def is_library(file: str) -> bool:
    """Whether code lies where packages are installed, or is ours, and is nobody's own here."""
    return (
        _is_of_skyward(file)
        or "site-packages/" in file
        or "dist-packages/" in file
        or "/lib/python3." in file
        or file.startswith("<frozen ")
    )


def _is_of_skyward(file: str) -> bool:
    """Whether code is ours, wherever a node has it."""
    return "/skyward_core/" in file or file.startswith("skyward_core/")


def _frame_location(frame: StackFrame) -> str:
    return f"{sanitize_line(frame.file.rpartition('/')[2])}:{frame.line}"


def _format_ranks(ranges: str) -> str:
    return f"rank {ranges}" if ranges.isdecimal() else f"ranks {ranges}"


def short_file(file: str, folders: Collection[str] = ()) -> str:
    """A file's path without what says nothing: of a package from its name on, of the person's below a folder."""
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
    """``function  file:line``, fit to be shown."""
    if not frame.file:
        return sanitize_line(frame.function)
    return f"{sanitize_line(frame.function)}  {short_file(frame.file, folders)}:{frame.line}"


def as_text(stacks: Stacks, folders: Collection[str] = (), *, threads: bool = False) -> list[str]:
    """All of it as lines for people: the collectives, then each group with its stack, the innermost frame first.

    Args:
        folders: whose files are named from there on.
        threads: all threads of each rank, not only the one that runs its function.
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
    """``ranks 0-2 (3): in all_reduce (torch)``."""
    count = f" ({len(group.stacks)})" if len(group.stacks) > 1 else ""
    ways = sorted({stack.how for stack in group.stacks} - {"", "py-spy"})
    by = " [asked by a signal]" if ways else ""
    return f"{_format_ranks(group.ranks)}{count}: {sanitize_line(describe_location(group))}{by}"


def thread_lines(group: StackGroup, folders: Collection[str] = ()) -> list[str]:
    """All threads of all processes of a group, as lines."""
    lines = []
    for stack in group.stacks:
        lines.append(f"  rank {stack.rank}, process {stack.pid}")
        for thread in stack.threads:
            if thread is not stack.threads[0] and not user_frames(thread.frames):
                continue  # a thread of ours
            of_child = f" of child {thread.child}" if thread.child else ""
            gil = ", holds the GIL" if thread.holds_gil else ""
            lines.append(f"    thread {sanitize_line(thread.name) or '?'}{of_child}{gil}")
            lines += [f"        {frame_line(frame, folders)}" for frame in thread.frames]
    return lines


_FRAME = re.compile(r"(.*) \((.*):(\d+)\)")


class HotLine(NamedTuple):
    """A line of code.

    Attributes:
        own: how often it was what ran.
        total: how often it, or what it called, was.
    """

    frame: StackFrame
    own: int
    total: int


@dataclass(frozen=True, slots=True)
class Profile:
    """What was seen.

    Attributes:
        stacks: each with how often it was seen; the innermost frame first, without our own at the end.
    """

    stacks: tuple[tuple[tuple[StackFrame, ...], int], ...]

    @property
    def samples(self) -> int:
        return sum(count for _, count in self.stacks)


def parse_profile(raw: str) -> Profile:
    """Of what py-spy writes raw; lines that are none of it are passed over."""
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
    """The lines that took most, by what ran in them itself."""
    own: Counter[StackFrame] = Counter()
    total: Counter[StackFrame] = Counter()
    for frames, count in profile.stacks:
        own[frames[0]] += count
        for frame in set(frames):
            total[frame] += count
    lines = [HotLine(frame, own[frame], total[frame]) for frame in total]
    return sorted(lines, key=lambda line: (-line.own, -line.total, line.frame))[:most]


def profile_table(profile: Profile, most: int = 20) -> list[tuple[str, str, str]]:
    """The same as rows of text: share of the time in it, share with what it called, and where it is."""
    whole = max(1, profile.samples)
    rows = [("itself", "with calls", "line")]
    rows += [
        (f"{line.own / whole:.1%}", f"{line.total / whole:.1%}", frame_line(line.frame))
        for line in hottest_lines(profile, most)
    ]
    return rows


def speedscope(profile: Profile, name: str) -> str:
    """A file for https://www.speedscope.app."""
    places: dict[StackFrame, int] = {}
    samples = [[places.setdefault(frame, len(places)) for frame in reversed(frames)] for frames, _ in profile.stacks]
    weights = [count for _, count in profile.stacks]
    made: dict[str, Any] = {
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
    return json.dumps(made)


def as_json(profile: Profile, most: int = 200) -> dict[str, Sequence[Any] | int]:
    """The hottest lines as an object."""
    lines = [
        {"function": sanitize_line(each.frame.function), "file": sanitize_line(each.frame.file),
         "line": each.frame.line,
         "own": each.own, "total": each.total}
        for each in hottest_lines(profile, most)
    ]  # fmt: skip
    return {"samples": profile.samples, "lines": lines}


SIGNAL = (
    "They can be asked by a signal, at which each writes down where it is. A call of their code that blocks in native "
    "code may end early with it (EINTR), if that code does not expect signals"
)


def stack_as_json(stacks: Stacks) -> dict[str, Any]:
    """All that is known, fit to be printed."""
    told = {
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
    return dict(terminal_safe_text.sanitize_json(told))


def _rank_json(stack: RankStack) -> dict[str, Any]:
    thread = user_thread(stack)
    told = {name: getattr(stack, name) for name in ("rank", "number", "node", "pid", "at", "runs", "how", "why")}
    return told | {
        "frames": [list(frame) for frame in user_frames(thread.frames)] if thread else [],
        "threads": [asdict(each) | {"frames": [list(frame) for frame in each.frames]} for each in stack.threads],
    }
