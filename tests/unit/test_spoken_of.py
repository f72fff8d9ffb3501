"""What a node says of a run: only of calls that there are, and that it was given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.pool.pool import Pool
from skyward_core.pool.runs.run import Run
from skyward_core.wire.frames import WireError


def pool_with(run: Run | None = None) -> Any:
    """A pool of two nodes with a rank each; ``heard``: what was told of runs that it did not send."""
    heard: list[dict[str, Any]] = []
    links = [SimpleNamespace(node=node) for node in range(2)]
    pool: Any = SimpleNamespace(
        links=links,
        link_of=lambda rank: links[rank],
        ranks_per_node=1,
        runs={run.id: run} if run else {},
        _foreign=SimpleNamespace(on_frame=lambda link, header: heard.append(header)),
        heard=heard,
    )
    pool._belongs = lambda *told: Pool._belongs(pool, *told)
    return pool


def claimed(kind: str, total: int) -> tuple[Any, Run]:
    """A run that another client sent, and a pool that has taken it over."""
    pool = pool_with()
    run = Run(pool, "r1", kind, [SimpleNamespace(name="f")], total)  # type: ignore[list-item]
    run.claim_from(pool.links)
    pool.runs["r1"] = run
    return pool, run


def stale(index: int) -> dict[str, Any]:
    return {"t": "stale", "run": "r1", "i": index, "why": ""}


@pytest.mark.parametrize("kind", ["gather", "broadcast"])
def test_a_call_that_a_run_does_not_have(kind: str) -> None:
    pool, run = claimed(kind, 2)
    with pytest.raises(WireError, match="run r1 has no call 2"):
        Pool._run_frame(pool, pool.links[0], stale(2), b"")
    assert not run._stale


def test_a_call_that_the_node_was_not_given() -> None:
    pool, run = claimed("broadcast", 2)
    with pytest.raises(WireError, match="node 0 speaks of call 1, which it was not given"):
        Pool._run_frame(pool, pool.links[0], stale(1), b"")
    assert not run._stale


@pytest.mark.parametrize(("rank", "node"), [(1, 0), (0, 1)])
def test_an_outcome_of_another_nodes_rank(rank: int, node: int) -> None:
    pool, run = claimed("gather", 2)
    header = {"t": "outcome", "run": "r1", "i": 0, "rank": rank, "node": node, "kind": "returned"}
    with pytest.raises(WireError, match="node 0 speaks of rank"):
        Pool._run_frame(pool, pool.links[0], header, b"")
    assert not run.outcomes


def test_of_a_run_of_another_client_it_is_only_told() -> None:
    pool = pool_with()
    Pool._run_frame(pool, pool.links[0], stale(7), b"")
    assert pool.heard == [stale(7)]
