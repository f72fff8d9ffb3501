"""Exchange of faulty machines, silent providers and immediate teardown, with fake machines and agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skyward_core.model.errors import NoCapacity, PoolError, UsageError
from skyward_core.model.machines_checks_and_gpu_use import Machine, OrderedHardware
from skyward_core.model.specs import Options, PoolSpec
from skyward_core.pool import fetch_retained_results, node_recovery, teardown
from skyward_core.pool import startup_and_machine_verification as startup
from skyward_core.pool.pool import Pool
from skyward_core.pool.unrecorded_machines_and_gone_pools import close_if_gone
from skyward_core.providers import provider_call_logs_polling_and_cache as provider_calls
from skyward_core.store.ledger import Ledger
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, RunView
from tests.support.pool_parts import Client, Transport, World, dead_process, intended, machine
from tests.support.waiting import until


class Shop(World):
    """Provider of machines with two GPUs.

    Attributes:
        gpus: Machine id -> number of GPUs, if not two; None for an unknown number.
        sent: Pairs of machines between which network tests sent data.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gpus: dict[str, int | None] = {}
        self.sent: list[tuple[str, str]] = []
        self.open: set[str] = set()

    def paid_for(self, machine: Machine) -> OrderedHardware | None:
        return OrderedHardware("T4", 2, 16.0)

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        made = await super().create(spec, token)
        return [Machine(each.id, each.node, each.address, f"at-{each.id}", extra=each.extra) for each in made]

    def transport(self, pool: str, machine: Machine) -> Any:
        return Way(self, machine)


class Way(Transport):
    interpreter = "python3"

    async def channel(self) -> Errand:
        assert isinstance(self.world, Shop)
        self.world.open.add(self.machine.id)
        return Errand(self.world, self.machine)


class Errand:
    def __init__(self, shop: Shop, machine: Machine) -> None:
        self._shop, self._machine = shop, machine

    async def ask(self, do: str, payload: bytes = b"", **values: Any) -> Any:
        if do == "send":
            self._shop.sent.append((self._machine.id, values["address"]))
            return {"rate": 100.0, "why": ""}
        count = self._shop.gpus.get(self._machine.id, 2)
        if count is None:
            await asyncio.sleep(3600)
        gpus = [["Tesla T4", 15360]] * (count or 0)
        return {"gpus": gpus, "tflops": 0, "disk": 200.0, "port": 5, "time": 0.0, "whys": {}}

    def close(self) -> None:
        self._shop.open.discard(self._machine.id)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    return Shop()


async def started(spec: PoolSpec, ledger: Ledger) -> Pool:
    pool = await Pool.register(spec, ledger)
    await pool.start(spec)
    return pool


def spec(world: World, nodes: int = 3) -> PoolSpec:
    return PoolSpec(name="q", provider=world, nodes=nodes, options=Options(console=False, grace=0.1))


