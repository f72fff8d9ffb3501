"""Startup of a pool's nodes, attaching to a pool, and teardown after failures, with played machines and agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.model.errors import Cancelled, CredentialsRefused, NoCapacity, PoolError, TooFewHosts, Unreachable
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import MachineStatus
from skyward_core.model.specs import Image, Nodes, Options, PoolSpec
from skyward_core.pool import agent_link, output_files, teardown
from skyward_core.pool import startup_and_machine_verification as startup
from skyward_core.pool.output_files import FileListing
from skyward_core.pool.pool import Pool
from skyward_core.pool.unrecorded_machines_and_gone_pools import close_if_gone, is_starting, save_unknown_machines
from skyward_core.protocol.frame_codec import WireError
from skyward_core.store.ledger import Ledger
from skyward_core.views import events as ev
from tests.support.ledger_runs import record_runs
from tests.support.pool_parts import TOKEN, Client, World, dead_process, intended, machine
from tests.support.waiting import until

Come = Callable[..., Awaitable[Client]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(agent_link, "BACKOFF", (0.001, 0.01))
    return World()


@pytest.fixture
async def make_client(world: World) -> AsyncIterator[Callable[..., Client]]:
    """Factory of a client of a registered pool with a given number of nodes."""
    clients: list[Client] = []

    def make_client(nodes: int, **options: Any) -> Client:
        _, row = intended(world, nodes, **options)
        clients.append(Client(world, row))
        clients[-1].setup.set_image(Image())
        return clients[-1]

    yield make_client
    for client in clients:
        await client.close()


def spec(world: World, nodes: int, **options: Any) -> PoolSpec:
    return PoolSpec(name="q", provider=world, nodes=nodes, options=Options(console=False, grace=0.1, **options))


# -- a new pool ---------------------------------------------------------------------------------------------------


async def test_no_node_installs_before_all_nodes_are_prepared(world: World, make_client: Callable[..., Client]) -> None:
    client = make_client(3)
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
    assert recorded_machines() == [machine(node) for node in range(3)], "who dies now leaves word of them"
    late.set()
    await starting
    assert sorted(passed) == [0, 1, 2]
    assert len({id(each) for each in shared}) == 1, "made once for all"
    assert client.phases == ["ready"] * 3
    assert [(name, text["node"], text["nodes"]) for name, text in world.prepared] == [
        ("m0", 0, 3), ("m1", 1, 3), ("m2", 2, 3),
    ]  # fmt: skip


async def test_pool_of_a_node_range_has_the_nodes_it_got(world: World, ledger: Ledger) -> None:
    """The world size, the view and the ledger row have the number of nodes that were created."""
    world.room = 3
    pool_spec = PoolSpec(name="q", provider=world, nodes=Nodes(min=2, max=5), options=Options(console=False, grace=0.1))
    pool = await Pool.register(pool_spec, ledger)
    assert len(pool.view.nodes) == 5, "until it is known"
    starting = asyncio.create_task(pool.start(pool_spec))
    await until(lambda: pool.view.state == "up")
    await starting
    assert (len(pool.view.nodes), pool.view.world_size) == (3, 3)
    assert [text["nodes"] for _, text in world.prepared] == [3, 3, 3]
    assert ledger.pool(pool.row.token).spec["nodes"] == 3
    receipt = await pool.down()
    assert (receipt.created, receipt.gone) == (3, (0, 1, 2))


def recorded_machines() -> list[Machine]:
    ledger = Ledger()
    try:
        return ledger.machines(TOKEN)
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("refused", "kind"),
    [(ConnectionRefusedError("nobody listens"), Unreachable), (WireError("incompatible release"), PoolError)],
)
async def test_start_names_the_agent_that_does_not_answer(
    world: World, make_client: Callable[..., Client], refused: Exception, kind: type[PoolError]
) -> None:
    client = make_client(2)
    world.refuses["m1"] = refused
    message = rf"The agent of node 1 \(host-m1\) does not answer: {refused}"
    with pytest.raises(PoolError, match=message) as caught:
        await client.startup.start_nodes(spec(world, 2))
    assert type(caught.value) is kind


async def test_start_refuses_nodes_with_different_rank_counts(world: World, make_client: Callable[..., Client]) -> None:
    client = make_client(3)
    world.ranks = {"m1": 4, "m2": 2, "m0": 4}
    with pytest.raises(PoolError, match=r"node 0 4, node 1 4, node 2 2\. Set a number, for example ranks_per_node=2"):
        await client.startup.start_nodes(spec(world, 3))


async def test_detaching_client_sends_its_acknowledgements_last(world: World, ledger: Ledger) -> None:
    pool = await Pool.register(spec(world, 1), ledger)
    await pool.start(spec(world, 1))
    pool.links[0].acknowledge("r1")
    await pool.detach()
    assert world.questions[-2:] == [("m0", "ack"), ("m0", "ping")], "and waits until that is heard"


async def test_only_results_with_bytes_count_as_unfetched(world: World, make_client: Callable[..., Client]) -> None:
    world.unfetched = {"m0": {"r1": 0, "r2": 3}, "m1": {"r1": 0, "r2": 4}}
    client = make_client(2)
    await client.startup.start_nodes(spec(world, 2))
    for link in client.context.links:
        client.news.update_retained_results(link, link.welcome)
    assert client.context.view.unfetched == {"r2": 7}


async def test_failing_node_ends_the_start_and_all_machines(world: World, ledger: Ledger) -> None:
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
    assert row.receipt["start_error"] == "host-m1 has no room"
    assert (pool.view.state, pool.view.shown_state, pool.view.detail) == ("gone", "unstarted", "host-m1 has no room")


async def test_start_timeout_names_the_phase_of_each_node(world: World, ledger: Ledger) -> None:

    async def hang(machine: Machine, *_: Any) -> None:
        await asyncio.Event().wait()

    world.on_prepare = hang
    short = spec(world, 2, start_timeout=0.05)
    pool = await Pool.register(short, ledger)
    with pytest.raises(PoolError, match=r"Pool q did not start within 0.05 s: node 0 requested .*; node 1 requested"):
        await pool.start(short)
    assert sorted(world.ended) == ["m0", "m1"]
    assert pool.view.start_error.startswith("Pool q did not start within 0.05 s: node 0 requested")


@pytest.mark.parametrize("step", ["create", "prepare"])
async def test_timeout_of_the_provider_is_raised_as_it_is(world: World, step: str, ledger: Ledger) -> None:

    async def fail(*_: Any) -> None:
        raise TimeoutError("the shop is slow")

    setattr(world, f"on_{step}", fail)
    pool = await Pool.register(spec(world, 2), ledger)
    with pytest.raises(TimeoutError, match="the shop is slow"):
        await pool.start(spec(world, 2))
    row = ledger.pool(pool.row.token)
    assert row.ended_at is not None


# -- a pool that is there -----------------------------------------------------------------------------------------


@pytest.fixture
async def attach(world: World) -> AsyncIterator[Come]:
    clients: list[Client] = []

    async def attach(
        nodes: int = 4, before: Callable[[Ledger], object] = lambda ledger: None, *, observer: bool = False
    ) -> Client:
        """Attach to a pool that another client created. ``before`` is called first and may change the pool."""
        _, row = intended(world, nodes, on_loss="replace")
        ledger = Ledger()
        before(ledger)
        ledger.close()
        client = Client(world, row, observer=observer)
        clients.append(client)
        await client.startup.attach_nodes()
        return client

    yield attach
    for client in clients:
        await client.close()


async def test_link_of_an_observer_reconnects_if_its_agent_does_not_answer(world: World, attach: Come) -> None:
    world.refuses["m1"] = OSError("no route")
    client = await attach(2, lambda ledger: ledger.set_pool_state(ledger.live_pools()[0].token, "up"), observer=True)
    link = client.context.links[1]
    assert link.is_reconnecting
    world.refuses.clear()
    await until(lambda: link.up)


async def test_attach_connects_to_each_node_by_its_machine_state(world: World, attach: Come) -> None:
    world.states = {"m1": "gone", "m2": "orphaned", "m3": "unreachable"}
    world.refuses["m3"] = OSError("no route")
    client = await attach()
    links = client.context.links
    assert [link.up for link in links] == [True, False, True, False]
    assert [link.gone for link in links] == [False, True, False, False]
    assert client.context.view.nodes[1].detail == "already gone"
    assert [name for name, _ in world.prepared] == ["m2"], "only where no agent runs one is started"
    assert links[3].is_reconnecting
    world.refuses.clear()
    await until(lambda: links[3].up)


async def test_new_agent_gets_environment_known_to_another_node(world: World, attach: Come) -> None:
    world.states = {"m0": "orphaned"}
    client = await attach(2)
    ((name, config),) = world.prepared
    assert (name, config["env"], config["knows_env"]) == ("m0", {"WORD": "told"}, True)
    assert client.context.links[0].up


@pytest.mark.parametrize(
    ("owner", "state", "up"),
    [
        ("alive", "running", False),  # it is what is there now, and soon another is
        ("dead", "running", True),
        ("dead", "orphaned", False),
    ],
)
async def test_attach_skips_a_node_with_a_replacement_under_way(
    world: World, attach: Come, owner: str, state: MachineStatus, up: bool
) -> None:
    name = "1.word" if owner == "alive" else f"{dead_process()}.word"
    world.states["m1"] = state
    client = await attach(2, lambda ledger: ledger.record_replacement_intent(TOKEN, 1, "intent", name))
    link = client.context.links[1]
    assert (link.up, link.gone) == (up, not up)
    assert world.prepared == []
    if not up:
        assert client.context.view.nodes[1].detail == "waiting for a replacement machine"


async def test_attach_honors_a_replacement_decided_during_it(world: World, attach: Come) -> None:
    """The other client decides after this client read the entries and before it decides itself."""
    world.states["m1"] = "orphaned"
    describe = world.describe

    async def then_decide(pool: str, known: Sequence[Machine]) -> list[Machine]:
        ledger = Ledger()
        ledger.record_replacement_intent(TOKEN, 1, "intent", "1.word")
        ledger.close()
        return await describe(pool, known)

    world.describe = then_decide  # type: ignore[method-assign]
    client = await attach(2)
    assert (client.context.links[1].gone, world.prepared) == (True, [])


async def test_attach_refuses_a_pool_without_machines(world: World, attach: Come) -> None:
    world.states = {"m0": "gone", "m1": "gone"}
    with pytest.raises(PoolError, match="No machine of pool p exists any more"):
        await attach(2)
    assert world.questions == []


@pytest.mark.parametrize(("owner", "comes"), [("1.word", True), ("dead", False)])
async def test_attach_to_a_pool_whose_only_node_is_replaced_depends_on_the_owner(
    world: World, attach: Come, owner: str, comes: bool
) -> None:
    """If no client owns the replacement, no process knows how to set the node up."""
    world.states = {"m0": "gone"}
    owner = f"{dead_process()}.word" if owner == "dead" else owner

    def before(ledger: Ledger) -> None:
        ledger.record_replacement_intent(TOKEN, 0, "intent", owner)

    if not comes:
        with pytest.raises(PoolError, match="No machine of pool p exists any more"):
            await attach(1, before)
        return
    client = await attach(1, before)
    (node,) = client.context.view.nodes
    assert (client.context.links[0].gone, node.phase, node.detail) == (
        True, "requested", "waiting for a replacement machine",
    )  # fmt: skip


# Machines that a provider created and that no client recorded are found by the next client that inspects their pool.
# The provider and the agents are simulated.


class Finder(World):
    """Provider that can find its machines.

    Attributes:
        made: Pool token -> its machines.
        trouble: Errors raised by some methods instead of an answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, list[Machine]] = {}
        self.trouble: dict[str, Exception] = {}
        self.halt = asyncio.Event()
        self.halt.set()

    async def create(self, finder_spec: PoolSpec, token: str) -> list[Machine]:
        self.made[token] = [machine(node) for node in range(finder_spec.most_nodes)]
        await self.halt.wait()
        return self.made[token]

    async def find(self, pool: str, token: str) -> list[Machine]:
        self._raise("find")
        return list(self.made.get(token, ()))

    async def describe(self, pool: str, known: Any) -> list[Machine]:
        self._raise("describe")
        return await super().describe(pool, known)

    async def terminate(self, pool: str, machines: Any) -> None:
        self._raise("terminate")
        await super().terminate(pool, machines)

    async def teardown(self, pool: str) -> None:
        self._raise("teardown")

    def _raise(self, verb: str) -> None:
        if verb in self.trouble:
            raise self.trouble[verb]


