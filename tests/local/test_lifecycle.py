"""Pools from the intent to the receipt: what is left when things, or we, end at a bad moment."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.store.ledger import Ledger
from tests.support.child import read_line
from tests.support.faults import agent_pids, remove, worker_pids
from tests.support.forked_clients import script
from tests.support.processes import exists
from tests.support.sessions import new_session
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


def test_the_block_tears_down_and_gives_a_receipt(home: Path) -> None:
    with sky.Compute(nodes=3, options=QUIET) as compute:
        with pytest.raises(sky.PoolError, match=r"is already up. Use it inside its open block"), compute:
            pass  # it would end with the inner block
        assert rank() @ compute == [0, 1, 2]
        pids = agent_pids(compute) + worker_pids(compute)
    receipt = compute.receipt
    assert receipt is not None
    assert (receipt.created, receipt.gone, receipt.unaccounted) == (3, (0, 1, 2), ())
    assert not any(exists(pid) for pid in pids)
    assert not list((home / "local").iterdir())
    assert Ledger().live_pools() == []


@pytest.mark.parametrize("console", [False, True])
def test_a_pool_that_was_left_or_ended_is_freed(home: Path, console: bool) -> None:
    def freed(pool: weakref.ref[Any]) -> bool:
        gc.collect()
        return pool() is None

    with sky.Compute(nodes=1, options=sky.Options(console=console)) as compute:
        with sky.attach(compute.name) as attached:
            left = weakref.ref(attached.pool)
        wait_until(lambda: freed(left), what="the end of the pool of the client that left")
        ended = weakref.ref(compute.pool)
    wait_until(lambda: freed(ended), what="the end of the pool that was torn down")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block_tears_down_too(home: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), sky.Compute(nodes=2, options=QUIET) as compute:
        pids = agent_pids(compute) + worker_pids(compute)
        raise error
    assert not any(exists(pid) for pid in pids)
    assert Ledger().live_pools() == []


def test_what_escaped_its_session_ends_with_the_pool(home: Path, tmp_path: Path) -> None:
    mark = tmp_path / "daemon"

    def daemonize() -> None:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                mark.with_suffix(".part").write_text(str(os.getpid()))
                mark.with_suffix(".part").rename(mark)
                time.sleep(600)
            os._exit(0)
        while not mark.exists():
            time.sleep(0.01)

    with sky.Compute(nodes=1, options=QUIET) as compute:
        sky.function(daemonize)() >> compute
        pid = int(mark.read_text())
        assert exists(pid)
    assert not exists(pid)


def test_a_name_in_use_is_refused_and_both_live_on(home: Path) -> None:
    with sky.Compute(nodes=1, name="mine", options=QUIET) as first:
        with (
            pytest.raises(sky.PoolExistsError, match="'mine' is still running"),
            sky.Compute(nodes=1, name="mine"),
        ):
            pass
        assert rank() @ first == [0]
    with sky.Compute(nodes=1, name="mine", options=QUIET) as again:
        assert rank() @ again == [0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"nodes": -3},
        {"name": "Not A Name"},
        {"worker": {"concurrency": 0}},
        {"provider": "nowhere"},
    ],
)
def test_nonsense_is_refused_in_one_line_before_anything_exists(home: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(sky.UsageError) as caught:
        sky.Compute(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert not (home / "ledger.db").exists()


def test_a_killed_client_leaves_a_pool_that_the_next_one_finds_and_ends(home: Path) -> None:
    client = script(
        home,
        """
        with sky.Compute(nodes=2, name="orphan", options=sky.Options(console=False)):
            print("up", flush=True)
            time.sleep(600)
        """,
    )
    assert read_line(client) == "up"
    client.kill()
    client.wait()
    with new_session() as session:
        assert [view.name for view in session.refresh().result(90)] == ["orphan"]
        assert session.view("orphan").state == "up"
        receipt = session.tear_down("orphan").result(90)
    assert receipt.ok
    assert receipt.gone == (0, 1)


def test_a_run_goes_on_without_its_client(home: Path, tmp_path: Path) -> None:
    client = script(
        home,
        f"""
        @sky.function
        def work():
            r = sky.instance_info().rank
            for i in range(300):
                print("line", i, flush=True)
                time.sleep(0.01)
            open({str(tmp_path)!r} + f"/done{{r}}", "w").close()
            return r
        with sky.Compute(nodes=2, name="goes-on", options=sky.Options(console=False)) as c:
            f = work() @ c if False else None
            import threading
            threading.Thread(target=lambda: work() @ c, daemon=True).start()
            while not c.pool.view.logs.merged.end:
                time.sleep(0.01)
            print("printing", flush=True)
            time.sleep(600)
        """,
    )
    assert read_line(client) == "printing"
    client.kill()
    client.wait()
    session = Session()
    try:
        view = session.attach("goes-on").result(90)
        (run,) = view.runs.values()
        session.wait("goes-on", run.id).result(60)
        assert run.state == "done"
        assert [outcome.summary.json for outcome in run.outcomes() if outcome.summary] == [0, 1]
        assert sorted(path.name for path in tmp_path.glob("done*")) == ["done0", "done1"]
        for r in range(2):
            assert view.logs.rank(r).lines(0, 1000) == [f"line {i}" for i in range(300)]
    finally:
        session.tear_down("goes-on").result(90)
        session.detach()


def test_a_script_comes_back_to_a_pool_and_gets_the_results(home: Path, tmp_path: Path) -> None:
    client = script(
        home,
        f"""
        import threading
        class Marked(sky.plugins.Plugin):
            name = "marked"
            def around_process(self, info):
                os.environ["MARKED"] = str(info.rank)
                return super().around_process(info)
            def decorate(self, fn):
                return lambda *a: ("decorated", fn(*a))
        @sky.function
        def work():
            while not os.path.exists({str(tmp_path / "go")!r}):
                time.sleep(0.01)
            return os.environ["MARKED"]
        with sky.Compute(nodes=2, name="back", plugins=[Marked()], options=sky.Options(console=False)) as c:
            threading.Thread(target=lambda: work() @ c, daemon=True).start()
            while not any(t.state == "running" for r in c.pool.view.runs.values() for t in r.tasks.values()):
                time.sleep(0.01)
            print("running", flush=True)
            time.sleep(600)
        """,
    )
    assert read_line(client) == "running"
    client.kill()
    client.wait()

    def mark() -> str:
        if os.environ["MARKED"] == "1" and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ValueError("once")
        return os.environ["MARKED"]

    with sky.attach("back") as compute:
        (run,) = compute.runs
        assert run.state == "running"
        (tmp_path / "go").touch()
        assert compute.wait() == [("decorated", "0"), ("decorated", "1")]
        with pytest.raises(sky.RunError):
            sky.function(mark)() @ compute
        assert sky.function(mark)() @ compute == [("decorated", "0"), ("decorated", "1")]

        def no_longer_there() -> bool:
            # The agents are told within a moment that the results have arrived.
            try:
                compute.wait(run.id)
            except sky.PoolError as error:
                return "already fetched" in str(error)
            return False

        wait_until(no_longer_there)
    with sky.attach("back") as compute:
        assert compute.down().ok
    with pytest.raises(sky.PoolError, match="no pool named 'back' is up"):
        sky.attach("back")


def test_an_unused_pool_ends_itself_when_its_lease_is_over(home: Path) -> None:
    client = script(
        home,
        """
        with sky.Compute(nodes=2, name="leased", options=sky.Options(console=False, idle_timeout=1.0)) as c:
            print(*[link.welcome["pid"] for link in c.pool.links], flush=True)
            time.sleep(600)
        """,
    )
    pids = [int(pid) for pid in read_line(client).split()]
    client.kill()
    client.wait()
    wait_until(lambda: not any(exists(pid) for pid in pids), what="the agents' own end")
    with sky.Compute(nodes=1, name="leased", options=QUIET) as again:
        assert rank() @ again == [0]


def test_a_busy_pool_outlives_its_lease(home: Path) -> None:
    client = script(
        home,
        f"""
        @sky.function
        def work():
            while not os.path.exists({str(home / "go")!r}):
                time.sleep(0.01)
            return 5
        with sky.Compute(nodes=1, name="busy", options=sky.Options(console=False, idle_timeout=0.5)) as c:
            import threading
            threading.Thread(target=lambda: work() @ c, daemon=True).start()
            while not any(t.state == "running" for r in c.pool.view.runs.values() for t in r.tasks.values()):
                time.sleep(0.01)
            print("running", flush=True)
            time.sleep(600)
        """,
    )
    assert read_line(client) == "running"
    client.kill()
    client.wait()
    with new_session() as session:
        (view,) = session.refresh().result(90)  # an observer: it does not keep the pool alive by itself
        time.sleep(2)  # four times the lease
        assert view.state == "up" and view.nodes[0].link_up
        (home / "go").touch()
        (run,) = view.runs.values()
        session.wait("busy", run.id).result(60)
        assert run.state == "done"
        wait_until(lambda: view.state != "up", what="the end of the lease after the run")


def test_a_teardown_during_a_run_ends_its_ranks_as_cancelled(home: Path) -> None:
    def hang() -> None:
        time.sleep(600)

    with sky.Compute(nodes=2, options=QUIET) as compute:
        future = sky.function(hang)() > compute
        _node_of_the_only_task(compute)
    with pytest.raises(sky.Cancelled, match="torn down"):
        future.result(90)
    (run,) = Ledger().runs(_token_of(compute))
    assert run.state == "cancelled"


def _token_of(compute: sky.Compute) -> str:
    row = Ledger().find_pool(compute.name)
    assert row is not None
    return row.token


def test_a_node_that_vanishes_is_lost_and_degrades_the_pool(home: Path) -> None:
    with sky.Compute(nodes=2, options=QUIET) as compute:
        workers = worker_pids(compute)

        def hang() -> None:
            time.sleep(600)

        future = sky.function(hang)() > compute
        victim = compute.pool.links[_node_of_the_only_task(compute)]
        remove(compute.pool.context.machines[victim.node].extra["folder"])
        os.kill(victim.welcome["pid"], signal.SIGKILL)
        with pytest.raises(sky.RunError) as caught:
            future.result(90)
        assert caught.value.root_cause.outcome == "lost"
        wait_until(lambda: compute.pool.view.state == "degraded")
        with pytest.raises(sky.RunError, match="node"):
            rank() @ compute
        assert rank() >> compute in (0, 1)
    assert compute.receipt is not None
    assert compute.receipt.ok
    assert not any(exists(pid) for pid in workers)


def _node_of_the_only_task(compute: sky.Compute) -> int:
    def found() -> list[int]:
        return [
            task.node
            for run in compute.pool.view.runs.values()
            for task in run.tasks.values()
            if task.state == "running"
        ]

    wait_until(found)
    return found()[0]


def test_two_clients_broadcasting_at_once_never_swap_or_block(home: Path, proofs: bool) -> None:
    times = 50 if proofs else 20
    with sky.Compute(nodes=3, name="shared", options=QUIET) as compute:
        client = script(
            home,
            f"""
            from skyward_core.client.session import Session
            from skyward_core.tasks.function_pickling import make_task
            @sky.function
            def tag(i):
                return ["theirs", i, sky.instance_info().rank]
            s = Session()
            s.attach("shared").result(90)
            print("attached", flush=True)
            for i in range({times}):
                run = s.launch("shared", make_task(tag(i))).result(90)
                s.wait("shared", run.id).result(90)
                values = [o.summary.json for o in run.outcomes()]
                assert values == [["theirs", i, r] for r in range(3)], values
            print("right", flush=True)
            s.detach()
            """,
        )
        assert read_line(client) == "attached"

        def tag(i: int) -> list[object]:
            return ["ours", i, sky.instance_info().rank]

        ours = sky.function(tag)
        for i in range(times):
            assert ours(i) @ compute == [["ours", i, r] for r in range(3)]
        assert read_line(client) == "right"
        assert client.wait() == 0


def test_interrupted_start_leaves_nothing(home: Path) -> None:
    client = script(
        home,
        """
        import threading, signal
        from skyward_core.providers.local.provider import Local
        real = Local.create
        async def create(self, spec, token):
            made = await real(self, spec, token)
            os.kill(os.getpid(), signal.SIGINT)
            return made
        Local.create = create
        try:
            with sky.Compute(nodes=2, name="half"):
                pass
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
    )
    assert read_line(client) == "interrupted"
    assert client.wait() == 0
    assert Ledger().live_pools() == []
    assert not list((home / "local").glob("*"))


