"""Pools from the start to the receipt: phases, prices, leases, and starts or clients that end early."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.errors import Cancelled, Hint, NoCapacity, PoolError
from skyward_core.model.specs import Image, Options, PoolSpec
from skyward_core.providers.local.provider import Local
from skyward_core.providers.provider_call_logs_polling_and_cache import report_progress
from skyward_core.store.ledger import Ledger
from tests.support.child import Child, read_line
from tests.support.cli import Cli
from tests.support.faults import agent_pids, remove, worker_pids
from tests.support.forked_clients import script
from tests.support.processes import exists
from tests.support.sessions import new_session
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False)


@sky.function
def rank() -> int:
    return sky.instance_info().rank


def test_compute_block_tears_down_and_has_a_receipt(home: Path) -> None:
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


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("console", [False, True])
def test_pool_object_is_freed_after_detach_or_teardown(home: Path, console: bool) -> None:
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
def test_exception_in_a_compute_block_tears_the_pool_down(home: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), sky.Compute(nodes=2, options=QUIET) as compute:
        pids = agent_pids(compute) + worker_pids(compute)
        raise error
    assert not any(exists(pid) for pid in pids)
    assert Ledger().live_pools() == []


def test_pool_name_in_use_is_rejected_and_the_pool_continues(home: Path) -> None:
    with sky.Compute(nodes=1, name="mine", options=QUIET) as first:
        with pytest.raises(sky.PoolExistsError, match="'mine' is still running"), sky.Compute(nodes=1, name="mine"):
            pass
        assert rank() @ first == [0]
    with sky.Compute(nodes=1, name="mine", options=QUIET) as again:
        assert rank() @ again == [0]


MARKED = """
class Marked(sky.plugins.Plugin):
    name = "marked"
    def around_process(self, info):
        os.environ["MARKED"] = str(info.rank)
        return super().around_process(info)
    def decorate(self, fn):
        return lambda *a: ("decorated", fn(*a))
"""
KILLED_DURING_A_RUN = """
import threading
@sky.function
def work():
    while not os.path.exists(GO):
        time.sleep(0.01)
    return os.environ.get("MARKED")
with pool as c:
    threading.Thread(target=lambda: work() @ c, daemon=True).start()
    while not any(t.state == "running" for r in c.pool.view.runs.values() for t in r.tasks.values()):
        time.sleep(0.01)
    print("running", flush=True)
    time.sleep(600)
