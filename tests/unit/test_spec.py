"""What a person may ask for, and the words for what makes no sense."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import SpecError
from skyward_core.model.specs import Image, Options, PipIndex, PoolSpec, Worker, generate_pool_name


class Provider:
    name = "local"


def spec(**more: Any) -> PoolSpec:
    given: dict[str, Any] = {"name": "fit", "provider": Provider()} | more
    return PoolSpec(**given)


@pytest.mark.parametrize("name", ["a", "7", "llama-ft", "a--b", "x" * 48, "a-1"])
def test_names(name: str) -> None:
    assert spec(name=name).name == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a b", "x" * 49, "../up", "é", "a\n", "a/b", "a.b"])
def test_names_that_would_not_do_everywhere(name: str) -> None:
    with pytest.raises(SpecError, match="is no pool name: use 1 to 48 lower-case letters"):
        spec(name=name)
    if name:
        with pytest.raises(sky.UsageError, match="no pool name"):
            sky.Compute(nodes=1, name=name)


def test_made_up_names_are_names() -> None:
    for script in ("train.py", "/x/My Script_2.py", "-", "", "é.py", "x" * 99 + ".py"):
        assert spec(name=generate_pool_name(script))
    assert generate_pool_name("train.py").startswith("train-")
    assert generate_pool_name("") != generate_pool_name("")


def test_a_pool_without_a_name_is_called_after_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    for argv, begins in ((["/x/My Script_2.py"], "my-script-2-"), ([], "pool-")):
        monkeypatch.setattr("sys.argv", argv)
        assert sky.Compute(provider=sky.Local()).spec.name.startswith(begins)


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        (4, 4),
        (sky.Nodes(min=2, max=8), sky.Nodes(min=2, max=8)),
        ("2:8", sky.Nodes(min=2, max=8)),
        ("3:3", 3),
    ],
)
def test_numbers_of_nodes(nodes: Any, kept: Any) -> None:
    asked = spec(nodes=nodes)
    assert asked.nodes == kept
    assert (asked.least_nodes, asked.most_nodes) == ((2, 8) if nodes not in (4, "3:3") else (kept, kept))
    assert (asked.describe()["nodes"], asked.world_size) == (asked.most_nodes, asked.most_nodes)
    assert sky.Compute(provider=sky.Local(), nodes=nodes).spec.nodes == kept
    with pytest.raises(SpecError, match="these differ"):
        sky.Compute(sky.Spec(provider=sky.Local(), nodes=nodes), nodes="5:6")


@pytest.mark.parametrize(
    ("least", "most", "field"),
    [(3, 2, "max"), (0, 2, "min"), (True, 2, "min"), (1, 1025, "max"), (1, 2.5, "max")],
)
def test_ranges_that_make_no_sense(least: Any, most: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        sky.Nodes(min=least, max=most)
    assert caught.value.field == field
    with pytest.raises(SpecError, match='or a range of them such as "2:8"') as caught:
        spec(nodes=f"{least}:{most}")
    assert caught.value.field == "nodes"


@pytest.mark.parametrize("nodes", [0, -1, 1025, 1.5, "many", "4", "2:", ":2", "2:3:4", "-1:2", True, None])
def test_nodes_that_make_no_sense(nodes: Any) -> None:
    with pytest.raises(SpecError, match="nodes") as caught:
        spec(nodes=nodes)
    assert caught.value.field == "nodes"


@pytest.mark.parametrize("nodes", [0, -3])
def test_compute_says_so_in_one_line(nodes: int) -> None:
    with pytest.raises(sky.UsageError) as caught:
        sky.Compute(nodes=nodes)
    assert str(caught.value) == f"nodes: should be a whole number from 1 to 1024 (got {nodes})"


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
        (Options, {"start_timeout": "soon"}),
        (Options, {"grace": True}),
        (Options, {"console": "yes"}),
        (Options, {"debug_wait": -1}),
        (Options, {"debug_wait": "soon"}),
        (Options, {"nice": -1}),
        (Options, {"nice": 20}),
        (Worker, {"ranks_per_node": None}),
        (Image, {"python": 3.12}),
        (Image, {"setup": 1}),
        (Image, {"apt": ["git", 7]}),
        (Image, {"pip_indexes": [{"url": "https://example.org"}]}),
        (Image, {"env": [("A", "1")]}),
        (Image, {"includes": ["/etc/hosts"]}),
        (Image, {"includes": ["data", "../secrets"]}),
        (Image, {"includes": ["~/.netrc"]}),
        (Image, {"includes": ["a**b"]}),
        (Image, {"excludes": ["/build"]}),
        (Image, {"excludes": [""]}),
        (PipIndex, {"url": None}),
        (Image, {"pip": "torch"}),
        (Image, {"env": {"A": 1}}),
        (Image, {"env": {"COMPUTE_POOL": "mine"}}),
    ],
)
def test_values_that_make_no_sense(kind: Any, values: dict[str, Any]) -> None:
    given = {"url": "https://example.org"} | values if kind is PipIndex else values
    with pytest.raises(sky.UsageError, match=f"^{next(iter(values))}: ") as caught:
        kind(**given)
    assert isinstance(caught.value, SpecError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_is_wrong_is_said_and_what_it_should_be() -> None:
    with pytest.raises(SpecError, match=r"^grace: should be a number of seconds, 0 to 3600 \(got -1\)$"):
        Options(grace=-1)
    with pytest.raises(SpecError, match=r"^pip: should be a list \(got str\)$"):
        Image(pip="torch")
    with pytest.raises(SpecError, match=r"^includes: '/etc/hosts' leads out of the working folder, and only what"):
        Image(includes=["/etc/hosts"])
    assert Image(includes=["./data/", "..x", "**"], excludes=["*.bin"]).includes == ("data/", "..x", "**")
    with pytest.raises(SpecError, match=r"^ranks_per_node: should be 'gpu', or it should be a whole number"):
        Worker(ranks_per_node=65)
    with pytest.raises(TypeError, match="colour"):
        Options(colour="red")  # type: ignore[call-arg]


def test_a_wrong_variable_is_named_and_its_value_is_not() -> None:
    with pytest.raises(SpecError, match=r"'TOKEN' is of bytes") as caught:
        Image(env={"TOKEN": b"hunter2"})  # type: ignore[dict-item]
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(Image(env={"TOKEN": "hunter2"}))


def test_lists_are_kept_as_tuples_and_numbers_as_what_they_stand_for() -> None:
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    assert Image(pip=["torch"], excludes=(g for g in ("*.bin",))) == Image(  # type: ignore[arg-type]
        pip=("torch",), excludes=("*.bin",)
    )
    assert json.dumps(spec(nodes=np.int64(4)).describe()["nodes"]) == "4"
    assert json.dumps(Options(grace=np.float32(2)).grace) == "2.0"
    assert Image(workdir=Path("jobs")).workdir == "jobs"
    given = {"A": "1"}
    image = Image(env=given)
    given["A"] = "2"
    assert image.env == {"A": "1"}


def test_changed_ones_are_checked_too() -> None:
    assert replace(Options(), grace=1).grace == 1.0
    with pytest.raises(SpecError, match="grace"):
        replace(Options(), grace=-1)


def test_values_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Options().grace = 1  # type: ignore[misc]


def test_the_world_is_nodes_times_ranks() -> None:
    asked = spec(nodes=3, worker=Worker(ranks_per_node=4))
    assert (asked.ranks_per_node, asked.world_size) == (4, 12)
    assert spec(nodes=3, worker=Worker(ranks_per_node="gpu")).ranks_per_node == 1


def test_what_is_written_down_is_json_without_the_environments_secrets() -> None:
    asked = spec(nodes=2, image=Image(pip=("numpy",), env={"TOKEN": "hunter2"}), plugins=(sky.plugins.torch(),))
    written = json.loads(json.dumps(asked.describe()))
    assert "hunter2" not in str(written)
    assert (written["name"], written["provider"], written["nodes"]) == ("fit", "local", 2)
    assert written["plugins"] == ["torch"]
    assert written["image"]["pip"] == ["numpy"]
    assert Options.from_json(written["options"]) == asked.options
    assert Options.from_json(written["options"] | {"of_a_later_release": 1}) == asked.options
    assert Worker(**written["worker"]) == asked.worker
