"""The order of a pool's nodes follows that of EC2's network, as far as EC2 tells it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from skyward_core.model.machine import Machine

pytest.importorskip("boto3")
from skyward_core.providers.aws.placement import in_order


def machines(names: str) -> list[Machine]:
    return [Machine(name, node, "", "") for node, name in enumerate(names)]


@pytest.mark.parametrize(
    ("paths", "order"),
    [
        ({}, "abcdef"),
        (dict(zip("abcdef", ["xp1", "xp2", "xq1", "xp1", "xp2", "xq1"], strict=True)), "adbecf"),
        (dict(zip("abcdef", ["x1", "y1", "x2", "y2", "x1", "y1"], strict=True)), "aecbfd"),
        ({"a": "x1", "d": "x1"}, "adbcef"),
        ({"b": "", "e": "x", "f": "x"}, "abcdef"),
    ],
)
def test_those_below_one_node_of_the_network_follow_one_another(paths: dict[str, str], order: str) -> None:
    assert "".join(each.id for each in in_order(machines("abcdef"), paths)) == order


def test_each_layer_s_neighbours_stand_together_however_they_were_launched() -> None:
    chance = random.Random(7)
    for _ in range(200):
        names = "abcdefghij"
        paths = {
            name: "".join(chance.choice("xyz") for _ in range(3)) for name in names if chance.random() < 0.9
        }
        found = in_order(machines(names), paths)
        assert sorted(each.id for each in found) == list(names)
        for depth in (1, 2, 3):
            above = [paths.get(each.id, each.id)[:depth] for each in found]
            changes = [one for one, other in pairwise(above) if one != other]
            assert len(changes) == len(set(above)) - 1, "no node of the network is come back to"
