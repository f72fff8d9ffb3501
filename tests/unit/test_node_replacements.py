"""Replacement of a node's machine: what the ledger records before each step, and recovery from failed steps."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import LedgerError, NoCapacity, PoolError, RemoteError, UsageError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.pool import node_recovery
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, Replacement
from tests.support.pool_parts import TOKEN, Client, World, attached, dead_process, intended, machine
from tests.support.waiting import until

Come = Callable[..., Awaitable[Client]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(node_recovery, "REPLACEMENT_PAUSES", (0.001, 0.001))
    monkeypatch.setattr(node_recovery, "POLL_INTERVAL", 0.001)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def attach(world: World) -> AsyncIterator[Come]:
    """Factory of clients of a pool of two nodes. The first client's options apply."""
    rows: list[PoolRow] = []
    clients: list[Client] = []

    async def attach(*, observer: bool = False, **options: Any) -> Client:
        if not rows:
            rows.append(intended(world, on_loss="replace", **options)[1])
        clients.append(await attached(world, rows[0], observer=observer))
        return clients[-1]

    yield attach
    for client in clients:
        await client.close()


@pytest.fixture
async def client(attach: Come) -> Client:
    return await attach()


def lose_node(client: Client) -> None:
    """Report node 1 as lost."""
    client.context.links[1].mark_lost("its machine is gone")
    client.replacements.begin(1)


async def wait_replacements(client: Client) -> None:
    async with asyncio.timeout(60):
        await client.roster.wait_replacements()


async def replaced(client: Client) -> None:
    """Report node 1 as lost, and wait for the consequences."""
    lose_node(client)
    await wait_replacements(client)


def recorded_state() -> tuple[list[Replacement], list[str], list[str]]:
    """Return what another process finds in the ledger: active replacements, machines and former machines."""
    ledger = Ledger()
    try:
        there = ledger.machines(TOKEN), ledger.replaced_machines(TOKEN)
        return ledger.replacements(TOKEN), *([each.id for each in some] for some in there)  # type: ignore[return-value]
    finally:
        ledger.close()


