"""What a node says of a run: only of calls that there are, and that it was given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.outcomes import RunKind
from skyward_core.pool.pool_context import PoolContext
from skyward_core.pool.runs.run import Run
from skyward_core.pool.runs.run_registry import RunRegistry
from skyward_core.protocol.frame_codec import WireError


def book_of() -> RunRegistry:
    """That of a pool of two nodes with a rank each."""
    links: Any = [SimpleNamespace(node=node, gone=False) for node in range(2)]
    context: Any = SimpleNamespace(
        name="p", links=links, link_of=lambda rank: links[rank], ranks_per_node=1,
        options=SimpleNamespace(cluster=True), news=SimpleNamespace(emit_node_note=None),
    )  # fmt: skip
    context.check_rank = lambda *told: PoolContext.check_rank(context, *told)
    return RunRegistry(context)


def claimed(kind: RunKind, total: int) -> tuple[RunRegistry, Run]:
    """A run that another client sent, and the book of a pool that has taken it over."""
    book = book_of()
    run = book.add("r1", kind, [SimpleNamespace(name="f", script=False, nodes=None)], total)  # type: ignore[list-item]
    run.claim_from(book._context.links)
    return book, run


def stale(index: int) -> Any:
    return {"t": "stale", "run": "r1", "i": index, "why": ""}


@pytest.mark.parametrize("kind", ["gather", "broadcast"])
def test_a_call_that_a_run_does_not_have(kind: RunKind) -> None:
    book, run = claimed(kind, 2)
    with pytest.raises(WireError, match="run r1 has no call 2"):
        book.on_frame(book._context.links[0], stale(2), b"")
    assert not run._stale


def test_a_call_that_the_node_was_not_given() -> None:
    book, run = claimed("broadcast", 2)
    with pytest.raises(WireError, match="node 0 speaks of call 1, which it was not given"):
        book.on_frame(book._context.links[0], stale(1), b"")
    assert not run._stale


@pytest.mark.parametrize(("rank", "node"), [(1, 0), (0, 1)])
def test_an_outcome_of_another_nodes_rank(rank: int, node: int) -> None:
    book, run = claimed("gather", 2)
    header: Any = {"t": "outcome", "run": "r1", "i": 0, "rank": rank, "node": node, "kind": "returned"}
    with pytest.raises(WireError, match="node 0 speaks of rank"):
        book.on_frame(book._context.links[0], header, b"")
    assert not run.outcomes


def test_of_a_run_of_another_client_it_is_only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    book, heard = book_of(), list[Any]()
    monkeypatch.setattr(book.others, "on_frame", lambda link, header: heard.append(header))
    book.on_frame(book._context.links[0], stale(7), b"")
    assert heard == [stale(7)]