async def test_faulty_machine_is_replaced_before_the_pool_is_ready(shop: Shop, ledger: Ledger) -> None:
    shop.gpus["m1"] = 1
    noted: list[Any] = []

    async def on_replace(token: str) -> None:
        (entry,) = ledger.replacements(pool.row.token)
        noted.append((entry.intent == token, entry.is_owner_alive, pool.view.nodes_ready))

    async def on_terminate() -> None:
        if (pipe := shop.pipes.pop("m1", None)) is not None:
            pipe.on_lost(None)
            await asyncio.sleep(0.01)

    shop.on_replace, shop.on_terminate = on_replace, on_terminate
    pool = await Pool.register(spec(shop), ledger)
    heard: list[Any] = []
    pool.news.subscribe(heard.append, None)
    await pool.start(spec(shop))
    assert noted == [(True, True, 2)], "written down before it is asked for"
    machines = [each.id for each in ledger.machines(pool.row.token)]
    assert machines == ["m0", f"new-{shop.asked[0]}", "m2"] and shop.ended == ["m1"]
    assert [each.id for each in ledger.replaced_machines(pool.row.token)] == ["m1"]
    assert ledger.replacements(pool.row.token) == [] and shop.open == set()
    ready = [each for each in heard if isinstance(each, events.NodePhase) and each.phase == "ready"]
    assert sorted(each.node for each in ready) == [0, 1, 2]
    assert all(each.detail.startswith("2 x Tesla T4 of 15 GB, disk 200 MB/s") for each in ready)
    assert (pool.archive.folder / fetch_retained_results.EMPTY_MACHINES_FILE).read_text() == "m1\n", (
        "no teardown asks it for results"
    )
    assert sorted(shop.sent) == [("m0", "at-m1"), ("m1", "at-m2"), ("m2", "at-m0")]
    assert not any(isinstance(each, events.NodePhase) and each.phase == "gone" for each in heard)
    text = " ".join(each.detail for each in heard if isinstance(each, events.PoolState))
    assert "machine m1 of node 1 (host-m1) does not match the order: it has 1 GPUs instead of 2 x T4 of 16 GB" in text
    assert "its clock is off by -" in text, "the played ones say 1970"
    receipt = await pool.down()
    assert receipt.created == 4 and receipt.ok


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (1, r"machine new-.* also failed the hardware check: it has 1 GPUs.* \(first machine: it has 0 GPUs"),
        (None, r"it has 0 GPUs.* No replacement: the shop is empty"),
    ],
    ids=["another faulty machine", "no other machine"],
)
async def test_start_fails_if_a_faulty_machine_has_no_good_replacement(
    shop: Shop, ledger: Ledger, gpus: int | None, message: str
) -> None:
    shop.gpus["m0"] = 0

    async def on_replace(token: str) -> None:
        if gpus is None:
            raise NoCapacity("the shop is empty")
        shop.gpus[f"new-{token}"] = gpus

    shop.on_replace = on_replace
    pool = await Pool.register(spec(shop, 1), ledger)
    with pytest.raises(NoCapacity if gpus is None else PoolError, match=message):
        await pool.start(spec(shop, 1))
    assert {*shop.ended} == {"m0", *([f"new-{shop.asked[0]}"] if gpus else [])} and len(shop.asked) == 1
    assert ledger.pool(pool.row.token).ended_at is not None


async def test_teardown_during_machine_replacement_ends_the_new_machine(shop: Shop, ledger: Ledger) -> None:
    shop.gpus["m0"] = 0

    async def on_replace(token: str) -> None:
        ledger.set_pool_state(pool.row.token, "stopping")

    shop.on_replace = on_replace
    pool = await Pool.register(spec(shop, 1), ledger)
    with pytest.raises(PoolError, match="another client has torn it down"):
        await pool.start(spec(shop, 1))
    assert f"new-{shop.asked[0]}" in shop.ended
    assert [each.id for each in ledger.machines(pool.row.token)] == ["m0"]


async def test_slow_hardware_measurement_is_reported(
    shop: Shop, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "NODE_PROBE_TIMEOUT", 0.05)
    shop.gpus["m1"] = None
    pool = await started(spec(shop, 2), ledger)
    assert pool.view.nodes[1].detail == "not measured: no result within 0.05 s"
    assert shop.asked == [] and shop.open == set()
    await pool.down()


async def attached_pool(
    shop: Shop, ledger: Ledger, gpus: int | None, *, observer: bool = False, cut_off: str = ""
) -> Pool:
    """Attach to a pool whose creator was killed after its agents started and before the measurements."""
    row = ledger.record_intent("t1", "q", shop.to_json(), spec(shop, 2).describe())
    ledger.record_created("t1", await shop.create(spec(shop, 2), "t1"))
    ledger.release_pool("t1")
    if cut_off:
        ledger.record_replacement_intent("t1", 1, cut_off, f"{dead_process()}.x")
    shop.gpus["m1"] = gpus
    pool = Pool(ledger.pool(row.token), shop, ledger, observer=observer)  # type: ignore[arg-type]
    await pool.attach()
    return pool


async def test_client_attaching_to_an_unfinished_pool_verifies_machines(shop: Shop, ledger: Ledger) -> None:
    pool = await attached_pool(shop, ledger, 1)
    assert shop.ended == ["m1"] and len(shop.asked) == 1
    assert [each.id for each in ledger.machines("t1")] == ["m0", f"new-{shop.asked[0]}"]
    assert all(node.phase == "ready" and "2 x Tesla T4" in node.detail for node in pool.view.nodes)
    again = Pool(ledger.pool("t1"), shop, ledger)  # type: ignore[arg-type]
    shop.sent.clear()
    await again.attach()
    assert shop.sent == [] and again.view.nodes_ready == 2, "once it is up nobody is kept waiting by that"
    await again.detach()
    await pool.down()


