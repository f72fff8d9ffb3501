"""Which nodes are told that what they keep of a run is not needed any more."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from skyward_core.pool.runs.run import Run


class FakeLink:
    """Notes what it is told."""

    gone = False

    def __init__(self, node: int) -> None:
        self.node = node
        self.calls: list[int] = []
        self.acknowledged: list[str] = []

    def call(self, header: dict[str, Any], body: bytes) -> None:
        self.calls.append(header["i"])

    def acknowledge(self, run: str) -> None:
        self.acknowledged.append(run)


def run_on(links: Sequence[FakeLink]) -> tuple[Run, Any]:
    """A run of three calls on a pool with these links, and its task."""
    blob = SimpleNamespace(hash="", size=0, data=b"", sources=())
    task = SimpleNamespace(
        name="f",
        fn=blob,
        args=blob,
        timeout=None,
        stream=False,
        script=False,
        feeds=(),
        nodes=None,
        job="",
        width=1,
    )
    registry = SimpleNamespace(on_run_end=lambda run: None)
    context = SimpleNamespace(name="p", links=links, is_standalone=True, registry=registry)
    return Run(context, "r1", "gather", [task], 3), task  # type: ignore[arg-type, list-item]


def test_the_nodes_that_had_calls_of_it_are_told_and_no_others() -> None:
    links = [FakeLink(node) for node in range(4)]
    run, task = run_on(links)
    run._send(links[1], 0, task, {})  # type: ignore[arg-type]
    run._send(links[2], 1, task, {})  # type: ignore[arg-type]
    run._send(links[2], 2, task, {})  # type: ignore[arg-type]
    run._finalize()
    assert [link.calls for link in links] == [[], [0], [1, 2], []]
    assert [link.acknowledged for link in links] == [[], ["r1"], ["r1"], []]


def test_a_node_whose_call_went_on_elsewhere_is_told_too() -> None:
    """It may have ended the call before it was lost, and keep what came of it."""
    links = [FakeLink(node) for node in range(3)]
    run, task = run_on(links)
    run._send(links[0], 0, task, {})  # type: ignore[arg-type]
    run._send(links[1], 0, task, {})  # type: ignore[arg-type]
    run._finalize()
    assert [link.acknowledged for link in links] == [["r1"], ["r1"], []]


def test_of_a_run_that_another_client_sent_all_nodes_are_told() -> None:
    links = [FakeLink(node) for node in range(2)]
    run, _ = run_on(links)
    run._claimed = True
    run._finalize()
    assert [link.acknowledged for link in links] == [["r1"], ["r1"]]
