"""An argument that nothing takes is refused with the nearest one that is taken."""

from __future__ import annotations

import inspect
import pickle
from abc import ABC
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

import skyward_core
from skyward_core.api import older_api_names
from skyward_core.model.older_api_arguments import did_you_mean
from skyward_core.plugins import available, factory
from skyward_core.plugins.plugin import Plugin
from skyward_core.store import state_folder

sky: Any = skyward_core  # checkers know what is wrong here

REFUSED = [
    (lambda: sky.Compute(nodez=2), "sky.Compute takes no 'nodez'; did you mean 'nodes'?"),
    (lambda: sky.Compute(exectuor=None), "sky.Compute takes no 'exectuor'; did you mean 'executor'?"),
    (lambda: sky.Compute(pip=["x"]), "sky.Compute takes no 'pip', which sky.Image does: image=sky.Image(pip=...)"),
    (lambda: sky.Compute(grace=2), "sky.Compute takes no 'grace', which sky.Options does: "
        "options=sky.Options(grace=...)"),
    (lambda: sky.Compute(gpus=2), "sky.Compute takes no 'gpus': accelerator=\"A100:8\" is what it takes"),
    (lambda: sky.ComputePool(imgae=None), "sky.Compute takes no 'imgae'; did you mean 'image'?"),
    (lambda: sky.Compute.attached("x", consol=1), "sky.Compute.attached takes no 'consol'; did you mean 'console'?"),
    (lambda: sky.Image(pips=[]), "sky.Image takes no 'pips'; did you mean 'pip'?"),
    (lambda: sky.Options(idletimeout=2), "sky.Options takes no 'idletimeout'; did you mean 'idle_timeout'?"),
    (lambda: sky.Worker(ranks=2), "sky.Worker takes no 'ranks'; did you mean 'ranks_per_node'?"),
    (
        lambda: sky.Worker(xx=2),
        "sky.Worker takes no 'xx'; known: concurrency, executor, ranks_per_node, buffer, reuse_processes",
    ),
    (lambda: sky.Spec(provder="local"), "sky.Spec takes no 'provder'; did you mean 'provider'?"),
    (lambda: sky.PipIndex(uri="x"), "sky.PipIndex takes no 'uri'; did you mean 'url'?"),
    (lambda: replace(sky.Image(), pips=[]), "sky.Image takes no 'pips'; did you mean 'pip'?"),
    (lambda: sky.Executor(tpye="thread"), "sky.Executor takes no 'tpye'; did you mean 'type'?"),
    (lambda: sky.function(timeot=3), "sky.function takes no 'timeot'; did you mean 'timeout'?"),
    (lambda: sky.Local(nodes=2), "sky.Local takes no 'nodes'; it takes none"),
    (lambda: sky.Local(2), "sky.Local takes no arguments, and was given 1"),
    (lambda: sky.SSH(["a"], usr="x"), "sky.SSH takes no 'usr'; did you mean 'user'?"),
    (lambda: sky.SSH(host=["a"]), "sky.SSH takes no 'host'; did you mean 'hosts'?"),
    (lambda: sky.SSH(["a"], "me"), "sky.SSH takes 1 by position, and was given 2 by position"),
    (lambda: sky.AWS(regoin="x"), "sky.AWS takes no 'regoin'; did you mean 'region'?"),
    (lambda: sky.AWS(subnet_idd="x"), "sky.AWS takes no 'subnet_idd'; did you mean 'subnet_id'?"),
    (lambda: sky.AWS("us-east-1"), "sky.AWS takes all by name, and was given 1 by position"),
    (lambda: sky.Slurm(partiton="x"), "sky.Slurm takes no 'partiton'; did you mean 'partition'?"),
    (lambda: sky.plugins.Torch(bakend="x"), "sky.plugins.torch takes no 'bakend'; did you mean 'backend'?"),
    (lambda: sky.Nodes(desird=8), "sky.Nodes takes no 'desird'; did you mean 'desired'?"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "said"), REFUSED, ids=[said for _, said in REFUSED])
