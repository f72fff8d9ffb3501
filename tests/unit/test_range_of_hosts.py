"""A range of nodes on hosts of one's own: as many as answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import NoCapacity, TooFewHosts
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.provider import progress_listener

HOSTS = ["a", "b", "c", "d"]


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Hosts that do not answer."""
    away: set[str] = set()

    async def answers(self: sky.SSH, host: str, loaded_with: object) -> str:
        return "no route to it" if host in away else ""

    monkeypatch.setattr(sky.SSH, "_unavailable_reason", answers)
    return away


def hosts_of(nodes: Any) -> tuple[list[str], list[str]]:
    """The hosts that a pool has, and what it was told meanwhile."""
    told: list[str] = []
    spec = PoolSpec(name="q", provider=sky.SSH(HOSTS), nodes=nodes)
    with progress_listener(told.append):
        made = asyncio.run(spec.provider.create(spec, "0" * 16))
    assert [each.node for each in made] == list(range(len(made)))
    return [each.id for each in made], told


def test_the_first_that_answer_are_taken_and_the_others_named(away: set[str]) -> None:
    assert hosts_of("2:3") == (["a", "b", "c"], [])
    away.add("a")
    assert hosts_of("2:3") == (["b", "c", "d"], ["3 of 4 hosts answer: a: no route to it"])
    away.add("c")
    assert hosts_of("2:8")[0] == ["b", "d"]
    assert hosts_of(2) == (["a", "b"], []), "a number takes the first, whoever answers"


def test_too_few_are_refused(away: set[str]) -> None:
    away |= {"a", "b", "d"}
    with pytest.raises(NoCapacity, match="2 nodes are needed at least, and 1 of 4 hosts answer: a: no route"):
        hosts_of("2:3")
    with pytest.raises(TooFewHosts, match="5 nodes were asked for, and there are 4 hosts"):
        hosts_of("5:9")