@pytest.fixture
def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finder:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(teardown, "SILENCE", 0.2)
    monkeypatch.setattr(teardown, "AGAIN", 0.01)
    return Finder()


def finder_spec(finder: World, nodes: int = 2) -> PoolSpec:
    return PoolSpec(name="q", provider=finder, nodes=nodes, options=Options(console=False, grace=0.1))


async def test_start_given_up_inside_create_leaves_no_machine(finder: Finder, ledger: Ledger) -> None:
    finder.halt.clear()
    pool = await Pool.register(finder_spec(finder), ledger)
    starting = asyncio.create_task(pool.start(finder_spec(finder)))
    await until(lambda: bool(finder.made))
    receipt = await pool.down()
    with pytest.raises(Cancelled):
        await starting
    assert receipt.ok and (receipt.created, receipt.gone) == (2, (0, 1))
    assert sorted(finder.ended) == ["m0", "m1"]


REFUSED = CredentialsRefused("the key has expired")
IN_USE = PoolError("security group sg-1 is still in use")


@pytest.mark.parametrize(
    ("trouble", "gone", "unaccounted"),
    [
        ({"find": REFUSED}, (0, 1), ("unrecorded machines (the key has expired)",)),
        ({"describe": REFUSED, "terminate": REFUSED}, (), ("m0", "m1")),
        ({"teardown": IN_USE}, (0, 1), ("security group sg-1 is still in use",)),
    ],
)
async def test_teardown_names_resources_left_by_a_failing_provider(
    finder: Finder, ledger: Ledger, trouble: dict[str, Exception], gone: tuple[int, ...], unaccounted: tuple[str, ...]
) -> None:
    pool = await Pool.register(finder_spec(finder), ledger)
    await pool.start(finder_spec(finder))
    finder.trouble = dict(trouble)
    receipt = await pool.down()
    assert not receipt.ok and (receipt.gone, receipt.unaccounted) == (gone, unaccounted)
    assert ("the key has expired" in receipt.notes) == ("describe" in trouble)
    assert ledger.pool(pool.row.token).ended_at is None, "the next teardown ends the pool"
    finder.trouble.clear()
    assert (await pool.down()).ok


