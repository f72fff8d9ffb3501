"""The agent's journal: what the next agent reads, and how large it may grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import call_journal
from skyward_core.node.agent.call_journal import Journal
from skyward_core.node.agent.call_registry import Call, CallRegistry
from skyward_core.protocol.frame_codec import encode_frame

LONG = ("long", 0)


class Node:
    """What an agent does with its journal, as one call runs on and on and others come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registry = CallRegistry()
        self.journal = Journal(path, self.registry.unacknowledged)

    def add_item(self, run: str) -> Call:
        asked: Any = {"run": run, "i": 0, "kind": "single", "name": "f"}
        call = Call(run, 0, asked, b"", None, rank=1)
        call.started_at, call.slot = 1.0, 2
        self.registry.add(call)
        self.journal.write(call.given_frame())
        return call

    def end(self, call: Call, result: bytes) -> None:
        header: Any = {"t": "outcome", "run": call.run, "i": 0, "kind": "returned"}
        call.result = result
        self.registry.record_outcome(call, header)
        self.journal.write(encode_frame(header, result))

    def read(self) -> list[tuple[str, str, bytes]]:
        """As the next agent does."""
        read: Any = Journal(self.path, lambda: ()).read()
        return [(h["t"], h.get("call", h)["run"], body) for h, body in read]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(call_journal, "LEAST_JOURNAL_BYTES", 20_000)
    return Node(tmp_path / "journal")


def test_beside_a_long_call_it_stays_small_and_keeps_what_is_needed(node: Node) -> None:
    node.add_item("long")
    waiting: list[tuple[str, str, bytes]] = [("given", "long", b"")]
    for number in range(300):
        call = node.add_item(f"r{number}")
        node.end(call, b"%d" % number * 400)
        if number % 50 == 49:  # nobody fetched it yet
            waiting += [("given", call.run, b""), ("outcome", call.run, call.result)]
        else:
            node.registry.drop(call)
        assert node.path.stat().st_size < 50_000
        # Killed now, the next agent learns of all that nobody has acknowledged, and has the place of each.
        assert set(node.read()) >= set(waiting)
    assert len(waiting) == 13
    given = [header for header, _ in Journal(node.path, lambda: ()).read() if header["t"] == "given"]
    assert {(header["slot"], header["rank"]) for header in given} == {(2, 1)}


def test_the_outcome_that_makes_it_too_large_is_kept(node: Node) -> None:
    node.end(node.add_item("large"), b"x" * 30_000)
    assert node.read() == [("given", "large", b""), ("outcome", "large", b"x" * 30_000)]


def test_where_there_is_no_room_for_a_shorter_one_the_old_one_goes_on(node: Node) -> None:
    node.path.with_suffix(".new").mkdir()  # in its way
    node.end(node.add_item("large"), b"x" * 30_000)
    node.add_item("next")
    assert [run for _, run, _ in node.read()] == ["large", "large", "next"]


def test_half_a_frame_on_a_full_disk_hides_none_that_follow(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add_item("first")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    node.add_item("cut short")
    monkeypatch.undo()
    node.add_item("last")
    assert [run for _, run, _ in node.read()] == ["first", "last"]
