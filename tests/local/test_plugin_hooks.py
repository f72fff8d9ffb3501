"""A person's own plugin on a real pool: which hook runs where, in which order, and who is named when one raises."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.model.errors import UsageError
from skyward_core.plugins import Plugin, PluginError
from skyward_core.store.ledger import Ledger

pytestmark = pytest.mark.usefixtures("home")

QUIET = sky.Options(console=False)


class Diary(Plugin):
    """Writes down what happens to it."""

    def __init__(self, name: str, file: Path, fails: str = "") -> None:
        self.name = name  # type: ignore[misc]
        self.file = file
        self.fails = fails

    def note(self, what: str) -> None:
        with open(self.file, "a") as diary:
            diary.write(f"{self.name} {what}\n")
        if what.startswith(self.fails or "never"):
            raise LookupError("no such thing")

    def transform(self, image: sky.Image, pool_spec: sky.PoolSpec) -> sky.Image:
        self.note("transform")
        return replace(image, env=image.env | {f"BY_{self.name.upper()}": str(pool_spec.nodes)})

    def bootstrap(self, pool_spec: sky.PoolSpec) -> Sequence[str]:
        self.note("bootstrap")
        return ()

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        name = self.name
        return lambda *args: [name, *fn(*args)]

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        self.note(f"enter {info.rank}")
        os.environ[f"IN_{self.name.upper()}"] = str(info.rank)
        try:
            yield
        finally:
            self.note(f"leave {info.rank}")

    @contextmanager
    def around_client(self, pool: sky.Compute) -> Iterator[None]:
        self.note(f"client of {pool.spec.nodes}")
        try:
            yield
        finally:
            self.note("client ends")


@sky.function
def seen() -> list[str | None]:
    return [os.environ.get(name) for name in ("BY_A", "BY_B", "IN_A", "IN_B")]


def test_hooks_run_where_and_when_they_should(tmp_path):
    diary = tmp_path / "diary"
    with sky.Compute(nodes=2, plugins=[Diary("a", diary), Diary("b", diary)], options=QUIET) as pool:
        for _ in range(2):  # workers live on, and their contexts with them
            assert seen() @ pool == [["a", "b", "2", "2", str(rank), str(rank)] for rank in (0, 1)]
        assert seen() >> pool in (["a", "b", "2", "2", "0", "0"], ["a", "b", "2", "2", "1", "1"])
    lines = diary.read_text().splitlines()
    assert lines[:4] == ["a transform", "b transform", "a bootstrap", "b bootstrap"]
    for rank in (0, 1):
        own = [line for line in lines if line.endswith(f"r {rank}") or line.endswith(f"e {rank}")]
        assert own == [f"a enter {rank}", f"b enter {rank}", f"b leave {rank}", f"a leave {rank}"]
    clients = [line for line in lines if "client" in line]
    assert clients == ["a client of 2", "b client of 2", "b client ends", "a client ends"]
    assert len(lines) == 16


def test_one_that_raises_in_a_worker_fails_the_run_with_its_name(tmp_path):
    plugins = [Diary("a", tmp_path / "diary"), Diary("b", tmp_path / "diary", fails="enter 1")]
    with (
        pytest.raises(sky.RunError, match=r"plugin b failed in around_process: LookupError") as caught,
        sky.Compute(nodes=2, plugins=plugins, options=QUIET) as pool,
    ):
        seen() @ pool
    assert caught.value.root_cause.rank == 1
    assert isinstance(caught.value.__cause__, PluginError)
    assert caught.value.__cause__.plugin == "b"


@pytest.mark.parametrize("hook", ["transform", "bootstrap"])
def test_one_that_raises_on_the_client_stops_the_pool_before_anything_is_made(hook, tmp_path):
    compute = sky.Compute(nodes=2, plugins=[Diary("a", tmp_path / "diary", fails=hook)], options=QUIET)
    with pytest.raises(PluginError, match=f"plugin a failed in {hook}: LookupError"), compute:
        pass
    assert compute.receipt is None
    assert Ledger().find_pool(compute.name) is None


def test_one_that_raises_beside_a_pool_that_is_up_is_named_and_the_pool_taken_down(tmp_path):
    diary = tmp_path / "diary"
    plugins = [Diary("a", diary), Diary("b", diary, fails="client of 1")]
    compute = sky.Compute(nodes=1, plugins=plugins, options=QUIET)
    with pytest.raises(PluginError, match=r"plugin b failed in around_client: LookupError"), compute:
        pass
    assert compute.receipt is not None and compute.receipt.ok
    assert "a client ends" in diary.read_text().splitlines()


def test_plugins_that_do_not_go_together_are_refused_at_once():
    with pytest.raises(UsageError, match="given twice"):
        sky.Compute(plugins=[sky.plugins.torch(), sky.plugins.torch()])
    with pytest.raises(UsageError, match=r"call it: Torch\(\)"):
        sky.Compute(plugins=[sky.plugins.torch])  # type: ignore[list-item]