async def test_machines_of_a_client_killed_inside_create_are_ended(finder: Finder, ledger: Ledger) -> None:
    row = ledger.record_intent("t9", "q", finder.to_json(), finder_spec(finder).describe())
    mark_client_dead(ledger, "t9")
    finder.made["t9"] = [machine(0), machine(1)]
    finder.states = {"m0": "ending", "m1": "ending"}
    assert await close_if_gone(ledger.pool("t9"), finder, ledger) is None  # type: ignore[arg-type]
    assert [each.id for each in ledger.machines("t9")] == ["m0", "m1"]
    pool = Pool(row, finder, ledger)  # type: ignore[arg-type]
    with pytest.raises(PoolError, match=r"is incomplete: .* on any of its 2 machines"):
        await pool.attach()
    receipt = await pool.down()
    assert receipt.ok and receipt.gone == (0, 1)


async def test_pool_of_a_client_killed_before_create_is_closed(finder: Finder, ledger: Ledger) -> None:
    ledger.record_intent("t9", "q", finder.to_json(), finder_spec(finder).describe())
    mark_client_dead(ledger, "t9")
    receipt = await close_if_gone(ledger.pool("t9"), finder, ledger)  # type: ignore[arg-type]
    assert receipt is not None and receipt.created == 0


async def test_unrecorded_machines_of_taken_places_are_saved_as_replaced(finder: Finder, ledger: Ledger) -> None:
    intended(finder, 2)
    finder.made[TOKEN] = [machine(0), machine(1), machine(1, "lost"), machine(2, "late")]
    new = await save_unknown_machines("p", TOKEN, finder, ledger)  # type: ignore[arg-type]
    assert [each.id for each in new] == ["lost", "late"]
    assert [each.id for each in ledger.machines(TOKEN)] == ["m0", "m1", "late"]
    assert [each.id for each in ledger.replaced_machines(TOKEN)] == ["lost"]
    assert await save_unknown_machines("p", TOKEN, finder, ledger) == [], "each once"  # type: ignore[arg-type]


