"""Standalone ranks, ``Options(cluster=False)``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.plugins import Plugin
from tests.support.faults import agent_pids
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("home")


def options(**more: Any) -> sky.Options:
    return sky.Options(**{"console": False, "grace": 1.0, "cluster": False, "fail_fast": False} | more)


@sky.function
def place() -> tuple[object, ...]:
    info = sky.instance_info()
    rendezvous = info.head_addr, info.head_port, info.peers, info.address
    return info.rank, info.world_size, info.node, info.is_head, info.stands_alone, rendezvous


@sky.function
def rank() -> int:
    return sky.instance_info().rank


@sky.function
def who() -> tuple[int, int]:
    return sky.instance_info().rank, os.getpid()


@sky.function
def share(numbers: list[int]) -> list[int]:
    return sky.shard(numbers)


@sky.function
def meet(folder: Path, dies: int = -1) -> int:
    """Wait for a file. One rank dies while the other ranks wait."""
    own = sky.instance_info().rank
    (folder / f"here-{own}").touch()
    if own == dies:
        os._exit(3)
    while not (folder / "go").exists():
        time.sleep(0.01)
    return own


def has_marks(folder: Path, count: int) -> Callable[[], bool]:
    return lambda: len(list(folder.glob("here-*"))) == count


@pytest.fixture
def pool() -> Iterator[sky.Compute]:
    with sky.Compute(nodes=2, worker=sky.Worker(ranks_per_node=2), options=options()) as compute:
        yield compute
    assert compute.receipt is not None and compute.receipt.ok


def test_standalone_ranks_know_their_rank_but_no_peers(pool: sky.Compute) -> None:
    expected = [(r, 4, r // 2, r == 0, True, ("", 0, (), "")) for r in range(4)]
    assert place() @ pool == expected
    alone = (0, 1, 0, True, True, ("", 0, (), ""))
    assert set(sky.gather(*[place() for _ in range(8)]) >> pool) == {alone}
    assert share(list(range(10))) @ pool == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    with sky.attach(pool.name) as other:
        assert place() @ other == expected


def test_dead_standalone_rank_does_not_affect_other_ranks(pool: sky.Compute, tmp_path: Path) -> None:
    before = dict(who() @ pool)
    with ThreadPoolExecutor(2) as beside:
        first = beside.submit(lambda: meet(tmp_path, dies=1) @ pool)
        wait_until(has_marks(tmp_path, 4), what="all ranks")
        # This one waits behind the first on the three that live.
        second = beside.submit(lambda: who() @ pool)
        wait_until(lambda: len(pool.pool.context.registry.runs) == 2)
        (tmp_path / "go").touch()
        with pytest.raises(sky.RunError) as caught:
            first.result(60)
        after = dict(second.result(60))
    assert (caught.value.root_cause.rank, caught.value.root_cause.exit_code) == (1, 3)
    assert caught.value.results == {0: 0, 2: 2, 3: 3}
    assert {r for r in range(4) if before[r] != after[r]} == {1}, "only the dead one is another process"


def test_fail_fast_stops_other_standalone_ranks(tmp_path: Path) -> None:
    with sky.Compute(nodes=2, options=options(fail_fast=True)) as compute:
        with pytest.raises(sky.RunError) as caught:
            meet(tmp_path, dies=1) @ compute
        assert {i: out.kind for i, out in caught.value.outcomes.items()} == {0: "collateral", 1: "exited"}
        assert rank() @ compute == [0, 1]


@pytest.mark.proof("1 s of a processor")
def test_two_clients_broadcast_concurrently_to_a_standalone_pool(pool: sky.Compute) -> None:
    with sky.attach(pool.name) as other, ThreadPoolExecutor(2) as beside:
        both = [beside.submit(lambda to: [rank() @ to for _ in range(10)], p) for p in (pool, other)]
        assert [each.result(60) for each in both] == [[[0, 1, 2, 3]] * 10] * 2


@pytest.mark.proof("1 s of a processor")
def test_standalone_call_continues_after_an_agent_death(pool: sky.Compute, tmp_path: Path) -> None:
    before = dict(who() @ pool)
    agents = agent_pids(pool)
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: meet(tmp_path) @ pool)
        wait_until(has_marks(tmp_path, 4), what="all ranks")
        os.kill(agents[1], signal.SIGKILL)
        wait_until(lambda: agent_pids(pool)[1] != agents[1], what="a new agent")
        (tmp_path / "go").touch()
        assert running.result(60) == [0, 1, 2, 3]
    assert dict(who() @ pool) == before


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Diary(Plugin):
    """Plugin without peers that records when it is entered. It raises while the file named by ``fail`` exists."""

    name = "diary"

    def __init__(self, file: Path, fail: Path | None = None) -> None:
        self.file = file
        self.fail = fail

    def note(self, what: str) -> None:
        with self.file.open("a") as diary:
            print(what, os.getpid(), file=diary)

    def lines(self) -> list[str]:
        return [line.rpartition(" ")[0] for line in self.file.read_text().splitlines()]

    @contextmanager
    def around_app(self, info: sky.InstanceInfo) -> Iterator[None]:
        self.note("app")
        yield

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        if self.fail is not None and self.fail.exists():
            raise LookupError("no token")
        self.note(f"rank {info.rank}")
        yield


@pytest.mark.proof("1 s of a processor")
def test_failed_plugin_is_entered_again_by_the_next_standalone_run(tmp_path: Path) -> None:
    fail = tmp_path / "fail"
    fail.touch()
    with sky.Compute(plugins=[Diary(tmp_path / "diary", fail)], options=options()) as compute:
        for run in (lambda: rank() @ compute, lambda: rank() >> compute):
            with pytest.raises(sky.RunError, match="plugin diary failed in around_process: LookupError"):
                run()
        fail.unlink()
        assert rank() @ compute == [0]


@pytest.mark.proof("1 s of a processor")
def test_dead_plugin_process_is_entered_again_only_on_its_node(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    with sky.Compute(nodes=2, plugins=[diary], options=options()) as compute:
        before = dict(who() @ compute)
        apps = {int(line.split()[1]) for line in diary.file.read_text().splitlines() if line.startswith("app")}
        (victim,) = [pid for pid in apps if parent(pid) == agent_pids(compute)[1]]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{victim}").exists(), what="the agent's noticing it")
        after = dict(who() @ compute)
        assert (after[0] == before[0], after[1] == before[1]) == (True, False)
        assert diary.lines()[4:] == ["app", "rank 1"], "it is entered before its rank is"


GANGS: dict[str, tuple[Callable[[], Any], str]] = {
    "torch": (sky.plugins.torch, "a process group of all ranks"),
    "accelerate": (sky.plugins.accelerate, "a process group of all ranks"),
    "jax": (sky.plugins.jax, "one mesh of all ranks' devices"),
    "tensorflow": (sky.plugins.tensorflow, "TF_CONFIG, which names every rank's address"),
    "keras": (lambda: sky.plugins.keras(backend="torch"), "a process group of all ranks"),
}


@pytest.mark.parametrize("name", GANGS)
def test_plugins_that_need_peers_are_rejected_for_standalone_ranks(home: Path, name: str) -> None:
    make, what = GANGS[name]
    with pytest.raises(sky.UsageError) as caught, sky.Compute(nodes=2, plugins=[make()], options=options()):
        pass
    assert str(caught.value) == (
        f"plugin {name} requires connections between ranks, for {what}, but Options(cluster=False) makes ranks "
        "standalone. Remove cluster=False or the plugin, or use one rank (nodes=1, ranks_per_node=1)."
    )
    from skyward_core.store.ledger import Ledger  # which ranks do without

    assert Ledger().live_pools() == []
    assert not (home / "local").exists()


def test_custom_plugin_declares_peers_by_an_attribute(home: Path) -> None:
    class Ring(Plugin):
        name = "ring"
        needs_peers = "a ring of sockets"

    for shape in ({"nodes": 2}, {"worker": sky.Worker(ranks_per_node=2)}):
        with pytest.raises(sky.UsageError, match=r"plugin ring requires .* for a ring of sockets"):
            sky.Compute(plugins=[Ring()], options=options(), **shape).__enter__()
    with sky.Compute(plugins=[Ring()], options=options()) as compute:
        assert rank() @ compute == [0]


@pytest.mark.proof("0.5 s of a processor")
def test_decorator_that_needs_peers_is_rejected_in_a_standalone_rank() -> None:
    @sky.function
    @sky.integrations.torch
    def train() -> None:
        raise AssertionError("never called")

    with sky.Compute(nodes=2, options=options()) as compute:
        with pytest.raises(sky.RunError, match="plugin torch requires connections between ranks") as caught:
            train() @ compute
        assert isinstance(caught.value.__cause__, sky.UsageError)