def test_a_client_killed_between_intent_and_creation_leaves_a_row_that_can_be_ended(home: Path) -> None:
    client = script(
        home,
        """
        import signal
        from skyward_core.providers.local.provider import Local
        async def create(self, spec, token):
            os.kill(os.getpid(), signal.SIGKILL)
        Local.create = create
        with sky.Compute(nodes=2, name="half"):
            pass
        """,
    )
    assert client.wait() == -signal.SIGKILL
    with new_session() as session:
        receipt = session.tear_down("half").result(90)
    assert receipt.ok
    assert Ledger().live_pools() == []


def test_threads_run_tasks_side_by_side_in_one_worker(home: Path) -> None:
    worker = sky.Worker(concurrency=4, executor="thread")

    def look(barrier_folder: str) -> int:
        folder = Path(barrier_folder)
        (folder / str(time.monotonic_ns())).touch()
        while len(list(folder.iterdir())) < 4:
            time.sleep(0.005)
        return os.getpid()

    meet = home.parent / "meet"
    meet.mkdir()
    with sky.Compute(nodes=1, worker=worker, options=QUIET) as compute:
        pids = sky.gather(*[sky.function(look)(str(meet)) for _ in range(4)]) >> compute
    assert len(set(pids)) == 1


def test_processes_run_tasks_side_by_side_in_workers_of_their_own(home: Path) -> None:
    worker = sky.Worker(concurrency=3)

    def look(barrier_folder: str) -> int:
        folder = Path(barrier_folder)
        (folder / str(os.getpid())).touch()
        while len(list(folder.iterdir())) < 3:
            time.sleep(0.005)
        return os.getpid()

    meet = home.parent / "meet"
    meet.mkdir()
    with sky.Compute(nodes=1, worker=worker, options=QUIET) as compute:
        pids = sky.gather(*[sky.function(look)(str(meet)) for _ in range(3)]) >> compute
        assert rank() @ compute == [0]
    assert len(set(pids)) == 3