"""


def leave_running(home: Path, pool: str) -> Path:
    """Kill the client of a pool during a run; return the path of a file that ends the run."""
    go = home.parent / "go"
    client = script(home, f"{pool}\nGO = {str(go)!r}\n{KILLED_DURING_A_RUN}")
    assert read_line(client) == "running"
    client.kill()
    client.wait()
    return go


def test_client_reattaches_to_a_pool_and_gets_results(home: Path, tmp_path: Path) -> None:
    options = "options=sky.Options(console=False)"
    go = leave_running(home, f'{MARKED}pool = sky.Compute(nodes=2, name="back", plugins=[Marked()], {options})')

    def mark() -> str:
        if os.environ["MARKED"] == "1" and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ValueError("once")
        return os.environ["MARKED"]

    with sky.attach("back") as compute:
        (run,) = compute.runs
        assert run.state == "running"
        go.touch()
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


def test_idle_pool_ends_itself_when_its_lease_ends(home: Path) -> None:
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


def test_busy_pool_outlives_its_lease(home: Path) -> None:
    options = "options=sky.Options(console=False, idle_timeout=0.5)"
    go = leave_running(home, f'pool = sky.Compute(nodes=1, name="busy", {options})')
    with new_session() as session:
        (view,) = session.refresh().result(90)  # an observer: it does not keep the pool alive by itself
        time.sleep(2)  # four times the lease
        assert view.state == "up" and view.nodes[0].link_up
        go.touch()
        (run,) = view.runs.values()
        session.wait("busy", run.id).result(60)
        assert run.state == "done"
        wait_until(lambda: view.state != "up", what="the end of the lease after the run")


def test_teardown_during_a_run_ends_it_as_cancelled(home: Path) -> None:
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


def test_vanished_node_is_lost_and_degrades_the_pool(home: Path) -> None:
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


def test_concurrent_broadcasts_of_two_clients_neither_swap_nor_block(home: Path, proofs: bool) -> None:
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


def test_interrupted_start_leaves_no_pool_or_process(home: Path) -> None:
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


def test_pool_of_a_client_killed_before_creation_can_be_ended(home: Path) -> None:
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


@pytest.mark.parametrize(("executor", "processes"), [("thread", 1), ("process", 3)])
def test_tasks_run_concurrently_on_one_node(
    home: Path, tmp_path: Path, executor: Literal["thread", "process"], processes: int
) -> None:
    def look(meeting: Path) -> int:
        (meeting / str(threading.get_native_id())).touch()
        while len(list(meeting.iterdir())) < 3:
            time.sleep(0.005)
        return os.getpid()

    (meeting := tmp_path / "meeting").mkdir()
    with sky.Compute(nodes=1, worker=sky.Worker(concurrency=3, executor=executor), options=QUIET) as compute:
        pids = sky.gather(*[sky.function(look)(meeting) for _ in range(3)]) >> compute
        assert rank() @ compute == [0]
    assert len(set(pids)) == processes


def test_task_does_not_wait_behind_a_long_one_if_a_slot_is_free(home: Path) -> None:
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


@pytest.mark.proof("0.5 s of a processor")
def test_several_ranks_per_node_have_correct_instance_info(home: Path) -> None:
    def place(n: int = 0) -> tuple[int, int, int, int, int, bool]:
        info = sky.instance_info()
        return info.node, info.rank, info.local_rank, info.world_size, info.total_nodes, info.is_head

    with sky.Compute(nodes=2, worker=sky.Worker(ranks_per_node=2), options=QUIET) as compute:
        whole = [(0, 0, 0, 4, 2, True), (0, 1, 1, 4, 2, False), (1, 2, 0, 4, 2, False), (1, 3, 1, 4, 2, False)]
        assert sky.function(place)() @ compute == whole
        sweep = sky.sweep(sky.function(place), n=[1, 2])
        assert [trial.value for trial in sweep.with_nodes(2) @ compute] == [whole] * 2, "over both nodes"
        one_node = [(0, 0, 0, 2, 1, True), (0, 1, 1, 2, 1, False)]
        assert [trial.value for trial in sweep.with_nodes(1) @ compute] == [one_node] * 2


def test_instance_info_names_pool_run_head_and_peers(pool: sky.Compute) -> None:
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
def test_pool_with_a_lost_ledger_is_listed_and_torn_down(home: Path, how: str) -> None:
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


def test_argument_blobs_of_an_interrupted_client_are_removed_with_pool(home: Path) -> None:
    with sky.Compute(nodes=1, options=QUIET) as compute:
        left = compute.pool.archive.folder / "blob-left"
        left.write_bytes(bytes(100))
    assert not left.exists()


# A ctrl-c while a pool comes up, at the lines around what the provider begins before there is a pool.


class Interrupted(sky.Local):
    """Local provider that simulates ctrl-c at the start or at the end of the warm-up."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    @contextmanager
    def warm(self, spec: sky.PoolSpec) -> Iterator[None]:  # type: ignore[override]
        with super().warm(spec):
            if self.at == "begin":
                raise KeyboardInterrupt
            yield
        raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["begin", "end"])
def test_interrupted_pool_registration_leaves_nothing(home: Path, at: str) -> None:
    compute = sky.Compute(provider=Interrupted(at), nodes=2, name="cut", options=sky.Options(console=False))
    with pytest.raises(KeyboardInterrupt), compute:
        pass
    ledger = Ledger()
    row = ledger.find_pool("cut")
    ledger.close()
    assert not list((home / "local").glob("cut.*"))
    if at == "begin":
        assert row is None
    else:
        assert row is not None and row.ended_at is not None
        assert compute.receipt is not None and (compute.receipt.created, compute.receipt.ok) == (2, True)


class Dear(Local):
    """Local provider whose machines cost money."""

    name = "dear"
    rents: ClassVar[bool] = True
    has: ClassVar[bool] = True

    async def create(self, spec: Any, token: str) -> Any:
        report_progress("attempt 1 of 1: large in here, $9.00/h each")
        if not self.has:
            raise NoCapacity("there are none")
        return await super().create(spec, token)


class Dearest(Dear):
    name = "dearest"
    has = False


def test_rental_is_reported_before_and_its_cost_after(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = sky.Options(console=False)  # of ranks
    with sky.Compute(provider=Dear(), nodes=2, name="pair", options=quiet):
        before = capsys.readouterr().err.splitlines()
    assert before == [
        "pool pair: renting 2 machines from dear",
        "pool pair starting: attempt 1 of 1: large in here, $9.00/h each",
    ]
    (after,) = capsys.readouterr().err.splitlines()
    assert after.startswith("pool pair is down: created 2, verified gone 2, unaccounted 0")


def test_reason_of_a_failed_start_is_only_in_the_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoCapacity, match="there are none"), sky.Compute(provider=Dearest(), name="none"):
        pass
    output = capsys.readouterr().err
    assert "$9.00/h each" in output and "there are none" not in output


