"""Leftover notes and retained results at teardown, and lookup of pools and runs by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from skyward_core import providers
from skyward_core.api.pool_operations import tear_down
from skyward_core.client import leftover_cleanup
from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.leftovers import Inventory, Leftover
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import MAX_POSTPONE_INTERVAL
from skyward_core.pool import fetch_retained_results, leftover_verdicts
from skyward_core.pool.unrecorded_machines_and_gone_pools import close_if_gone
from skyward_core.providers.aws.launch_and_reservations import MIN_DEADMAN_MINUTES
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RetainedResults
from skyward_core.store.pool_folder import PoolFolder
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.views.events import QueuedRun, UnfetchedNews
from skyward_core.views.pool_view import PoolView, RunView
from skyward_tui.cli.pool_and_run_lookup import live_and_retained_pools, live_pools, live_run, resolve_run
from tests.support.ledger_runs import record_runs

OURS = Leftover("instance", "i-1", "here", "old", "t0", "mine", True, "me", is_machine=True, hourly=1.5)


class SweptAccount:
    """Provider whose account has the given content."""

    name = "cupboard"
    rents = True
    looks: list[bool]
    holds: Callable[[], Any]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SweptAccount:
        return cls()

    @classmethod
    def accounts(cls, used: list[SweptAccount]) -> list[SweptAccount]:
        return used[:1]

    async def inventory(self, *, everywhere: bool) -> Inventory:
        type(self).looks.append(everywhere)
        held = type(self).holds()
        return await held if asyncio.iscoroutine(held) else held  # type: ignore[no-any-return]

    async def remove(self, things: object) -> list[str]:
        raise AssertionError("nobody said so")


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[SweptAccount]:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(providers, "provider_class", lambda name: SweptAccount)
    SweptAccount.looks = []
    return SweptAccount


async def notes(capsys: pytest.CaptureFixture[str], provider: Any = None) -> tuple[str, ...]:
    with closing(Ledger()) as ledger:
        for token, name in (("t1", "p"), ("t2", "other")):
            if ledger.find_pool(name) is None:
                ledger.record_intent(token, name, {"provider": "cupboard"}, {"options": {"start_timeout": 300}})

        async def torn_down() -> Receipt:
            return Receipt("p", 1, (0,), (), 0.1, ("before",))

        context = SimpleNamespace(provider=provider or SweptAccount(), ledger=ledger)
        pool: Any = SimpleNamespace(name="p", row=ledger.pool("t1"), context=context, down=torn_down)
        receipt = await tear_down(pool)
    assert receipt.notes[0] == "before"
    assert capsys.readouterr().err == "".join(f"pool p: {note}\n" for note in receipt.notes[1:])
    return receipt.notes[1:]


async def test_leftovers_of_own_ended_pools_are_noted(
    account: type[SweptAccount], capsys: pytest.CaptureFixture[str]
) -> None:
    up = replace(OURS, id="i-up", pool="other", token="t2")
    expired = replace(up, id="i-late", expires=1.0)
    theirs = replace(OURS, id="i-theirs", ours=False, ledger="theirs")
    key = replace(OURS, id="k", what="key pair", is_machine=False, hourly=None)
    account.holds = lambda: Inventory((up, theirs))  # type: ignore[misc,assignment]
    assert await notes(capsys) == ()
    account.holds = lambda: Inventory((up, expired, theirs, key, OURS))  # type: ignore[misc,assignment]
    (note,) = await notes(capsys)
    assert note == (
        "2 machines ($3.00/h) and 1 other resource of ended pools are left over "
        "(i-late in here, i-1 in here, k in here). Remove with: skyward-tui leftovers"
    )
    assert account.looks == [False, False]


async def test_unreadable_account_is_noted_after_a_bounded_wait(
    account: type[SweptAccount], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover_verdicts, "INVENTORY_TIMEOUT", 0.01)

    def refused() -> Inventory:
        raise PoolError("no credentials")

    for holds, text in (
        (lambda: Inventory((), {"mars": "far away"}), "mars (far away)"),
        (refused, "cupboard (no credentials)"),
        (lambda: asyncio.sleep(3600), "cupboard (no answer within 0.01 s)"),
    ):
        account.holds = holds  # type: ignore[misc,assignment]
        (note,) = await notes(capsys)
        assert note == f"not checked for other leftovers: {text}"


async def test_pool_without_rented_machines_scans_no_account(
    account: type[SweptAccount], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await notes(capsys, SimpleNamespace(name="local")) == () and account.looks == []


class SilentAccount(SweptAccount):
    """Provider that never answers."""

    name = "mute"

    async def inventory(self, *, everywhere: bool) -> Inventory:
        await asyncio.sleep(3600)
        raise AssertionError


async def test_silent_cloud_account_does_not_hide_leftovers_of_others(
    account: type[SweptAccount], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.providers.provider_call_logs_polling_and_cache.QUERY_TIMEOUT", 0.05)
    account.holds = lambda: Inventory((OURS,))  # type: ignore[misc,assignment]
    with closing(Ledger()) as ledger:
        found = await leftover_cleanup.scan_accounts(ledger, [SilentAccount(), account(), SilentAccount()])
    assert [(each.thing.id, each.verdict, each.account) for each in found.removable] == [("i-1", "left", 1)]
    assert dict(found.unknown) == {"mute": "no answer within 60 s", "mute of account 3": "no answer within 60 s"}


# Before rented machines end: what lies there that nobody has fetched is brought, or named.

A, B = "aa", "bb"  # runs


def machine(node: int) -> Machine:
    return Machine(f"i-{node}", node, f"10.0.0.{node}", "", extra={"folder": f"p.x.{node}"})


class Provider:
    """Provider that returns given states of machines, and records the queried machines."""

    def __init__(self, *found: Machine) -> None:
        self.found = found
        self.asked: list[str] = []

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        self.asked += [each.id for each in machines]
        return [each for each in self.found if each.id in self.asked]


class Visit:
    """Fake download of a machine's results, which records the requested runs. It fails for node 9."""

    received_bytes = 0
    made: ClassVar[list[tuple[int, list[str]]]] = []

    def __init__(self, row: Any, machine: Machine, archive: Any, ledger: Any) -> None:
        self.machine = machine

    async def fetch_all(self, *, only: set[str]) -> None:
        if self.machine.node == 9:
            raise OSError("disk full")
        Visit.made.append((self.machine.node, sorted(only)))