async def test_observer_that_becomes_client_continues_machine_replacement(shop: Shop, ledger: Ledger) -> None:
    """The previous client had requested the machine, so the repeated request has the same token."""
    pool = await attached_pool(shop, ledger, 1, observer=True, cut_off="abcd")
    assert len(ledger.replacements("t1")) == 1, "who only looks forgets nothing"
    ledger.record_discovered("t1", [machine(1, "new-abcd")])  # by its tags: it was made, and nobody had heard of it
    await pool.context.startup.activate()
    assert shop.asked == ["abcd"] and shop.ended == ["m1"] and ledger.replacements("t1") == []
    assert ledger.pool("t1").state == "up"
    await pool.context.startup.activate()
    assert shop.asked == ["abcd"]
    assert [each.id for each in ledger.replaced_machines("t1")] == ["m1"]
    receipt = await pool.down()
    assert receipt.created == 3


async def test_replacement_machine_is_measured_too(shop: Shop, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_recovery, "REPLACEMENT_PAUSES", (0.001, 0.01))
    pool_spec = PoolSpec(name="q", provider=shop, nodes=2, options=Options(console=False, grace=0.1, on_loss="replace"))

    async def on_replace(token: str) -> None:
        if len(shop.asked) == 1:
            shop.gpus[f"new-{token}"] = 1

    shop.on_replace = on_replace
    pool = await started(pool_spec, ledger)
    shop.states["m1"] = "gone"
    shop.pipes["m1"].on_lost(None)
    await until(lambda: len(shop.asked) == 2 and pool.view.nodes[1].phase == "ready")
    assert shop.ended == ["m1", f"new-{shop.asked[0]}"]
    assert "2 x Tesla T4 of 15 GB" in pool.view.nodes[1].detail
    receipt = await pool.down()
    assert receipt.created == 4


# A provider that never answers: whoever waits for it is told, in words, and after a while does something else.

MESSAGE = "the provider of pool .* has not answered within 0.05 s"


class Silent(World):
    """Provider that no longer answers some requests."""

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: set[str] = set()

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        await self._answer("describe")
        return await super().describe(pool, known)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        await self._answer("terminate")
        await super().terminate(pool, machines)

    async def teardown(self, pool: str) -> None:
        await self._answer("teardown")

    async def _answer(self, verb: str) -> None:
        if verb in self.unanswered:
            await asyncio.Event().wait()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Silent:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(provider_calls, "QUERY_TIMEOUT", 0.05)
    monkeypatch.setattr(teardown, "RENTED", 0.2)
    return Silent()


@pytest.mark.parametrize("verbs", [{"describe"}, {"terminate"}, {"describe", "terminate"}])
async def test_teardown_names_unaccounted_machines(world: Silent, verbs: set[str], ledger: Ledger) -> None:
    world.unanswered = verbs
    pool = await started(spec(world, 2), ledger)
    messages: list[str] = []
    pool.news.subscribe(lambda event: messages.append(getattr(event, "detail", "")), None)
    async with asyncio.timeout(60):
        receipt = await pool.down()
    assert not receipt.ok and receipt.unaccounted == ("m0", "m1")
    assert ledger.pool(pool.row.token).ended_at is None
    if "describe" in verbs:
        assert any("has not answered within 0.05 s (describe)" in each for each in messages)
    if verbs == {"describe"}:
        assert set(world.ended) == {"m0", "m1"}, "told to end, though nobody says that they have"


async def test_attach_fails_if_the_provider_does_not_answer(world: Silent, ledger: Ledger) -> None:
    world.unanswered = {"describe"}
    _, row = intended(world, 2)
    ledger.set_pool_state(row.token, "up")
    client = Client(world, row)
    async with asyncio.timeout(60):
        with pytest.raises(PoolError, match=MESSAGE):
            await client.startup.attach_nodes()
        with pytest.raises(PoolError, match=MESSAGE):
            await close_if_gone(ledger.pool(row.token), cast(Any, world), ledger)
    await client.close()


async def test_teardown_reports_resources_that_could_not_be_removed(world: Silent, ledger: Ledger) -> None:
    world.unanswered = {"teardown"}
    pool = await started(spec(world, 1), ledger)
    async with asyncio.timeout(60):
        receipt = await pool.down()
    assert (receipt.created, receipt.gone) == (1, (0,)) and "other than machines" in receipt.unaccounted[0]
    assert not receipt.ok and ledger.pool(pool.row.token).ended_at is None


