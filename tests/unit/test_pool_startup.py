"""Bringing a pool's nodes up, and coming to a pool: the machines and their agents are played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skyward_core.model.errors import (
    CredentialsRefused,
    HostKeyError,
    PoolError,
    Unreachable,
)
from skyward_core.model.machines import Machine
from skyward_core.model.outcomes import MachineStatus
from skyward_core.model.specs import Image, Nodes, Options, PoolSpec
from skyward_core.pool import agent_link
from skyward_core.pool.pool import Pool
from skyward_core.protocol.frame_codec import WireError
from skyward_core.store.ledger import Ledger
from tests.support.pool_parts import TOKEN, Client, World, dead_process, intended, machine
from tests.support.waiting import until

Come = Callable[..., Awaitable[Client]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(agent_link, "BACKOFF", (0.001, 0.01))
    return World()


@pytest.fixture
async def make(world: World) -> AsyncIterator[Callable[..., Client]]:
    """Makes a client of a pool that is written down, with as many nodes as are asked for."""
    clients: list[Client] = []

    def make(nodes: int, **options: Any) -> Client:
        _, row = intended(world, nodes, **options)
        clients.append(Client(world, row))
        clients[-1].setup.set_image(Image())
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


def spec(world: World, nodes: int, **options: Any) -> PoolSpec:
    return PoolSpec(name="q", provider=world, nodes=nodes, options=Options(console=False, grace=0.1, **options))


# -- a new pool ---------------------------------------------------------------------------------------------------


async def test_nodes_come_up_together_and_none_installs_before_all_are_there(
    world: World, make: Callable[..., Client]
) -> None:
    client = make(3)
    passed: list[int] = []
    shared: list[object] = []
    late = asyncio.Event()

    async def prepare(machine: Machine, gate: Any, first: bool) -> None:
        assert first, "the pool has never been there"
        shared.append(gate.compute_once("bundle", object))
        if machine.node == 2:
            await late.wait()
        await gate.wait(machine.node)
        passed.append(machine.node)

    world.on_prepare = prepare
    starting = asyncio.create_task(client.startup.start_nodes(spec(world, 3)))
    await until(lambda: len(shared) == 3)
    assert (passed, world.pipes) == ([], {})
    assert written() == [machine(node) for node in range(3)], "who dies now leaves word of them"
    late.set()
    await starting
    assert sorted(passed) == [0, 1, 2]
    assert len({id(each) for each in shared}) == 1, "made once for all"
    assert client.phases == ["ready"] * 3
    assert [(name, told["node"], told["nodes"]) for name, told in world.prepared] == [
        ("m0", 0, 3), ("m1", 1, 3), ("m2", 2, 3),
    ]  # fmt: skip


async def test_of_a_range_a_pool_has_the_nodes_that_there_were(world: World) -> None:
    """Its world, its view and its row in the ledger are of what was got."""
    world.room = 3
    ledger = Ledger()
    wanted = PoolSpec(name="q", provider=world, nodes=Nodes(min=2, max=5), options=Options(console=False, grace=0.1))
    pool = await Pool.register(wanted, ledger)
    assert len(pool.view.nodes) == 5, "until it is known"
    starting = asyncio.create_task(pool.start(wanted))
    await until(lambda: pool.view.state == "up")
    await starting
    assert (len(pool.view.nodes), pool.view.world_size) == (3, 3)
    assert [told["nodes"] for _, told in world.prepared] == [3, 3, 3]
    assert ledger.pool(pool.row.token).spec["nodes"] == 3
    receipt = await pool.down()
    assert (receipt.created, receipt.gone) == (3, (0, 1, 2))
    ledger.close()


def written() -> list[Machine]:
    ledger = Ledger()
    try:
        return ledger.machines(TOKEN)
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("refused", "kind"),
    [(ConnectionRefusedError("nobody listens"), Unreachable), (WireError("another release"), PoolError)],
)
async def test_an_agent_that_does_not_answer_is_named(
    world: World, make: Callable[..., Client], refused: Exception, kind: type[PoolError]
) -> None:
    client = make(2)
    world.refuses["m1"] = refused
    said = rf"the agent of node 1 \(host-m1\) does not answer: {refused}"
    with pytest.raises(PoolError, match=said) as caught:
        await client.startup.start_nodes(spec(world, 2))
    assert type(caught.value) is kind


async def test_nodes_with_different_numbers_of_ranks_are_refused_by_name(
    world: World, make: Callable[..., Client]
) -> None:
    client = make(3)
    world.ranks = {"m1": 4, "m2": 2, "m0": 4}
    with pytest.raises(PoolError, match="node 0 4, node 1 4, node 2 2; give the number: ranks_per_node=2"):
        await client.startup.start_nodes(spec(world, 3))


async def test_who_leaves_says_at_last_what_has_come_here(world: World) -> None:
    ledger = Ledger()
    pool = await Pool.register(spec(world, 1), ledger)
    await pool.start(spec(world, 1))
    pool.links[0].acknowledge("r1")
    await pool.detach()
    assert world.questions[-2:] == [("m0", "ack"), ("m0", "ping")], "and waits until that is heard"
    ledger.close()


async def test_only_what_takes_room_counts_as_not_fetched(world: World, make: Callable[..., Client]) -> None:
    world.unfetched = {"m0": {"r1": 0, "r2": 3}, "m1": {"r1": 0, "r2": 4}}
    client = make(2)
    await client.startup.start_nodes(spec(world, 2))
    for link in client.context.links:
        client.news.update_retained_results(link, link.welcome)
    assert client.context.view.unfetched == {"r2": 7}


async def test_a_node_that_fails_ends_the_start_by_name_and_nothing_is_left(world: World) -> None:
    ledger = Ledger()
    broken_off: list[int] = []

    async def prepare(machine: Machine, gate: Any, first: bool) -> None:
        if machine.node == 1:
            raise PoolError(f"{machine.address} has no room")
        try:
            await gate.wait(machine.node)
        except asyncio.CancelledError:
            broken_off.append(machine.node)
            raise

    world.on_prepare = prepare
    pool = await Pool.register(spec(world, 3), ledger)
    with pytest.raises(PoolError, match=r"^host-m1 has no room$"):
        await pool.start(spec(world, 3))
    assert sorted(broken_off) == [0, 2]
    assert sorted(world.ended) == ["m0", "m1", "m2"]
    row = ledger.pool(pool.row.token)
    assert row.ended_at is not None
    assert row.receipt is not None
    assert (row.receipt["created"], row.receipt["gone"], row.receipt["unaccounted"]) == (3, [0, 1, 2], [])
    assert pool.view.state == "gone"
    ledger.close()


async def test_a_start_that_takes_too_long_says_at_what_each_node_was(world: World) -> None:
    ledger = Ledger()

    async def hang(machine: Machine, *_: Any) -> None:
        await asyncio.Event().wait()

    world.on_prepare = hang
    short = spec(world, 2, start_timeout=0.05)
    pool = await Pool.register(short, ledger)
    with pytest.raises(PoolError, match=r"pool q was not up after 0.05 s: node 0 requested .*; node 1 requested"):
        await pool.start(short)
    assert sorted(world.ended) == ["m0", "m1"]
    ledger.close()


@pytest.mark.parametrize("step", ["create", "prepare"])
async def test_a_time_limit_of_the_provider_s_own_is_no_end_of_ours(world: World, step: str) -> None:
    ledger = Ledger()

    async def fail(*_: Any) -> None:
        raise TimeoutError("the shop is slow")

    setattr(world, f"on_{step}", fail)
    pool = await Pool.register(spec(world, 2), ledger)
    with pytest.raises(TimeoutError, match="the shop is slow"):
        await pool.start(spec(world, 2))
    row = ledger.pool(pool.row.token)
    assert row.ended_at is not None
    ledger.close()


# -- a pool that is there -----------------------------------------------------------------------------------------


@pytest.fixture
async def come(world: World) -> AsyncIterator[Come]:
    clients: list[Client] = []

    async def come(nodes: int = 4, before: Callable[[Ledger], object] = lambda ledger: None) -> Client:
        """Come to a pool that another client made; ``before``: what became of it meanwhile."""
        _, row = intended(world, nodes, on_loss="replace")
        ledger = Ledger()
        before(ledger)
        ledger.close()
        client = Client(world, row)
        clients.append(client)
        await client.startup.attach_nodes()
        return client

    yield come
    for client in clients:
        await client.close()


async def test_each_node_is_come_to_by_what_its_provider_says(world: World, come: Come) -> None:
    world.states = {"m1": "gone", "m2": "orphaned", "m3": "unreachable"}
    world.refuses["m3"] = OSError("no route")
    client = await come()
    links = client.context.links
    assert [link.up for link in links] == [True, False, True, False]
    assert [link.gone for link in links] == [False, True, False, False]
    assert client.context.view.nodes[1].detail == "gone when we came"
    assert [name for name, _ in world.prepared] == ["m2"], "only where no agent runs one is started"
    assert links[3].is_reconnecting
    world.refuses.clear()
    await until(lambda: links[3].up)


async def test_a_new_agent_is_told_what_another_node_knows(world: World, come: Come) -> None:
    world.states = {"m0": "orphaned"}
    client = await come(2)
    ((name, told),) = world.prepared
    assert (name, told["env"], told["knows_env"]) == ("m0", {"WORD": "told"}, True)
    assert client.context.links[0].up


@pytest.mark.parametrize(
    ("owner", "state", "up"),
    [
        ("alive", "running", False),  # it is what is there now, and soon another is
        ("dead", "running", True),
        ("dead", "orphaned", False),
    ],
)
async def test_a_node_that_is_to_get_another_machine_is_not_come_to(
    world: World, come: Come, owner: str, state: MachineStatus, up: bool
) -> None:
    name = "1.word" if owner == "alive" else f"{dead_process()}.word"
    world.states["m1"] = state
    client = await come(2, lambda ledger: ledger.record_replacement_intent(TOKEN, 1, "intent", name))
    link = client.context.links[1]
    assert (link.up, link.gone) == (up, not up)
    assert world.prepared == []
    if not up:
        assert client.context.view.nodes[1].detail == "another machine is on its way"


async def test_another_client_that_decides_while_we_come_has_decided(world: World, come: Come) -> None:
    """It finds the agent dead after we have looked at the entries, and before it is our turn to decide."""
    world.states["m1"] = "orphaned"
    describe = world.describe

    async def then_decide(pool: str, known: Sequence[Machine]) -> list[Machine]:
        ledger = Ledger()
        ledger.record_replacement_intent(TOKEN, 1, "intent", "1.word")
        ledger.close()
        return await describe(pool, known)

    world.describe = then_decide  # type: ignore[method-assign]
    client = await come(2)
    assert (client.context.links[1].gone, world.prepared) == (True, [])


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (OSError("no route"), Unreachable),
        (HostKeyError("its key has changed"), HostKeyError),
        (CredentialsRefused("no key of ours is taken"), CredentialsRefused),
        (WireError("it speaks version 1"), PoolError),
    ],
)
async def test_where_no_node_answers_the_first_says_why(
    world: World, come: Come, refused: Exception, kind: type[PoolError]
) -> None:
    world.refuses = {"m0": refused, "m1": OSError("something else")}
    with pytest.raises(PoolError, match=str(refused)) as caught:
        await come(2)
    assert type(caught.value) is kind


async def test_a_pool_of_which_no_machine_is_left_is_not_come_to(world: World, come: Come) -> None:
    world.states = {"m0": "gone", "m1": "gone"}
    with pytest.raises(PoolError, match="no machine of pool p is left"):
        await come(2)
    assert world.questions == []


@pytest.mark.parametrize(("owner", "comes"), [("1.word", True), ("dead", False)])
async def test_a_pool_whose_only_node_is_just_getting_another_machine_is_come_to(
    world: World, come: Come, owner: str, comes: bool
) -> None:
    """Of one whose replacement nobody sees to there is nobody left that knows how to set it up."""
    world.states = {"m0": "gone"}
    owner = f"{dead_process()}.word" if owner == "dead" else owner

    def before(ledger: Ledger) -> None:
        ledger.record_replacement_intent(TOKEN, 0, "intent", owner)

    if not comes:
        with pytest.raises(PoolError, match="no machine of pool p is left"):
            await come(1, before)
        return
    client = await come(1, before)
    (node,) = client.context.view.nodes
    assert (client.context.links[0].gone, node.phase, node.detail) == (
        True, "requested", "another machine is on its way",
    )  # fmt: skip