async def test_pool_torn_down_by_another_client_during_create_does_not_start(finder: Finder, ledger: Ledger) -> None:
    finder.halt.clear()
    pool = await Pool.register(finder_spec(finder), ledger)
    starting = asyncio.create_task(pool.start(finder_spec(finder)))
    await until(lambda: bool(finder.made))
    ledger.set_pool_state(pool.row.token, "stopping")
    finder.halt.set()
    with pytest.raises(PoolError, match="another client has torn it down"):
        await starting
    assert sorted(set(finder.ended)) == ["m0", "m1"]


def mark_client_dead(ledger: Ledger, token: str) -> None:
    ledger._write([("UPDATE pools SET pid=? WHERE token=?", (dead_process(), token))])


# Machines that are not to be had at once: a start waits for them as long as it may. The provider is played.


class Full(World):
    """Provider without capacity for the first attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0
        self.full_for = 10**9
        self.says: Exception = NoCapacity("no machines available: a in zone b: full")
        self.on_create = self._look

    async def _look(self) -> None:
        self.tries += 1
        if self.tries <= self.full_for:
            raise self.says


@pytest.fixture
def full_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Full:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(startup, "PAUSES", (0.01, 0.02))
    return Full()


async def start_pool(full_world: Full, ledger: Ledger, wait: float | str) -> tuple[Pool, PoolSpec, list[ev.Event]]:
    options = Options(console=False, grace=0.1, wait_for_capacity=wait)
    spec = PoolSpec(name="q", provider=full_world, nodes=2, options=options)
    pool = await Pool.register(spec, ledger)
    events: list[ev.Event] = []
    pool.news.subscribe(events.append, None)
    return pool, spec, events


async def test_start_without_capacity_is_retried_and_each_retry_shown(full_world: Full, ledger: Ledger) -> None:
    full_world.full_for = 2
    pool, spec, events = await start_pool(full_world, ledger, "1h")
    await pool.start(spec)
    assert full_world.tries == 3
    words = [each.detail for each in events if isinstance(each, ev.PoolState)]
    assert sum("a in zone b: full; retrying until 20" in each for each in words) == 2
    again = [each for each in events if isinstance(each, ev.NodePhase) and each.retry_at is not None]
    assert [each.node for each in again] == [0, 1, 0, 1] and again[0].detail == "no capacity"
    assert (await pool.down()).ok


@pytest.mark.parametrize("wait", [0, 0.05])
async def test_start_without_capacity_fails_with_the_last_answer(full_world: Full, ledger: Ledger, wait: float) -> None:
    pool, spec, _ = await start_pool(full_world, ledger, wait)
    with pytest.raises(NoCapacity, match="a in zone b: full"):
        await pool.start(spec)
    assert (full_world.tries == 1) == (wait == 0) and ledger.live_pools() == []


async def test_too_few_hosts_is_not_retried(full_world: Full, ledger: Ledger) -> None:
    full_world.says = TooFewHosts("2 nodes and 1 host")
    pool, spec, _ = await start_pool(full_world, ledger, "1h")
    with pytest.raises(TooFewHosts):
        await pool.start(spec)
    assert full_world.tries == 1


async def test_teardown_ends_a_start_that_waits_for_capacity(
    full_world: Full, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "PAUSES", (60.0, 60.0))
    pool, spec, _ = await start_pool(full_world, ledger, "1h")
    starting = asyncio.create_task(pool.start(spec))
    await until(lambda: full_world.tries == 1)
    assert is_starting(ledger.pool(pool.row.token))
    receipt = await pool.down()
    with pytest.raises(Cancelled):
        await starting
    assert receipt.ok and receipt.created == 0 and full_world.tries == 1


async def test_pool_waiting_for_capacity_is_still_starting(full_world: Full, ledger: Ledger) -> None:
    pool, _, _ = await start_pool(full_world, ledger, "2h")
    an_hour_ago = pool.row.created_at - 3600
    ledger._write([("UPDATE pools SET created_at=? WHERE token=?", (an_hour_ago, pool.row.token))])
    assert is_starting(ledger.pool(pool.row.token))
    assert (await pool.down()).ok


# A teardown's word with each agent, without agents.


class FakeLink:
    """Link whose agent says goodbye while the connection stays open."""

    node, up, finished, last_sizes, silence_seconds = 0, True, False, None, 0.0

    sent: tuple[str, ...] = ()

    def flush_acknowledgements(self) -> None:
        self.sent += ("ack",)

    def send(self, header: dict[str, Any]) -> bool:
        self.sent += (header["t"], *header["drop"])
        asyncio.get_running_loop().call_soon(self.bye)
        return True

    def bye(self) -> None:
        self.finished, self.last_sizes = True, {"r000.out": 7}


@pytest.mark.parametrize(
    "here, expected", [(7, ""), (5, "2 bytes of the logs of node 0 did not arrive")], ids=["whole", "short"]
)
async def test_teardown_waits_for_nothing_after_the_goodbye(
    monkeypatch: pytest.MonkeyPatch, here: int, expected: str
) -> None:
    monkeypatch.setattr(teardown, "GOODBYE", 3600.0)
    archive = SimpleNamespace(cursors={"r000.out": here})
    news, registry = SimpleNamespace(log_receiver=SimpleNamespace(has_unwritten=False)), SimpleNamespace(runs=["ours"])
    context: Any = SimpleNamespace(archive=archive, longest_grace=1.0, news=news, registry=registry)
    link: Any = FakeLink()
    async with asyncio.timeout(60):
        assert await teardown._shut_down_agent(context, link) == expected
    assert link.sent == ("ack", "shutdown", "ours")  # what is here, or of no use, is kept by nobody


@pytest.mark.parametrize("runs", [0, 1])
async def test_teardown_reports_lost_files_only_if_the_pool_had_runs(
    runs: int, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    async def nobody_says(*_: Any, **__: Any) -> FileListing:
        return FileListing([], 0, {}, {0: "the link to node 0 is down"})

    monkeypatch.setattr(output_files, "list_files", nobody_says)
    world: Any = World()
    spec = PoolSpec(name="q", provider=world, nodes=1, options=Options(console=False, grace=0.1))
    pool = await Pool.register(spec, ledger)
    await pool.start(spec)
    if runs:
        record_runs(ledger, opened=[(pool.row.token, "run", "f", "broadcast", 1, 0.0)])
    receipt = await pool.down()
    assert any("could not list its files" in each for each in receipt.lost) == bool(runs)