async def test_teardown_of_an_ended_pool_keeps_a_new_pool_of_its_name(
    world: Silent, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    pool = await started(spec(world, 1), ledger)
    cleared: list[str] = []
    describe = world.describe

    async def meanwhile(name: str, known: Sequence[Machine]) -> list[Machine]:
        """End the pool from another client, which finishes first, and create a new pool."""
        seen = await describe(name, known)
        if ledger.pool(pool.row.token).ended_at is None:
            ledger.record_teardown(pool.row.token, Receipt("q", 1, (0,), (), 0.1, ()))
            ledger.record_intent("another", "q", world.to_json(), spec(world, 1).describe())
        return seen

    async def clear(name: str) -> None:
        cleared.append(name)

    monkeypatch.setattr(world, "describe", meanwhile)
    monkeypatch.setattr(world, "teardown", clear)
    receipt = await pool.down()
    assert receipt.ok and cleared == []


async def test_observer_keeps_a_new_pool_of_the_same_name(
    world: Silent, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    spec, row = intended(world, 1)
    ledger.set_pool_state(row.token, "up")
    cleared: list[str] = []

    async def all_gone(name: str, known: Sequence[Machine]) -> list[Machine]:
        ledger.record_teardown(row.token, Receipt("q", 1, (0,), (), 0.1, ()))  # by another client, meanwhile
        ledger.record_intent("another", row.name, world.to_json(), spec.describe())
        return [replace(each, state="gone") for each in known]

    async def clear(name: str) -> None:
        cleared.append(name)

    monkeypatch.setattr(world, "describe", all_gone)
    monkeypatch.setattr(world, "teardown", clear)
    closed = await close_if_gone(ledger.pool(row.token), cast(Any, world), ledger)
    assert closed is not None and closed.ok and cleared == []


# Immediate teardown (``down --now``).


class Abrupt(World):
    """Provider that can terminate machines at once, or returns the reason why not."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""
        self.at_once: list[str] = []

    async def why_not_now(self) -> str:
        return self.why

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        self.at_once += [each.id for each in machines]
        self.states |= {each.id: "gone" for each in machines}


@asynccontextmanager
async def running(world: World, ledger: Ledger) -> AsyncIterator[Pool]:
    pool = await started(spec(world, 2), ledger)
    yield pool
    assert (await pool.down()).ok


async def test_immediate_teardown_ends_machines_first_and_names_losses(ledger: Ledger) -> None:
    world = Abrupt()
    async with running(world, ledger) as pool:
        pool.view.unfetched = {"run-1": 1234}
        before = len(world.questions)
        receipt = await pool.down(now=True)
        assert not {"shutdown", "halt"} & {what for _, what in world.questions[before:]}
    assert receipt.ok and sorted(set(world.at_once)) == ["m0", "m1"] and world.ended == []
    assert receipt.lost[0] == "run run-1 (1,234 bytes)" and "unfetched" in receipt.lost[1]
    assert receipt.notes[0] == "its machines were terminated at once, as requested"


async def test_immediate_teardown_without_provider_support_is_rejected(ledger: Ledger) -> None:
    abrupt = Abrupt()
    abrupt.why = "its library is too old"
    for world, text in ((World(), "does not support it"), (abrupt, "its library is too old")):
        async with running(world, ledger) as pool:
            with pytest.raises(
                UsageError, match=f"Cannot terminate the machines at once: .*{text}. Tear the pool down without --now"
            ):
                await pool.down(now=True)
            assert not pool.context.leaving and world.ended == []
            assert pool.view.state == "up"


def test_receipt_names_attempts_and_the_cost_until_the_last_one_began() -> None:
    def ended(number: int, at: float, restarts: bool, pause: float = 0.0) -> events.AttemptEnded:
        return events.AttemptEnded(
            pool="p", run="r", at=at, number=number, cause="loss", message="killed", restarts=restarts, pause=pause
        )

    restarted = RunView("restarted", "p", "train", "broadcast", 2, 1000.0)
    restarted.ended_attempts = ended(1, 1900.0, True), ended(2, 2740.0, True, 60.0), ended(3, 4600.0, False)
    failed = RunView("failed", "p", "train", "broadcast", 2, 1000.0)
    failed.ended_attempts = (ended(1, 1900.0, False),)
    view = PoolView("p", runs={each.id: each for each in (restarted, failed)})
    context = cast(Any, SimpleNamespace(view=view))
    assert teardown._attempt_notes(context) == ["run restarted took 3 attempts"]
    view.price_hourly = 20.0
    assert teardown._attempt_notes(context) == ["run restarted took 3 attempts, $10.00 until the last one began"]