class Held:
    """Step that waits until a test releases it, and records whether it was cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = False
        self.go = asyncio.Event()

    async def __call__(self, *_: Any) -> None:
        self.begun = True
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def test_replacement_records_each_step_before_taking_it(world: World, client: Client) -> None:
    seen = {}

    async def asked(token: str) -> None:
        seen["asked"] = recorded_state()

    async def prepared(*_: Any) -> None:
        seen["used"] = recorded_state()

    world.on_replace, world.on_prepare = asked, prepared
    await replaced(client)
    (intent,) = world.asked
    new = f"new-{intent}"
    owner = client.roster.owner
    assert seen["asked"] == ([Replacement(1, intent, owner, False)], ["m0", "m1"], [])
    assert seen["used"] == ([Replacement(1, intent, owner, True)], ["m0", new], ["m1"])
    assert recorded_state() == ([], ["m0", new], ["m1"])
    assert (client.renewed, client.context.links[1].up, client.phases[1]) == ([True], True, "ready")
    assert world.ended == []


async def test_failing_provider_is_retried_with_the_same_intent(world: World, client: Client) -> None:
    failures: list[Exception] = [NoCapacity("none is left"), OSError("no route")]
    received = []

    async def fails(token: str) -> None:
        received.append(client.details[1])
        if failures:
            raise failures.pop(0)

    world.on_replace = fails
    await replaced(client)
    assert (len(world.asked), len(set(world.asked))) == (3, 1)
    assert client.renewed == [True]
    assert recorded_state()[0] == []


async def test_hanging_provider_is_cancelled_at_the_time_limit(world: World, attach: Come) -> None:
    client = await attach(start_timeout=0.05)
    world.on_replace = held = Held()
    await replaced(client)
    assert held.cancelled
    assert (
        client.roster.replacement_failure(1) == "no replacement machine within 0.05 s: it did not start within 0.05 s"
    )
    assert client.phases[1] == "gone"
    assert recorded_state() == ([], ["m0", "m1"], [])
    assert client.renewed == []


@pytest.mark.parametrize("step", ["replace", "prepare"])
@pytest.mark.parametrize("left", ["stopped", "killed"])
async def test_next_client_continues_an_interrupted_replacement(
    world: World, attach: Come, step: str, left: str
) -> None:
    client = await attach()
    held = Held()
    setattr(world, f"on_{step}", held)
    if left == "killed":  # nothing is said at its end
        client.roster.owner = f"{dead_process()}.word"
        client.ledger.release_replacement = lambda *_: None  # type: ignore[method-assign]
    lose_node(client)
    await until(lambda: held.begun)
    await client.roster.stop_replacing()
    assert held.cancelled
    ((entry,), _, _) = recorded_state()
    assert (entry.intent, entry.made, entry.is_owner_alive) == (world.asked[0], step == "prepare", False)
    held.go.set()
    new = f"new-{entry.intent}"
    world.states |= {"m1": "gone", new: "orphaned"}  # of the latter no agent came to run
    other = await attach()
    other.replacements.resume()
    await wait_replacements(other)
    assert world.asked == [entry.intent] * (1 if step == "prepare" else 2), "never by another token"
    assert recorded_state() == ([], ["m0", new], ["m1"])
    assert other.renewed == [True]


async def test_finished_replacement_is_forgotten(client: Client) -> None:
    client.ledger.record_replacement_intent(TOKEN, 1, "old", f"{dead_process()}.word")
    client.replacements.resume()
    assert recorded_state()[0] == []
    assert not client.roster.is_replacing


async def test_client_attaching_during_replacement_of_the_only_node_joins_it(world: World) -> None:
    _, row = intended(world, 1, on_loss="replace")
    first, second = await attached(world, row), Client(world, row)
    try:
        world.on_replace, world.states["m0"] = Held(), "gone"
        first.context.links[0].mark_lost("its machine is gone")
        first.replacements.begin(0)
        await until(lambda: world.on_replace.begun)  # type: ignore[attr-defined]
        await second.startup.attach_nodes()
        second.replacements.resume()
        await until(lambda: second.roster.is_replacing)
        world.on_replace.go.set()  # type: ignore[attr-defined]
        for client in (first, second):
            await wait_replacements(client)
        assert (first.renewed, second.renewed, len(world.asked)) == ([True], [False], 1)
        assert (second.context.links[0].up, second.setup.env) == (True, {"WORD": "told"})
    finally:
        for client in (first, second):
            await client.close()


async def test_client_that_notices_late_joins_the_replacement(world: World, attach: Come) -> None:
    """The other client has finished, so no replacement entry is left."""
    first, second = await attach(), await attach()
    await replaced(first)
    await replaced(second)
    assert len(world.asked) == 1
    assert second.renewed == [False]


async def test_observer_replaces_nothing(world: World, attach: Come) -> None:
    observer = await attach(observer=True)
    described: list[None] = []

    def looks() -> Any:
        described.append(None)
        return Ledger.machines(observer.ledger, TOKEN)

    observer.ledger.machines = lambda token: looks()  # type: ignore[method-assign]
    lose_node(observer)
    await until(lambda: len(described) > 3)
    await observer.roster.stop_replacing()
    assert (world.asked, recorded_state()[0]) == ([], [])


async def test_broken_replacement_machine_is_ended_and_replaced(world: World, client: Client) -> None:
    async def first_is_broken(machine: Machine, *_: Any) -> None:
        if len(world.prepared) == 1:
            raise PoolError("no agent can run there")

    world.on_prepare = first_is_broken
    await replaced(client)
    first, second = world.asked
    assert first != second, "the same token would give the same machine"
    assert world.ended == [f"new-{first}"]
    assert recorded_state() == ([], ["m0", f"new-{second}"], ["m1", f"new-{first}"])
    assert client.dropped == [1]


async def replace_during_teardown(client: Client, held: Held) -> None:
    lose_node(client)
    await until(lambda: held.begun)
    client.ledger.set_pool_state(TOKEN, "stopping")
    held.go.set()
    await wait_replacements(client)


async def test_machine_created_during_teardown_is_not_used(world: World, client: Client) -> None:
    world.on_replace = held = Held()
    await replace_during_teardown(client, held)
    assert (recorded_state()[1:], world.prepared, client.renewed) == ((["m0", "m1"], []), [], [])
    assert client.context.machines[1] == machine(1)


async def test_machine_prepared_during_teardown_is_ended(world: World, client: Client) -> None:
    world.on_prepare = held = Held()
    await replace_during_teardown(client, held)
    assert world.ended == [f"new-{world.asked[0]}"], "the teardown may have looked before it was there"
    assert client.renewed == []


async def test_log_of_the_new_machine_begins_on_its_own_line(client: Client) -> None:
    client.news.log_receiver.receive("r001.out", 0, b"cut off in the midd")
    await replaced(client)
    assert client.context.archive.read_log_tail("r001.out", 99) == b"cut off in the midd\n"
    assert client.context.machines[1].logs_from == {"r001.out": 20}
    assert client.ledger.machines(TOKEN)[1].logs_from == {"r001.out": 20}


# -- what must not make a loss final, nor cause another -----------------------------------------------------------


@pytest.mark.parametrize("step", ["replace", "prepare"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TimeoutError("the shop is slow"), "the shop is slow"),
        (OSError(errno.ETIMEDOUT, "no answer"), "no answer"),
        (TimeoutError(), "TimeoutError"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
async def test_failed_replacement_is_not_reported_as_our_timeout(
    world: World, client: Client, step: str, error: OSError, message: str
) -> None:
    failures: list[OSError] = [error]
    messages: list[str] = []

    async def fails(*_: Any) -> None:
        if failures:
            raise failures.pop()

    setattr(world, f"on_{step}", fails)
    client.news.subscribe(lambda event: messages.append(getattr(event, "detail", "")), None)
    await replaced(client)
    assert any(f"{message}; retrying" in words for words in messages)
    assert not any("it did not start" in words for words in messages), "our own limit is not over"
    assert (client.renewed, len(world.prepared)) == ([True], 1 if step == "replace" else 2)


async def test_replaced_node_is_not_replaced_again_if_the_ledger_is_locked(world: World, attach: Come) -> None:
    first, second = await attach(), await attach()
    refusals = [LedgerError("the ledger is locked"), LedgerError("the ledger is locked")]

    async def refuse() -> None:
        if refusals:
            raise refusals.pop()

    for client in (first, second):
        client.on_renewed = refuse
        lose_node(client)
    for client in (first, second):
        await wait_replacements(client)
    assert refusals == []
    assert len(world.asked) == 1, "the machine works"
    assert first.context.view.state == second.context.view.state == "up"
    assert recorded_state() == ([], ["m0", f"new-{world.asked[0]}"], ["m1"])


@pytest.mark.parametrize("ending", ["fails", "hangs"])
async def test_unusable_machine_that_cannot_be_ended_is_followed_by_another(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    async def first_is_broken(*_: Any) -> None:
        if len(world.prepared) == 1:
            raise PoolError("no agent can run there")

    async def fails(*_: Any) -> None:
        raise OSError("the shop is closed")

    monkeypatch.setattr(node_recovery, "TERMINATE_TIMEOUT", 0.001 if ending == "hangs" else 60.0)
    world.on_prepare, world.on_terminate = first_is_broken, fails if ending == "fails" else Held()
    await replaced(client)
    first, second = world.asked
    assert recorded_state() == ([], ["m0", f"new-{second}"], ["m1", f"new-{first}"]), "a teardown ends the former"
    assert client.renewed == [True]


async def test_final_error_of_a_replacement_is_not_reported_as_a_timeout(world: World, client: Client) -> None:
    async def fails(token: str) -> None:
        raise RemoteError("shop.Odd", "no words")

    world.on_replace = fails
    await replaced(client)
    assert client.roster.replacement_failure(1) == "no replacement machine: shop.Odd: no words"


@pytest.mark.parametrize("trouble", [PoolError("the shop is closed"), OSError("no route"), "hangs"])
async def test_client_that_cannot_describe_a_replacement_keeps_connecting(
    world: World, attach: Come, trouble: Exception | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_recovery, "MACHINE_STATE_TIMEOUT", 0.001)
    first, second = await attach(), await attach()
    await replaced(first)
    asked = []
    describe = world.describe
    world.refuses[f"new-{world.asked[0]}"] = UsageError("its key file is away")

    async def fails(pool: str, known: Sequence[Machine]) -> list[Machine]:
        asked.append(known)
        if len(asked) > 2:
            world.refuses.clear()
        elif isinstance(trouble, Exception):
            raise trouble
        else:
            await asyncio.Event().wait()
        return await describe(pool, known)

    world.describe = fails  # type: ignore[method-assign]
    await replaced(second)
    assert (len(asked), second.renewed, len(world.asked)) == (3, [False], 1)


async def test_no_replacement_without_the_environment_of_the_pool(world: World) -> None:
    """The client attached while another client replaced the only node, and that client was killed."""
    world.states = {"m0": "gone"}
    _, row = intended(world, 1, on_loss="replace", start_timeout=0.2)
    ledger = Ledger()
    ledger.record_replacement_intent(TOKEN, 0, "intent", "1.word")
    client = Client(world, row)
    await client.startup.attach_nodes()
    client.replacements.resume()
    ledger._write([("UPDATE replacements SET owner=?", (f"{dead_process()}.word",))])
    ledger.close()
    await wait_replacements(client)
    assert (world.asked, world.ended) == ([], [])
    assert "cannot fetch the pool's environment" in client.roster.failures[0]
    await client.close()
