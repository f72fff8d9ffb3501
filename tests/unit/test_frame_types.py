"""Frames as type checkers see them are frames as the tables of the protocol have them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_type_hints

import pytest

from skyward_core.protocol import frame_schema, frame_types, host_facts
from skyward_core.protocol.validators import Check, FrameSchema
from tests.protocol_page import _words

SIDES: dict[str, tuple[Any, Mapping[str, FrameSchema]]] = {
    "agent": (frame_types.FromAgent, frame_schema.FROM_AGENT),
    "client": (frame_types.FromClient, frame_schema.FROM_CLIENT),
    "worker": (frame_types.FromWorker, frame_schema.FROM_WORKER),
    "files": (frame_types.FileFrame, frame_schema.FILE_FRAMES),
    "peers": (frame_types.FromPeer, frame_schema.PEER_FRAMES),
    "to worker": (frame_types.ToWorker, frame_schema.TO_WORKER),
}


def kinds(union: Any) -> dict[str, Any]:
    """The types of one side's frames, by what they say under "t"."""
    found = {}
    for one in get_args(union):
        (kind,) = get_args(get_type_hints(one)["t"])
        found[kind] = one
    assert len(found) == len(get_args(union)), "two types of one kind"
    return found


@pytest.mark.parametrize("side", SIDES)
def test_each_kind_has_a_type(side: str) -> None:
    union, forms = SIDES[side]
    assert kinds(union).keys() == forms.keys()


@pytest.mark.parametrize(("side", "kind"), [(side, kind) for side in SIDES for kind in SIDES[side][1]])
def test_a_type_has_the_keys_of_its_table(side: str, kind: str) -> None:
    union, forms = SIDES[side]
    made, form = kinds(union)[kind], forms[kind]
    assert made.__required_keys__ == {"t", *form.needs}
    assert made.__optional_keys__ == form.may.keys() - form.needs.keys()


WORDS = {"count": int, "call": int, "rank": int, "port": int, "some": int, "whole number": int, "text": str, "run": str,
         "file": str, "log": str, "path": str, "flag": bool, "number": float}  # fmt: skip

LIST: Any = list
DICT: Any = dict


def made_for(check: Check) -> Any:
    """The type of what a check lets pass, where that is of JSON's plain types."""
    return of_words(_words(check))


def of_words(words: str) -> Any:
    if words.endswith(" or null"):
        inner = of_words(words.removesuffix(" or null"))
        return inner and inner | None
    if words.startswith("object of"):
        return None
    if words.startswith("["):
        inner = of_words(words[1:-1])
        return inner and LIST[inner]
    if words.startswith("{"):
        inner = of_words(words[1:-1].partition(": ")[2])
        return inner and DICT[str, inner]
    if words.startswith('"'):
        return Literal[tuple(word.strip('"') for word in words.split(" or "))]
    return WORDS.get(words)


@pytest.mark.parametrize(("side", "kind"), [(side, kind) for side in SIDES for kind in SIDES[side][1]])
def test_what_a_type_has_under_a_key_is_what_its_table_lets_pass(side: str, kind: str) -> None:
    union, forms = SIDES[side]
    # A newer agent may tell of a phase that we do not know.
    others = {"phase"} if (side, kind) == ("agent", "phase") else set[str]()
    compare(kinds(union)[kind], {k: check for k, check in forms[kind].checks.items() if k not in others})


def compare(made: Any, checks: Mapping[str, Check]) -> None:
    hints = get_type_hints(made)
    for key, check in checks.items():
        assert made_for(check) in (None, hints[key]), key


@pytest.mark.parametrize("asked", frame_schema.ANSWERS)
def test_an_answer_has_the_keys_of_its_table(asked: str) -> None:
    made = getattr(frame_types, f"{asked.capitalize()}Answer")
    assert made.__required_keys__ == {
        "t",
        *frame_schema.FROM_AGENT["known"].needs,
        *frame_schema.ANSWERS[asked],
    }
    assert made.__optional_keys__ == frame_schema.FROM_AGENT["known"].may.keys()
    compare(made, frame_schema.ANSWERS[asked])


def test_what_a_host_tells_has_the_keys_of_its_tables() -> None:
    made = frame_types.HostFacts
    assert made.__required_keys__ == host_facts.FACTS.keys()
    assert made.__optional_keys__ == {**host_facts.FACTS_OF_ROOT, **host_facts.FACTS_OF_POOL}.keys()
    compare(made, {**host_facts.FACTS, **host_facts.FACTS_OF_ROOT, **host_facts.FACTS_OF_POOL})


@pytest.mark.parametrize("what", host_facts.DONE)
def test_what_was_done_has_the_keys_of_its_table(what: str) -> None:
    made = getattr(frame_types, f"{what.capitalize()}Done")
    assert made.__required_keys__ == host_facts.DONE[what].keys()
    compare(made, host_facts.DONE[what])


@pytest.mark.parametrize(
    ("made", "check"),
    [
        (frame_types.SummaryKeys, frame_schema._IS_SUMMARY),
        (frame_types.ErrorKeys, frame_schema._IS_ERROR),
        (frame_types.PluginErrorKeys, frame_schema._IS_PLUGIN_ERROR),
        (frame_types.RememberedRun, frame_schema._REMEMBERED_RUN),
    ],
)
def test_what_stands_in_frames_has_the_keys_that_are_looked_for(made: Any, check: Any) -> None:
    import inspect

    inner = inspect.getclosurevars(check).nonlocals
    assert made.__required_keys__ == inner["needs"].keys()
    assert made.__optional_keys__ == inner["find"].__self__.keys() - inner["needs"].keys()


@pytest.mark.parametrize(
    "module",
    [
        "skyward_core",
        "skyward_core.node.agent.agent",
        "skyward_core.node.agent.blob_server",
        "skyward_core.node.worker.worker",
        "skyward_core.node.worker.plugin_context_process",
        "skyward_core.pool.pool",
        "skyward_core.transport.direct_transfer",
        "skyward_core.transport.ssh.ssh_transport",
    ],
)
def test_nothing_loads_the_types_when_it_runs(module: str) -> None:
    kinds = (
        frame_types,
        frame_types,
        frame_types,
        frame_types,
        frame_types,
        frame_types,
    )
    types = {made.__name__ for made in kinds}
    code = f"import sys, {module}; sys.exit(not sys.modules.keys().isdisjoint({types}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