def test_free_pool_prints_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sky.Compute(provider=sky.Local(), name="free"):
        pass
    assert capsys.readouterr().err == ""


def spec(name: str, **wishes: float) -> sky.PoolSpec:
    return sky.PoolSpec(
        name=name,
        provider=sky.Local(),
        nodes=1,
        options=sky.Options(console=False, **wishes),  # type: ignore[arg-type]
    )


def test_idle_pool_shows_its_end_time_and_a_used_pool_none(home: Path) -> None:
    owner = Session()
    pool = owner.create(spec("idle", idle_timeout=90.0)).result(60)
    assert pool.ends_at is None
    owner.detach()
    watcher = Session()
    (seen,) = watcher.refresh().result(60)
    left = seen.lease_left(time.time())
    assert left is not None and 60 < left <= 90
    used = watcher.attach("idle").result(60)
    wait_until(lambda: used.ends_at is None, what="the news that it is in use")
    assert watcher.tear_down("idle").result(60).ok
    watcher.detach()


def test_time_to_live_counts_down_while_the_pool_is_used(home: Path) -> None:
    owner = Session()
    pool = owner.create(spec("brief", ttl=120.0)).result(60)
    left = pool.lease_left(time.time())
    assert left is not None and 90 < left <= 120
    assert owner.tear_down("brief").result(60).ok
    assert pool.lease_left(time.time()) is None
    owner.detach()


@pytest.mark.proof("1 s of a processor")
def test_observing_a_pool_does_not_extend_its_lease(home: Path) -> None:
    owner = Session()
    owner.create(spec("watched", idle_timeout=2.0)).result(60)
    owner.detach()

    def gone() -> bool:
        watcher = Session()
        try:
            with suppress(sky.PoolError):
                watcher.observe("watched").result(60)
            return not any(pool.is_live for pool in watcher.refresh().result(60))
        finally:
            watcher.detach()

    wait_until(gone, 60, what="the end of a pool that many look at and nobody uses")


@pytest.mark.proof("0.4 s of a processor", after=1)
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("used", [True, False])
def test_pool_whose_client_detached_during_start_is_unfinished(tmp_path: Path, used: bool) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    setup = f"echo $$ >> {begun!s}; while [ ! -e '{go_on}' ]; do sleep 0.02; done"
    session = Session()
    coming = session.create(
        PoolSpec(name="half", provider=Local(), nodes=2, image=Image(setup=(setup,)), options=Options(console=False))
    )
    wait_until(lambda: begun.exists() and begun.read_text(), what="the set-up")
    session.detach()
    assert coming.done()
    with pytest.raises(Cancelled, match="half did not start: this client detached"):
        coming.result()
    go_on.touch()
    later = Session()
    (view,) = later.refresh().result(90)
    assert view.state == "unfinished" and "its client exited during startup" in view.detail
    assert view.hint == Hint("down", "half")
    with pytest.raises(PoolError, match="incomplete"):
        later.observe("half").result(90)
    assert len(begun.read_text().split()) == 1, "who only looks sets nothing up"
    if used:
        assert later.attach("half").result(90).state == "up"
        row = later.ledger.find_pool("half")
        assert row is not None and row.state == "up"
    receipt = later.tear_down("half").result(90)
    assert (receipt.created, receipt.ok) == (2, True)
    later.detach()
    assert len(begun.read_text().split()) == 1 + used


BRINGS_UP = """
import sys
import skyward_core as sky
setup = f"echo $$ >> {sys.argv[1]}; while [ ! -e {sys.argv[2]} ]; do sleep 0.02; done"
image = sky.Image(setup=[setup])
with sky.Compute(provider=sky.Local(), name="half", image=image, options=sky.Options(console=False)):
    pass
"""


def test_start_of_a_killed_client_is_listed_as_unfinished_with_advice(cli: Cli) -> None:
    begun, go_on = cli.folder / "begun", cli.folder / "go_on"
    command = [sys.executable, "-c", BRINGS_UP, str(begun), str(go_on)]
    with Child(command, cwd=cli.folder, env=cli.env) as maker:
        wait_until(lambda: begun.exists() and begun.read_text(), what="the set-up")
        assert cli.pools()["half"]["state"] == "starting"
        maker.kill()
        maker.wait()
    go_on.touch()
    assert cli.pools()["half"]["state"] == "unfinished"
    listed = cli("ls")
    assert "half  start incomplete  local" in listed.stdout
    assert "its client exited during startup" in listed.stderr
    assert "tear it down with: skyward-tui down half" in listed.stderr
    assert cli("down", "half", "--yes").returncode == 0
    assert cli.pools() == {}
