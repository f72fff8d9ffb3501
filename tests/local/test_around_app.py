"""Plugin hooks on a real pool, and ``around_app`` in its own process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.plugins import Plugin, PluginError
from skyward_core.store.ledger import Ledger
from tests.support.faults import agent_pids, worker_pids
from tests.support.processes import descendants, exists
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("home")

QUIET = sky.Options(console=False, grace=5.0)


class Service(Plugin):
    """Service that a node's ranks share. Records when it is entered and left, and by which process."""

    def __init__(self, name: str, diary: Path, fails: str = "") -> None:
        self.name = name  # type: ignore[misc]
        self.diary = diary
        self.fails = fails

    def note(self, info: sky.InstanceInfo, what: str) -> None:
        with self.diary.open("a") as diary:
            print(json.dumps([info.node, self.name, what, os.getpid()]), file=diary)

    @contextmanager
    def around_app(self, info: sky.InstanceInfo) -> Iterator[None]:
        print("the service", self.name, "begins")
        self.note(info, "app enter")
        failing = self.fails and info.node == 1
        if failing and self.fails == "raise":
            raise LookupError("no such service")
        if failing and self.fails == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while failing and self.fails == "hang":
            time.sleep(0.01)
        try:
            yield
        finally:
            self.note(info, "app leave")

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        self.note(info, "rank enter")
        try:
            yield
        finally:
            self.note(info, "rank leave")


class Plain(Plugin):
    """Plugin without ``around_app``."""

    name = "plain"


def notes(diary: Path, node: int, *beginnings: str) -> list[tuple[str, str]]:
    """Return the recorded plugins and events of a node, in order."""
    lines = [json.loads(line) for line in diary.read_text().splitlines()] if diary.exists() else []
    return [(name, what) for at, name, what, _ in lines if at == node and what.startswith(beginnings or ("",))]


def app_pids(diary: Path) -> set[int]:
    return {pid for _, _, what, pid in map(json.loads, diary.read_text().splitlines()) if what == "app enter"}


@sky.function
def rank() -> int:
    return sky.instance_info().rank


@sky.function
def fail() -> None:
    raise ValueError("on purpose")


def services(diary: Path, **of_b: str) -> list[Plugin]:
    return [Service("a", diary), Plain(), Service("b", diary, **of_b)]


