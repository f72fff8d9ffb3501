"""The rank, world and variables of calls, on pools of every kind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import skyward_core as sky
from tests.support.faults import agent_pids, on_loop
from tests.support.joining_plugin import Joins
from tests.support.processes import descendants
from tests.support.task_places import pool_rank
from tests.support.waiting import wait_until

STARTS_WORKERS = True

C10D = "torch.distributed.distributed_c10d"
QUIET = sky.Options(console=False, grace=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("joins")


@pytest.fixture(scope="module")
def pool(module_home: Path, folder: Path) -> Iterator[sky.Compute]:
    with sky.Compute(nodes=2, plugins=[Joins(str(folder))], options=QUIET) as compute:
        yield compute
    assert compute.receipt is not None and compute.receipt.ok


@sky.function
def world_of(n: int = 0) -> tuple[list[int], int, int]:
    from tests.support.joining_plugin import joined

    return joined, sky.instance_info().world_size, os.getpid()


@sky.function
def alone(folder: str, name: str, number: int = 0) -> list[int]:
    """Fail if another call runs on the rank at the same time."""
    from tests.support.joining_plugin import joined

    rank = sky.instance_info().rank if sky.instance_info().world_size > 1 else pool_rank()
    mark = Path(folder, f"busy.{rank}")
    mark.touch(exist_ok=False)
    if name:
        wait_until(Path(folder, name).exists)
    mark.unlink()
    return joined


def second_workers(pool: sky.Compute) -> set[int]:
    """Return the processes that run the ranks' tasks beside the gang's processes. They are started with the number
    1.
    """
    found = set()
    for pid in (pid for agent in agent_pids(pool) for pid in descendants(agent)):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().endswith("\0001\0"):
                found.add(pid)
    return found


def worlds(reports: Any) -> list[tuple[list[int], int]]:
    return [(joined, size) for joined, size, _ in reports]


def test_tasks_of_every_kind_run_in_a_world_of_one(pool: sky.Compute, folder: Path) -> None:
    first = world_of() >> pool
    assert first[:2] == ([1], 1)
    assert not list(folder.glob("enters.2.*")), "tasks need no gang"
    gang = world_of() @ pool
    assert worlds(gang) == [([2], 2)] * 2
    trials = sky.sweep(world_of, n=range(5)) >> pool
    with sky.Executor(pool) as executor:
        submitted = executor.submit(world_of.__wrapped__).result(60)  # type: ignore[attr-defined]
    values = [
        *(sky.gather(*[world_of() for _ in range(5)]) >> pool),
        *(trial.value for trial in trials),
        *pool.map(world_of, range(5)),
        submitted,
        (world_of() > pool).result(60),
    ]
    assert worlds(values) == [([1], 1)] * len(values)
    assert {pid for *_, pid in values}.isdisjoint(pid for *_, pid in gang)
    assert world_of() @ pool == gang, "the gang lives on"


def test_calls_of_a_rank_run_in_their_order_of_arrival(pool: sky.Compute, folder: Path, tmp_path: Path) -> None:
    tasks = [alone(str(tmp_path), "go") > pool for _ in range(2)]
    wait_until(lambda: len(list(tmp_path.glob("busy.*"))) == 2)
    runs = [alone(str(tmp_path), "").on_all(pool)]
    late = [alone(str(tmp_path), "") > pool for _ in range(6)]
    runs += [alone(str(tmp_path), "").on_all(pool) for _ in range(2)]
    futures: list[Any] = [*runs, *late]
    assert not any(each.done() for each in futures)
    # Each rank has two processes, and the one is shown that works.
    stacks = pool.stacks().ranks
    assert sorted((each.rank, each.at) for each in stacks) == [(0, "running"), (1, "running")]
    (tmp_path / "go").touch()
    assert [each.result(60) for each in tasks + late] == [[1]] * 8
    assert [each.result(60) for each in runs] == [[[2], [2]]] * 3


def test_cancelled_or_killed_task_does_not_break_the_gang(pool: sky.Compute, tmp_path: Path) -> None:
    @sky.function
    def waits(how: str) -> None:
        Path(tmp_path, "here").touch()
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    cancelled = waits("waits") > pool
    wait_until((tmp_path / "here").exists)
    cancelled.cancel()
    with pytest.raises(sky.RunError, match="SIGKILL"):
        waits("dies") >> pool
    assert worlds([world_of() >> pool, *(world_of() @ pool)]) == [([1], 1), ([2], 2), ([2], 2)]


def test_queued_task_survives_the_death_of_its_starting_worker(pool: sky.Compute, tmp_path: Path) -> None:
    gang = world_of() @ pool
    places = {pid for *_, pid in sky.gather(*[world_of() for _ in range(4)]) >> pool}
    assert second_workers(pool) == places and len(places) == 2
    run = alone(str(tmp_path), "go").on_all(pool)
    wait_until(lambda: len(list(tmp_path.glob("busy.*"))) == 2)
    tasks = [alone(str(tmp_path), "") > pool for _ in range(2)]
    killed: set[int] = set()
    for _ in range(2):
        # The next process starts once a task waits for it, and is killed while it starts.
        wait_until(lambda: len(second_workers(pool) - killed) == 2)
        for pid in second_workers(pool):
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    wait_until(lambda: len(second_workers(pool) - killed) == 2)
    assert not run.done() and not any(each.done() for each in tasks)
    (tmp_path / "go").touch()
    assert [each.result(60) for each in tasks] == [[1], [1]]
    assert run.result(60) == [[2], [2]]
    assert worlds(sky.gather(world_of(), world_of()) >> pool) == [([1], 1)] * 2
    assert world_of() @ pool == gang, "the gang lives on"


def test_tasks_after_an_agent_death_stay_out_of_the_gang(module_home: Path, tmp_path: Path) -> None:
    plugins = [Joins(str(tmp_path))]
    with sky.Compute(nodes=2, plugins=plugins, options=QUIET) as compute:
        gang = world_of() @ compute
        tasks = [alone(str(tmp_path), "go") > compute for _ in range(2)]
        wait_until(lambda: len(list(tmp_path.glob("busy.*"))) == 2)
        for pid in agent_pids(compute):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(link.up for link in compute.pool.links))
        (tmp_path / "go").touch()
        assert [each.result(60) for each in tasks] == [[1], [1]]
        assert worlds([world_of() >> compute for _ in range(2)]) == [([1], 1)] * 2
        assert world_of() @ compute == gang


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("executor", ["process", "thread"])
def test_concurrent_tasks_of_a_rank_stay_out_of_the_gang(module_home: Path, tmp_path: Path, executor: Any) -> None:
    worker = sky.Worker(ranks_per_node=2, concurrency=2, executor=executor)
    with sky.Compute(nodes=1, worker=worker, plugins=[Joins(str(tmp_path))], options=QUIET) as compute:
        assert worlds(world_of() @ compute) == [([2], 2)] * 2
        worlds_seen = sky.gather(*[world_of() for _ in range(12)]) >> compute
        assert worlds(worlds_seen) == [([1], 1)] * 12


@sky.function
def group(leaves: bool = False) -> tuple[bool, int]:
    """Return whether this process has a process group, and leave one open, as code without a plugin may do."""
    found = C10D in sys.modules
    if leaves:
        sys.modules[C10D] = SimpleNamespace(is_initialized=lambda: True, group=SimpleNamespace(WORLD=1))  # type: ignore[assignment]
    return found, os.getpid()


def test_process_group_left_by_a_call_is_not_visible_to_tasks(module_home: Path) -> None:
    with sky.Compute(nodes=2, options=QUIET) as compute:
        shared = [pid for _, pid in group() @ compute]
        assert (group() >> compute)[1] in shared, "one process runs both kinds of calls"
        group(leaves=True) @ compute
        assert not any(found for found, _ in sky.gather(*[group() for _ in range(4)]) >> compute)
        assert group() @ compute == [(True, pid) for pid in shared]
    with sky.Compute(nodes=2, options=QUIET) as compute:
        shared = [pid for _, pid in group() @ compute]
        assert (group(leaves=True) >> compute)[1] in shared
        assert [found for found, _ in group() @ compute] == [False, False]


@sky.function
def place() -> tuple[int, int, int, int]:
    info = sky.instance_info()
    return info.rank, info.node, info.world_size, os.getpid()


@sky.function
def task_place() -> tuple[int, tuple[int, int, int], int]:
    return pool_rank(), place.local()[:3], os.getpid()


@sky.function
def niceness() -> int:
    return os.nice(0)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("agents", [False, True], ids=["workers", "agents and workers"])
def test_task_after_a_worker_or_agent_death_knows_its_rank(home: Path, agents: bool) -> None:
    with sky.Compute(nodes=3, options=sky.Options(console=False, nice=3)) as compute:
        before = place() @ compute
        assert set(niceness() @ compute) == {3}
        old = agent_pids(compute)
        for agent in old[1:]:
            below = descendants(agent)
            for pid in (*[agent] * agents, *below):
                os.kill(pid, signal.SIGKILL)
        links = compute.pool.links
        wait_until(lambda: any(link.broken or not link.up for link in links), what="the news of it")
        found = sky.gather(*[task_place() for _ in range(60)]) >> compute
        on_loop(compute.pool.context.background.run_deferred)
        run = list(compute.pool.view.runs.values())[-1]
        reported = [outcome.rank for outcome in run.outcomes()]
        assert [rank for rank, *_ in found] == reported
        assert {own for _, own, _ in found} == {(0, 0, 1)}, "each task has a world of one rank"
        assert {pid for *_, pid in found} - {pid for *_, pid in before}, "new workers had a part in it"
        assert set(niceness() @ compute) == {3}


@pytest.mark.proof("1 s of a processor")
def test_task_after_a_run_on_some_nodes_knows_its_rank_in_the_pool(home: Path) -> None:
    with sky.Compute(nodes=3, options=sky.Options(console=False)) as compute:
        for nodes in ([2], [1, 2]):
            reported = [p[:3] for p in place().with_nodes(nodes) @ compute]
            assert reported == [(n, n, len(nodes)) for n in range(len(nodes))]
            found = sky.gather(*[task_place() for _ in range(9)]) >> compute
            assert {p[:2] for p in found} == {(n, (0, 0, 1)) for n in range(3)}
            # The gang is as it was.
            assert [p[:3] for p in place().with_nodes(nodes) @ compute] == reported


# What follows a failed run on the same pool.


@sky.function
def leave(how: str) -> str:
    if sky.instance_info().is_head:
        if how == "sys.exit":
            sys.exit(3)
        os._exit(4)
    return "ok"


@sky.function
def fine() -> str:
    return "ok"


def test_run_right_after_a_rank_exit_gets_a_whole_gang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proofs: bool
) -> None:
    """The rank on the other node has returned, so only the head's agent knows that the gang is broken."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    with sky.Compute(nodes=2, options=sky.Options(console=False)) as pool:
        for how, status in [("sys.exit", 3), ("os._exit", 4)] * (4 if proofs else 1):
            with pytest.raises(sky.RunError) as failed:
                leave(how) @ pool
            assert (failed.value.root_cause.rank, failed.value.root_cause.exit_code) == (0, status)
            assert fine() @ pool == ["ok", "ok"]