def test_no_task_waits_behind_a_long_one_while_another_slot_is_free(home: Path) -> None:
    go = home.parent / "go"

    def wait(path: str) -> None:
        while not Path(path).exists():
            time.sleep(0.005)

    with sky.Compute(nodes=1, worker=sky.Worker(concurrency=2), options=QUIET) as compute:
        long = sky.function(wait)(str(go)) > compute
        ranks = sky.gather(*[rank() for _ in range(6)]) >> compute
        assert ranks == (0,) * 6 and not long.done()
        go.touch()
        long.result(90)


def test_several_ranks_per_node(home: Path) -> None:
    def place(n: int = 0) -> tuple[int, int, int, int, int, bool]:
        info = sky.instance_info()
        return info.node, info.rank, info.local_rank, info.world_size, info.total_nodes, info.is_head

    with sky.Compute(nodes=2, worker=sky.Worker(ranks_per_node=2), options=QUIET) as compute:
        whole = [
            (0, 0, 0, 4, 2, True),
            (0, 1, 1, 4, 2, False),
            (1, 2, 0, 4, 2, False),
            (1, 3, 1, 4, 2, False),
        ]
        assert sky.function(place)() @ compute == whole
        sweep = sky.sweep(sky.function(place), n=[1, 2])
        assert [trial.value for trial in sweep.with_ranks(4) @ compute] == [whole] * 2, "over both nodes"
        one_node = [(0, 0, 0, 2, 1, True), (0, 1, 1, 2, 1, False)]
        assert [trial.value for trial in sweep.with_ranks(2) @ compute] == [one_node] * 2
        with pytest.raises(sky.UsageError, match=r"on 3 ranks: .* has 2\. Use 2 or 4 ranks"):
            sweep.with_ranks(3) @ compute