def test_around_app_enters_once_per_node_and_exits_after_its_ranks(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    worker = sky.Worker(ranks_per_node=2)
    with sky.Compute(nodes=2, worker=worker, plugins=services(diary), options=QUIET) as compute:
        assert rank() @ compute == [0, 1, 2, 3]
        assert rank() @ compute == [0, 1, 2, 3]
        with pytest.raises(sky.RunError, match="on purpose"):
            fail() @ compute
        assert rank() @ compute == [0, 1, 2, 3], "a new epoch of the gang"
        (log,) = compute.pool.archive.folder.parents[1].rglob("node-1/spool/app.log")
        assert "the service b begins" in log.read_text()
        pids = worker_pids(compute)
    for node in (0, 1):
        assert notes(diary, node, "app") == [
            ("a", "app enter"), ("b", "app enter"), ("b", "app leave"), ("a", "app leave"),
        ]  # fmt: skip
        everything = [what for _, what in notes(diary, node)]
        assert everything[:2] == ["app enter"] * 2
        assert everything[-2:] == ["app leave"] * 2
        assert everything.count("rank enter") == 2 * 2 * 2, "two plugins, two ranks, two epochs"
    assert len(app_pids(diary)) == 2
    assert not any(exists(pid) for pid in pids)


def test_no_plugin_process_is_started_without_around_app(tmp_path: Path) -> None:
    with sky.Compute(plugins=[Plain()], options=QUIET) as compute:
        assert rank() @ compute == [0]
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in worker_pids(compute)]
    assert not [line for line in lines if b"agent.app" in line]


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "plugin b failed in around_app: LookupError: no such service"),
        ("die", "plugin b failed in around_app: its process was ended by SIGKILL"),
    ],
)
def test_failing_around_app_fails_the_run_and_names_the_plugin(how: str, words: str, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with sky.Compute(nodes=2, plugins=services(diary, fails=how), options=QUIET) as compute:
        for attempt in (1, 2):  # it is tried again for every gang
            with pytest.raises(sky.RunError, match=words) as caught:
                rank() @ compute
            assert caught.value.root_cause.rank == 1
            error = caught.value.__cause__
            assert isinstance(error, PluginError)
            assert (error.plugin, error.hook) == ("b", "around_app")
            assert notes(diary, 1, "app enter") == [("a", "app enter"), ("b", "app enter")] * attempt
        pids = worker_pids(compute)
    assert notes(diary, 1, "rank enter") == []
    assert not any(exists(pid) for pid in [*pids, *app_pids(diary)])
    if how == "raise":
        assert notes(diary, 1, "app leave") == [("a", "app leave")] * 2, "what was entered before it is left"


@pytest.mark.proof("1 s of a processor")
def test_next_agent_adopts_the_entered_plugin_process(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with sky.Compute(plugins=services(diary), options=QUIET) as compute:
        assert rank() @ compute == [0]
        (agent,), pids = agent_pids(compute), app_pids(diary)
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: agent_pids(compute) != [agent], what="a new agent")
        assert rank() @ compute == [0]
        with pytest.raises(sky.RunError, match="on purpose"):
            fail() @ compute
        assert rank() @ compute == [0], "a new epoch of the gang"
        assert app_pids(diary) == pids
    assert notes(diary, 0, "app") == [
        ("a", "app enter"), ("b", "app enter"), ("b", "app leave"), ("a", "app leave"),
    ]  # fmt: skip
    assert not any(exists(pid) for pid in pids)


@pytest.mark.proof("1 s of a processor")
def test_killed_plugin_process_is_entered_again_for_the_next_run(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with sky.Compute(nodes=2, plugins=services(diary), options=QUIET) as compute:
        assert rank() @ compute == [0, 1]
        before = app_pids(diary)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(link.broken for link in compute.pool.links), what="news of their end")
        assert rank() @ compute == [0, 1]
        after = app_pids(diary) - before
        assert len(after) == 2
    assert not any(exists(pid) for pid in before | after)
    assert [what for _, what in notes(diary, 0, "app")] == ["app enter"] * 4 + ["app leave"] * 2


@pytest.mark.proof("1 s of a processor")
def test_teardown_during_around_app_leaves_no_process(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    options = sky.Options(console=False, grace=1.0)
    compute = sky.Compute(nodes=2, plugins=services(diary, fails="hang"), options=options)
    with compute:
        wait_until(lambda: ("b", "app enter") in notes(diary, 1), what="node 1 to hang")
        below = {pid for agent in agent_pids(compute) for pid in descendants(agent)}
    assert compute.receipt is not None
    assert compute.receipt.ok
    assert app_pids(diary) <= below
    assert not any(exists(pid) for pid in below)
    assert ("a", "app leave") in notes(diary, 1), "Stopped is raised in what hangs"


# A person's own plugin on a real pool: which hook runs where, in which order, and who is named when one raises.


WITHOUT_GRACE = sky.Options(console=False)


class Diary(Plugin):
    """Plugin that records its events."""

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


def test_plugin_hooks_run_in_order_on_client_and_ranks(tmp_path):
    diary = tmp_path / "diary"
    with sky.Compute(nodes=2, plugins=[Diary("a", diary), Diary("b", diary)], options=WITHOUT_GRACE) as pool:
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


def test_plugin_failing_in_a_worker_fails_the_run_by_name(tmp_path):
    plugins = [Diary("a", tmp_path / "diary"), Diary("b", tmp_path / "diary", fails="enter 1")]
    with (
        pytest.raises(sky.RunError, match=r"plugin b failed in around_process: LookupError") as caught,
        sky.Compute(nodes=2, plugins=plugins, options=WITHOUT_GRACE) as pool,
    ):
        seen() @ pool
    assert caught.value.root_cause.rank == 1
    assert isinstance(caught.value.__cause__, PluginError)
    assert caught.value.__cause__.plugin == "b"


@pytest.mark.parametrize("hook", ["transform", "bootstrap"])
def test_plugin_failing_on_the_client_prevents_pool_creation(hook, tmp_path):
    compute = sky.Compute(nodes=2, plugins=[Diary("a", tmp_path / "diary", fails=hook)], options=WITHOUT_GRACE)
    with pytest.raises(PluginError, match=f"plugin a failed in {hook}: LookupError"), compute:
        pass
    assert compute.receipt is None
    assert Ledger().find_pool(compute.name) is None


def test_plugin_failing_in_around_client_tears_the_pool_down(tmp_path):
    diary = tmp_path / "diary"
    plugins = [Diary("a", diary), Diary("b", diary, fails="client of 1")]
    compute = sky.Compute(nodes=1, plugins=plugins, options=WITHOUT_GRACE)
    with pytest.raises(PluginError, match=r"plugin b failed in around_client: LookupError"), compute:
        pass
    assert compute.receipt is not None and compute.receipt.ok
    assert "a client ends" in diary.read_text().splitlines()