# What torchrun 2.13 sets, but for OMP_NUM_THREADS and the signals that its own agent passes on.
OF_TORCHRUN = (
    "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK",
    "RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "WORLD_SIZE",
)  # fmt: skip


@pytest.fixture
def two_rank_pool(home: Any) -> Iterator[Any]:
    with sky.Compute(name="meet", nodes=1, worker=sky.Worker(ranks_per_node=2)) as two_rank_pool:
        yield two_rank_pool


@sky.function
def found() -> dict[str, str]:
    return {name: os.environ[name] for name in OF_TORCHRUN if name in os.environ}


@sky.function
def listens() -> int:
    """Listen on every address with a socket that shares its port, like PyTorch's rendezvous."""
    import socket

    if os.environ["RANK"] == "0":
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
            return int(server.getsockname()[1])
    return 0


@sky.function
def ends(how: str) -> None:
    """Write the error file like PyTorch's ``@record`` and exit, on one rank. The other ranks wait."""
    import json
    import signal

    if os.environ["RANK"] == "0":
        signal.pause()
    data = {"message": "BadBatch: no labels", "extraInfo": {"py_callstack": "in load_labels", "timestamp": "1"}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write(how if how != "said" else json.dumps({"message": data}))
    os._exit(3)


def test_ranks_have_torchrun_variables_and_a_port_of_their_own(two_rank_pool):
    first, second = found() @ two_rank_pool
    port = int(first["MASTER_PORT"])
    assert sorted(first) == sorted(OF_TORCHRUN) == sorted(second)
    differ = {name: (first[name], second[name]) for name in OF_TORCHRUN if first[name] != second[name]}
    assert first["TORCHELASTIC_ERROR_FILE"] != second["TORCHELASTIC_ERROR_FILE"]
    del differ["TORCHELASTIC_ERROR_FILE"]
    assert differ == dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), ("0", "1"))
    assert (first["WORLD_SIZE"], first["LOCAL_WORLD_SIZE"], first["GROUP_WORLD_SIZE"]) == ("2", "2", "1")
    # Another one for each broadcast: ranks that are done with one begin the next while others are still at it.
    others, _ = listens() @ two_rank_pool
    assert port < others < port + 4
    # A task has a world of one rank, and takes nothing from those that come after it.
    alone = found() >> two_rank_pool
    assert sorted(alone) == sorted(OF_TORCHRUN)
    sizes = {name: alone[name] for name in OF_TORCHRUN if name.endswith(("RANK", "SIZE"))}
    assert sizes == {name: "1" if name.endswith("SIZE") else "0" for name in sizes}
    assert not port <= int(alone["MASTER_PORT"]) < port + 4
    third = str(port + 2)
    assert found() @ two_rank_pool == [each | {"MASTER_PORT": third} for each in (first, second)]

    for how in ("said", "no JSON", '{"message": 7}'):  # the file is the person's code's own
        with pytest.raises(sky.RunError) as failed:
            ends(how) @ two_rank_pool
        outcome = failed.value.outcomes[1].error
        assert outcome is not None and "exited with status 3" in outcome.message
        assert (
            outcome.message.startswith("BadBatch: no labels")
            == (outcome.traceback == "in load_labels")
            == (how == "said")
        )
    again, _ = found() @ two_rank_pool
    assert again["MASTER_PORT"] != first["MASTER_PORT"]


def test_ranks_have_no_torchrun_variables_without_rendezvous(home):
    options = sky.Options(rendezvous=False, console=False)
    with sky.Compute(nodes=1, worker=sky.Worker(ranks_per_node=2), options=options) as pair:
        assert found() @ pair == [{}, {}]
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as pair:
        assert found() @ pair == [{}]