def test_instance_info_describes_the_pool(pool: sky.Compute) -> None:
    def look() -> sky.InstanceInfo:
        return sky.instance_info()

    infos = sky.function(look)() @ pool
    assert {info.pool for info in infos} == {pool.name}
    assert {info.run for info in infos} == {list(pool.pool.view.runs)[-1]}
    assert {info.head_addr for info in infos} == {"127.0.0.1"}
    assert len({info.head_port for info in infos}) == 1
    assert [peer.node for peer in infos[0].peers] == [0, 1, 2, 3]


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_pool_whose_ledger_is_lost_is_still_listed_and_torn_down(home: Path, how: str) -> None:
    with script(
        home,
        """
        with sky.Compute(nodes=2, name="orphan", options=sky.Options(console=False)) as compute:
            print(*(link.welcome["pid"] for link in compute.pool.links), flush=True)
            time.sleep(600)
        """,
    ) as client:
        pids = [int(pid) for pid in read_line(client).split()]
        for path in home.glob("ledger.db*"):
            if how == "deleted":
                path.unlink()
            elif path.name == "ledger.db":
                path.write_bytes(b"this is no database" * 1000)
        with new_session() as session:
            (view,) = session.refresh().result(60)
            assert (view.name, view.state, view.nodes_ready) == ("orphan", "up", 2)
            client.kill()
            receipt = session.tear_down("orphan").result(60)
    assert (receipt.created, receipt.gone, receipt.unaccounted) == (2, (0, 1), ())
    assert not any(exists(pid) for pid in pids)
    for path in home.glob("ledger.db*"):
        path.unlink()
    assert Ledger().live_pools() == []  # what has ended leaves no trace that would bring it back


def test_large_arguments_of_an_interrupted_client_are_gone_with_its_pool(home: Path) -> None:
    with sky.Compute(nodes=1, options=QUIET) as compute:
        left = compute.pool.archive.folder / "blob-left"
        left.write_bytes(bytes(100))
    assert not left.exists()