def machine_with_results(node: int, **runs: int) -> Machine:
    """Return a machine with retained results of these runs."""
    data = {"runs": runs, "bytes": sum(runs.values()), "until": 1e10}
    return replace(machine(node), state="ending", extra=machine(node).extra | {"kept": data})


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Factory of a pool's context: a provider, and the last report of each node."""
    monkeypatch.setattr(fetch_retained_results, "NodeResultsFetcher", Visit)
    monkeypatch.setattr(Visit, "made", [])

    def make(provider: Any, *args: dict[str, int] | None, runs: int = 1) -> Any:
        return SimpleNamespace(
            archive=SimpleNamespace(folder=tmp_path),
            links=[SimpleNamespace(node=node, retained_results=left) for node, left in enumerate(args)],
            machines=[machine(node) for node in range(len(args))],
            ledger=SimpleNamespace(runs=lambda token: [None] * runs),
            provider=provider, name="p", token="t", row=None,
        )  # fmt: skip

    return make


async def fetch_retained(
    context: Any, machines: Sequence[Machine], *, give_up: bool = False, troubled: Any = (), report: Any = None
) -> Any:
    words: list[str] = [] if report is None else report
    return await fetch_retained_results.fetch_remaining(context, machines, troubled, words.append, give_up=give_up)


def test_deadman_switch_leaves_time_to_fetch_results() -> None:
    assert (
        fetch_retained_results.QUERY_TIMEOUT + fetch_retained_results.PATIENCE + 2 * MAX_POSTPONE_INTERVAL
        < MIN_DEADMAN_MINUTES * 60
    )


async def test_machines_without_retained_results_are_not_queried(pool: Any) -> None:
    provider = Provider()
    assert await fetch_retained(pool(provider, {}, {}), [machine(0), machine(1)]) == ([], [])
    assert provider.asked == []


async def test_machine_with_unclean_end_is_queried_once_for_results(pool: Any) -> None:
    provider = Provider(replace(machine(1), state="ending"))
    assert await fetch_retained(pool(provider, {}, {}), [machine(0), machine(1)], troubled={1}) == ([], [])
    assert provider.asked == ["i-1"]
    assert await fetch_retained(pool(provider, None, None), [machine(0), machine(1)]) == ([], [])  # the next `down`
    assert provider.asked == ["i-1"]