@pytest.mark.filterwarnings("ignore:sky.ComputePool:FutureWarning")
def test_an_unknown_argument(make: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older_api_names, "_warned", set())  # others have their own first time
    with pytest.raises(TypeError) as raised:
        make()
    assert str(raised.value) == said


@pytest.mark.parametrize(("make", "said"), [
    (lambda: sky.Compute("train"), "all else by name: sky.Compute(name=...) (got 'train')"),
    (lambda: sky.Compute(sky.Local(), nodes=2), "all else by name: sky.Compute(provider=...) (got Local())"),
    (lambda: sky.Compute(sky.RunPod), "all else by name: sky.Compute(provider=...) (got <class "),
    (lambda: sky.Compute(4), "all else by name (got 4)"),
    (lambda: sky.Compute(options={"console": False}), "options: should be sky.Options(...) (got dict)"),
    (lambda: sky.Compute(name="train", options=3), "options: should be sky.Options(...) (got int)"),
    (lambda: sky.Compute(plugins=["torch"]), "'torch' is not a plugin; write sky.plugins.torch()"),
])  # fmt: skip
@pytest.mark.parametrize("override", [None, "local"])
def test_a_value_of_another_kind(make: Any, said: str, override: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_folder, "provider_override", override)
    with pytest.raises(sky.UsageError) as raised:
        make()
    assert said in str(raised.value)


def test_the_open_pool_is_called_as_the_library_is() -> None:
    """`from skyward import *`, behind `import skyward as sky`, puts it in the library's place."""
    star = sky.sky
    assert star.Compute is sky.Compute and star.plugins is sky.plugins and star.sky is star
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        star.nothing  # noqa: B018


@pytest.mark.parametrize("name", [each.name for each in available()])
def test_plugins_know_their_own(name: str) -> None:
    made = factory(name)
    with pytest.raises(TypeError, match=rf"^sky\.plugins\.{name} takes no 'zzzz'"):
        made(zzzz=1)
    for each in (each for each in fields(made) if each.init):
        with pytest.raises(TypeError, match=rf"^sky\.plugins\.{name} takes no '{each.name}x'; did you mean "):
            made(**{f"{each.name}x": 1})


def test_what_is_known_is_taken() -> None:
    assert sky.plugins.torch("nccl").backend == "nccl"
    assert sky.SSH("a", user="me").hosts == ("a",) and sky.SSH(hosts=["a"]).user is None
    assert sky.AWS(username="me").ssh_user == "me"  # an older word
    assert list(inspect.signature(sky.plugins.mig).parameters) == ["profile"]
    for value in (sky.plugins.torch("gloo"), sky.SSH(["a"]), sky.AWS(region="x")):
        assert pickle.loads(pickle.dumps(value)) == value and replace(value) == value


def test_of_other_packages() -> None:
    class Greeter(Plugin):
        name = "greeter"

    class Waver(Plugin, ABC):
        def __init__(self, hand: str, **more: Any) -> None:
            self.hand, self.more = hand, more

    @dataclass(frozen=True)
    class Nodder(Plugin):
        times: int = 1

    class Twice(Nodder):
        def __init__(self, times: int, fast: bool) -> None:
            super().__init__(times * 2)
            object.__setattr__(self, "fast", fast)

    assert Waver("left", also=1).more == {"also": 1} and Twice(2, fast=True).times == 4
    with pytest.raises(TypeError, match=r"^Greeter takes no arguments, and was given 1$"):
        Greeter(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Greeter takes no 'loud'; it takes none$"):
        Greeter(loud=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Nodder takes no 'tims'; did you mean 'times'"):
        Nodder(tims=1)  # type: ignore[call-arg]


def test_what_is_meant() -> None:
    assert did_you_mean("timeout", ["grace", "start_timeout"]) == "; did you mean 'start_timeout'?"
    assert did_you_mean("timeout", ["aaaaaaaaaaa_timeout", "bbbbbbbbbbb_timeout", *"abcdefg"]) == ""
    assert did_you_mean("zz", ["one", "two"]) == "; known: one, two"
    assert did_you_mean("zz", [str(each) for each in range(20)]) == ""
