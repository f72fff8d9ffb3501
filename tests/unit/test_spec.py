"""What a person may ask for, and the words for what makes no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

import skyward_core as sky
from skyward_core.compute import made_up_name
from skyward_core.spec import Image, Options, PoolSpec, Worker


class Provider:
    name = "local"


def spec(**more: Any) -> PoolSpec:
    return PoolSpec(**{"name": "fit", "provider": Provider()} | more)


@pytest.mark.parametrize("name", ["a", "7", "llama-ft", "a--b", "x" * 48, "a-1"])
def test_names(name: str) -> None:
    assert spec(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a_b", "a b", "x" * 49, "../up", "é", "a\n", "a/b", "a.b"]
)
def test_names_that_would_not_do_everywhere(name: str) -> None:
    with pytest.raises(ValidationError, match="is no pool name: use 1 to 48 lower-case letters"):
        spec(name=name)
    if name:
        with pytest.raises(sky.UsageError, match="no pool name"):
            sky.Compute(name=name)


def test_made_up_names_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for argv in (["train.py"], ["/x/My Script_2.py"], ["-"], [""], [], ["é.py"], ["x" * 99 + ".py"]):
        monkeypatch.setattr("sys.argv", argv)
        assert spec(name=made_up_name())
    assert made_up_name() != made_up_name()


@pytest.mark.parametrize("nodes", [0, -1, 1025, 1.5, "many", None])
def test_nodes_that_make_no_sense(nodes: Any) -> None:
    with pytest.raises(ValidationError, match="nodes"):
        spec(nodes=nodes)


@pytest.mark.parametrize("nodes", [0, -3])
def test_compute_says_so_in_one_line(nodes: int) -> None:
    with pytest.raises(sky.UsageError) as caught:
        sky.Compute(nodes=nodes)
    assert str(caught.value) == f"nodes: Input should be greater than or equal to 1 (got {nodes})"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Worker, {"concurrency": 0}),
        (Worker, {"executor": "fiber"}),
        (Worker, {"ranks_per_node": 0}),
        (Worker, {"ranks_per_node": 65}),
        (Worker, {"ranks_per_node": "tpu"}),
        (Options, {"grace": -1}),
        (Options, {"grace": float("nan")}),
        (Options, {"idle_timeout": 0}),
        (Options, {"ttl": -5}),
        (Options, {"ttl": 0}),
        (Options, {"start_timeout": 0}),
        (Options, {"on_loss": "panic"}),
        (Options, {"colour": "red"}),
        (Image, {"pip": "torch"}),
        (Image, {"env": {"A": 1}}),
    ],
)
def test_values_that_make_no_sense(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(values))):
        kind(**values)


def test_values_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Options().grace = 1  # type: ignore[misc]


def test_the_world_is_nodes_times_ranks() -> None:
    asked = spec(nodes=3, worker=Worker(ranks_per_node=4))
    assert (asked.ranks_per_node, asked.world_size) == (4, 12)
    assert spec(nodes=3, worker=Worker(ranks_per_node="gpu")).ranks_per_node == 1


def test_what_is_written_down_is_json_without_the_environments_secrets() -> None:
    asked = spec(
        nodes=2, image=Image(pip=("numpy",), env={"TOKEN": "hunter2"}), plugins=(sky.plugins.torch(),)
    )
    written = json.loads(json.dumps(asked.describe()))
    assert "hunter2" not in str(written)
    assert (written["name"], written["provider"], written["nodes"]) == ("fit", "local", 2)
    assert written["plugins"] == ["torch"]
    assert written["image"]["pip"] == ["numpy"]
    assert Options(**written["options"]) == asked.options
    assert Worker(**written["worker"]) == asked.worker