async def test_results_too_large_or_unreachable_at_teardown_are_named(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_retained_results, "MAX_BYTES", 1000)
    away = replace(machine(1), state="unreachable", extra={"why": "no route"})
    provider = Provider(machine_with_results(0, aa=100, bb=5000), away, machine_with_results(9, aa=100))
    messages: list[str] = []
    notes, lost = await fetch_retained(
        pool(provider, {A: 1}, None), [machine(0), machine(1), machine(9)], report=messages
    )
    assert messages[0] == "looking for unfetched results and logs"
    assert messages[1] == "fetching results and logs: 0 bytes of 200 bytes"
    assert Visit.made == [(0, [A])]
    assert notes == ["fetched run aa (100 bytes) on node 0 (10.0.0.0)"]
    assert lost == [
        "node 1 (10.0.0.1) could not be queried for unfetched results, logs and files (no route)",
        "run bb (5 kB) on node 0 (10.0.0.0): a teardown fetches at most 1 kB",
        "run aa (100 bytes) on node 9 (10.0.0.9): disk full",
    ]


async def test_fetch_that_takes_too_long_at_teardown_is_named(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(self: Visit, *, only: set[str]) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Visit, "fetch_all", hangs)
    monkeypatch.setattr(fetch_retained_results, "PATIENCE", 0.01)
    _, lost = await fetch_retained(pool(Provider(machine_with_results(0, aa=1)), {A: 1}), [machine(0)])
    assert lost == ["run aa (1 bytes) on node 0 (10.0.0.0): not complete after 0.01 s"]


async def test_machines_that_answer_too_late_at_teardown_are_named(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Provider):
        async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr(fetch_retained_results, "QUERY_TIMEOUT", 0.01)
    _, lost = await fetch_retained(pool(Silent(), {A: 1}), [machine(0)])
    assert lost == ["unfetched results: no complete answer from node 0 (10.0.0.0) within 0.01 s"]


async def test_dropped_results_are_named_and_not_fetched(pool: Any) -> None:
    provider = Provider()
    notes, lost = await fetch_retained(pool(provider, {A: 5000}), [machine(0)], give_up=True)
    assert notes == ["deleted unfetched results of run aa (5 kB)"] and not lost and not provider.asked


async def test_results_of_provider_without_fetch_support_are_named_lost(pool: Any) -> None:
    _, lost = await fetch_retained(pool(object(), {A: 5000, B: 1}), [machine(0)])
    assert lost == ["unfetched results of run aa (5 kB), run bb (1 bytes)"]


async def test_losses_of_self_ended_machines_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))

    class Ended(Provider):
        async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
            return [replace(each, state="gone") for each in known]

        async def teardown(self, pool: str) -> None:
            return None

    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        row = ledger.record_intent("t", "p", {}, {"options": {}})
        ledger.record_created("t", [machine(0)])
        archive = PoolFolder("p.t")
        for waiting in ({"dd": 5}, {"cc": 5}):  # the other was fetched meanwhile
            last = UnfetchedNews(pool="p", runs=waiting)
            archive.add_event(last)
        archive.close()
        record_runs(
            ledger, opened=[("t", run, "f", "broadcast", 1, float(at)) for at, run in enumerate((A, B, "cc", "dd"))]
        )
        record_runs(ledger, ends=[(run, "done", 2.0, None) for run in (B, "cc", "dd")])
        receipt = await close_if_gone(row, Ended(), ledger)  # type: ignore[arg-type]
        assert ledger.pool("t").ended_at == last.at, "no machine tells when: it was heard of then"
    assert receipt is not None
    assert receipt.lost == ("unfetched results of run aa", "unfetched results of run cc")


# Which run a person means by a word.

POOLS = {"t1": "train", "t2": "train", "t3": "tune", "t4": "idle"}
RUNS = {"aa11": "t1", "aa22": "t1", "ab33": "t2", "7e44": "t3", "tr55": "t3"}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    ledger = Ledger(tmp_path / "ledger.db")
    for token, name in POOLS.items():
        ledger.record_intent(token, name, {}, {})
        ledger.record_teardown(token, Receipt(name, 0, (), (), 0.0))
    record_runs(
        ledger, opened=[(token, run, "f", "broadcast", 1, 100.0 + at) for at, (run, token) in enumerate(RUNS.items())]
    )
    done: Future[list[Any]] = Future()
    done.set_result([])
    yield SimpleNamespace(ledger=ledger, probe_pools=lambda pools: done)
    ledger.close()


@pytest.mark.parametrize(
    ("word", "run"),
    [
        ("aa11", "aa11"),
        ("aa1", "aa11"),
        ("train", "ab33"),  # the latest pool of that name
        ("train.t1", "aa22"),  # the latest run of the pool with that key
        ("tun", "tr55"),
    ],
)
def test_unique_run_id_prefix_or_function_finds_the_run(session: Any, word: str, run: str) -> None:
    assert resolve_run(session, word).run == run


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("aa", r"'aa' is ambiguous: aa22 \(f\), aa11 \(f\). Write more characters"),
        ("tr", r"'tr' is ambiguous: train, tr55 \(f\)"),
        ("idle", "pool idle has had no run"),
        ("nope", "no run or pool 'nope'. List pools and their runs with: skyward-tui ls --all"),
        ("train.t9", "no run or pool"),
    ],
)
def test_unknown_or_ambiguous_run_name_is_rejected(session: Any, word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_run(session, word)


def running_pool(session: Any, states: dict[str, str], queued: Collection[str] = ()) -> None:
    """Add a running pool with runs in these states."""
    ledger = session.ledger
    ledger.record_intent("t5", "up", {}, {})
    record_runs(ledger, opened=[("t5", run, "f", "broadcast", 1, 200.0 + at) for at, run in enumerate(states)])
    record_runs(ledger, ends=[(run, state, 300.0, None) for run, state in states.items() if state != "running"])
    view = PoolView("up", key="up.t5")
    view.runs = {run: RunView(run, "up", "f", "broadcast", 1, 200.0) for run in states}
    view.waiting = tuple(QueuedRun(run=run, name="f", nodes=1, only=(), since=0.0) for run in queued)
    observed: Future[PoolView] = Future()
    observed.set_result(view)
    session.observe = lambda pool: observed


@pytest.mark.parametrize(
    ("states", "queued", "run"),
    [
        ({"u1": "done", "u2": "running", "u3": "done"}, (), "u2"),
        ({"u1": "running", "u2": "running"}, ("u2",), "u1"),
        ({"u1": "done", "u2": "cancelled"}, (), "u2"),
    ],
)
def test_pool_name_selects_its_running_run_or_its_last_run(
    session: Any, states: dict[str, str], queued: Collection[str], run: str
) -> None:
    running_pool(session, states, queued)
    assert resolve_run(session, "up").run == run
    assert resolve_run(session, "up.t5").run == run
    if states[run] == "running":
        assert resolve_run(session, "").run == run, "without a word, the only running run"
    else:
        with pytest.raises(UsageError, match=rf"no run is running. Name one of them: {run} \(f\)"):
            live_run(session, "")
    pool, found = live_run(session, "up")
    assert (pool.token, found) == ("t5", run)


def test_pool_name_with_several_running_runs_is_rejected_with_a_list(session: Any) -> None:
    running_pool(session, {"u1": "running", "u2": "done", "u3": "running"})
    for lookup in (resolve_run, live_run):
        with pytest.raises(UsageError, match=r"pool up has several running runs: u1 \(f\), u3 \(f\)\. Name one"):
            lookup(session, "up")
        with pytest.raises(UsageError, match=r"several runs are running. Name one of them: u1 \(f\), u3 \(f\)"):
            lookup(session, "")
    assert live_run(session, "up", for_rank=True)[1] == "", "a rank needs no run"


def test_command_for_an_ended_pool_says_that_it_ended(session: Any) -> None:
    with pytest.raises(UsageError, match=r"pool train ended at .*skyward-tui logs train"):
        live_pools(session, ["train"])


@pytest.fixture
def pools_of_one_name(tmp_path: Path) -> Iterator[Any]:
    """Three pools of one name: two have ended and left results on their hosts, and one runs."""
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        for token in ("t1", "t2", "t3"):
            ledger.record_intent(token, "train", {}, {})
            if token != "t3":
                retained = [
                    RetainedResults(token, Machine(f"m{node}", node, "h", "h"), {"aa": 7}, 7, 2e9) for node in (0, 1)
                ]
                ledger.record_teardown(token, Receipt("train", 2, (0, 1), (), 0.1), retained)
        yield SimpleNamespace(ledger=ledger, retained_results=ledger.retained_results)


def tokens(found: tuple[list[PoolRow], list[PoolRow]]) -> tuple[list[str], list[str]]:
    return [row.token for row in found[0]], sorted(row.token for row in found[1])


def test_pool_name_finds_the_live_pool_and_key_any_pool(pools_of_one_name: Any) -> None:
    assert tokens(live_and_retained_pools(pools_of_one_name, ["train"])) == (["t3"], [])
    assert tokens(live_and_retained_pools(pools_of_one_name, ["train", "train.t3", "train.t1"])) == (["t3"], ["t1"])
    with pytest.raises(UsageError, match=r"no pool 'train\.t9' is up\. Did you mean 'train'"):
        live_pools(pools_of_one_name, ["train.t9"])
