"""Choice of machines by requirements, offers and providers, and choice of SSH hosts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

import skyward_core as sky
from skyward_core import providers
from skyward_core.model import provider_capability_protocols, provider_settings_schema
from skyward_core.model.accelerators import Accelerator
from skyward_core.model.errors import NoCapacity, SkywardError, SpecError, TooFewHosts, UsageError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.offers_and_rental_plans import (
    ALLOCATIONS,
    MachineRequirements,
    Offer,
    OfferList,
    RentalPlan,
    matching_offers,
    mismatch_reason,
)
from skyward_core.model.specs import PoolSpec
from skyward_core.providers import provider_call_logs_polling_and_cache as provider_calls
from skyward_core.providers.aws.boto_calls import AwsAccount, AwsCalls
from skyward_core.providers.first_available_provider import MultiProvider
from skyward_core.providers.pool_spec_and_provider_choice import make_pool_spec
from skyward_core.providers.provider_call_logs_polling_and_cache import (
    AnswerCache,
    progress_listener,
    use_cached_answers,
)

AWS = sky.AWS(region="us-east-1")


class Shop:
    """Provider with given machines and prices, some of which are sold out."""

    machine, about, payer = "till", "a shop", "me"

    def __init__(self, name: str, prices: dict[str, float], sold_out: tuple[str, ...] = ()) -> None:
        self.name, self.prices, self.sold_out = name, prices, sold_out
        self.ended: list[str] = []
        self.torn_down = 0

    async def offers(self, wish: MachineRequirements) -> OfferList:
        rows = [
            Offer(provider=self.name, instance_type=kind, region="r", hourly=price, priced_at=1.0)
            for kind, price in self.prices.items()
        ]
        return OfferList(offers=rows)

    async def plan(self, spec: sky.PoolSpec) -> RentalPlan:
        found = matching_offers((await self.offers(spec.needs)).offers, spec.needs)
        if not found:
            raise UsageError(f"{self.name} has nothing that fits")
        return RentalPlan(nodes=spec.most_nodes, attempts=found, creates=[f"tills of {self.name}"])

    def within(self, regions: Any) -> Shop:
        return self

    async def create(self, spec: sky.PoolSpec, token: str) -> list[Machine]:
        for each in matching_offers((await self.offers(spec.needs)).offers, spec.needs):
            if each.instance_type not in self.sold_out:
                return [Machine(f"{each.instance_type}-{node}", node, "", "") for node in range(spec.most_nodes)]
        raise NoCapacity("sold out")

    async def describe(self, pool: str, known: list[Machine]) -> list[Machine]:
        return known

    async def terminate(self, pool: str, machines: list[Machine]) -> None:
        self.ended += [each.id for each in machines]

    async def teardown(self, pool: str) -> None:
        self.torn_down += 1

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name}


def pool_spec(*specs: sky.Spec, **options: Any) -> sky.PoolSpec:
    return make_pool_spec("train.py", *specs, **options)


def test_pool_options_become_machine_requirements() -> None:
    spec = pool_spec(
        provider=sky.AWS(), accelerator="T4:4", vcpus=8, memory_gb=32, region=["us-east-1", "us-west-2"],
        max_hourly_cost=4, allocation="spot_if_available", selection="first", nodes=2,
    )  # fmt: skip
    needs = spec.needs
    assert (str(needs.accelerator), needs.vcpus, needs.memory_gb, needs.max_hourly) == ("T4:4", 8, 32.0, 4.0)
    assert (needs.allocation, needs.selection) == ("spot-if-available", "first")
    assert spec.provider.region == ("us-east-1", "us-west-2") and spec.nodes == 2
    assert providers.provider_from_json(spec.provider.to_json()) == spec.provider


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"provider": "local", "vcpus": 4}, UsageError, "provider local has no offers to choose from by vcpus"),
        ({"provider": AWS, "region": "eu-west-1"}, UsageError, "is limited to us-east-1: eu-west-1 is not among them"),
        ({"provider": AWS, "allocation": "cheap"}, SpecError, "allocation: should be 'on-demand' or 'spot'"),
        ({"provider": AWS, "max_hourly_cost": 0}, SpecError, "max_hourly_cost: should be a number above 0"),
        ({"provider": AWS, "architecture": "sparc"}, SpecError, "architecture: should be"),
    ],
)  # fmt: skip
def test_invalid_machine_requirements_are_rejected(
    fields: dict[str, Any], kind: type[SkywardError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        pool_spec(**fields)


def test_incompatible_specs_of_one_pool_are_rejected() -> None:
    one = sky.Spec(provider=AWS, accelerator="T4")
    with pytest.raises(UsageError, match="accelerator cannot be combined with Spec values"):
        pool_spec(one, accelerator="T4")
    with pytest.raises(SpecError, match="nodes: all Spec values of a pool must have the same number of nodes"):
        pool_spec(one, sky.Spec(provider=AWS, nodes=2), nodes=3)
    with pytest.raises(UsageError, match="provider local has no offers to choose from by several specs"):
        pool_spec(one, sky.Spec(provider="local"))
    with pytest.raises(UsageError, match="one aws account, not of the default profile at AWS and work at AWS"):
        pool_spec(one, sky.Spec(provider=sky.AWS(profile="work")))
    with pytest.raises(UsageError, match=r"expected sky\.Spec"):
        pool_spec(AWS)  # type: ignore[arg-type]
    assert pool_spec(one, nodes=2).provider is AWS, "one alone is what it says"


def choose_provider(selection: str, *shops: Any, **options: Any) -> tuple[sky.PoolSpec, MultiProvider]:
    spec = pool_spec(*(sky.Spec(provider=each, **options) for each in shops), selection=selection, nodes=2)
    assert isinstance(spec.provider, MultiProvider)
    return spec, spec.provider


async def test_cheapest_selection_sorts_offers_of_all_providers() -> None:
    left, right = Shop("left", {"a": 1.0, "c": 3.0}, ("a",)), Shop("right", {"b": 2.0}, ("b",))
    spec, several = choose_provider("cheapest", left, right)
    plan = await several.plan(spec)
    assert [each.instance_type for each in plan.attempts] == ["a", "b", "c"] and plan.hourly == 2.0
    assert plan.creates == ["tills of left"]
    made = await several.create(spec, "t")
    assert [each.id for each in made] == ["c-0", "c-1"]
    right.sold_out = ()
    assert [each.id for each in await several.create(spec, "t")] == ["b-0", "b-1"], "before what costs more"
    left.sold_out, right.sold_out = ("a", "c"), ("b",)
    with pytest.raises(NoCapacity) as caught:
        await several.create(spec, "t")
    assert str(caught.value) == "spec 1 (left): sold out; spec 2 (right): sold out; spec 1 (left): sold out"


async def test_first_selection_ignores_prices_of_later_providers() -> None:
    dear, cheap = Shop("dear", {"a": 9.0}), Shop("cheap", {"b": 1.0})
    spec, several = choose_provider("first", dear, cheap)
    assert [each.instance_type for each in (await several.plan(spec)).attempts] == ["a", "b"]
    assert (await several.create(spec, "t"))[0].id == "a-0"
    spec, several = choose_provider("first", dear, cheap, max_hourly_cost=2)
    plan = await several.plan(spec)
    assert [each.instance_type for each in plan.attempts] == ["b"]
    assert plan.notes == ["spec 1 (dear): dear has nothing that fits"]
    spec, several = choose_provider("first", dear, cheap, max_hourly_cost=0.5)
    with pytest.raises(UsageError, match="dear has nothing that fits; spec 2"):
        await several.plan(spec)


async def test_each_machine_is_ended_by_its_own_provider() -> None:
    left, right = Shop("left", {"a": 1.0}, ("a",)), Shop("right", {"b": 2.0})
    spec, several = choose_provider("cheapest", left, right)
    made = await several.create(spec, "t")
    assert await several.describe("p", made) == made
    await several.terminate("p", made)
    assert (left.ended, right.ended) == ([], ["b-0", "b-1"])

    async def fails(pool: str) -> None:
        raise SkywardError("left is closed")

    left.teardown = fails  # type: ignore[method-assign]
    with pytest.raises(SkywardError, match="left is closed"):
        await several.teardown("p")
    assert right.torn_down == 1, "the others are torn down all the same"


def test_multi_provider_forwards_every_capability_of_its_providers() -> None:
    """A new capability of rented machines must be forwarded as well."""
    of_no_pool = {
        provider_settings_schema.HasSettings,
        provider_capability_protocols.NeedsPython,
        provider_capability_protocols.ChecksSettings,
        provider_capability_protocols.Offers,
        provider_capability_protocols.SellsBlocks,
        provider_capability_protocols.SizesDisk,
        provider_capability_protocols.ListsResources,
    }
    all_of_them = {
        each for each in vars(provider_capability_protocols).values() if getattr(each, "_is_protocol", False)
    } - {Protocol}
    alone = {each for each in all_of_them - of_no_pool if isinstance(AWS, each)}
    assert provider_capability_protocols.FindsMachines in alone
    assert {each for each in alone if not isinstance(MultiProvider([AWS, AWS]), each)} == set()


class Remembering(Shop):
    """Provider whose ``create`` fails with an error, although ``find`` may return machines."""

    def __init__(self, name: str, prices: dict[str, float], error: SkywardError, made: Any = ()) -> None:
        super().__init__(name, prices)
        self.error, self.made = error, made

    async def create(self, spec: sky.PoolSpec, token: str) -> list[Machine]:
        raise self.error

    async def find(self, pool: str, token: str) -> list[Machine]:
        if isinstance(self.made, SkywardError):
            raise self.made
        return list(self.made)


@pytest.mark.parametrize("error", [sky.CredentialsRefused("no key"), sky.Unreachable("no way")])
async def test_next_provider_is_tried_if_one_refuses_or_does_not_answer(error: SkywardError) -> None:
    spec, several = choose_provider("first", Remembering("left", {"a": 1.0}, error), Shop("right", {"b": 2.0}))
    heard: list[str] = []
    with progress_listener(heard.append):
        made = await several.create(spec, "t")
    assert {each.id for each in made} == {"b-0", "b-1"}

    spec, several = choose_provider("first", *(Remembering(name, {"a": 1.0}, error) for name in ("left", "right")))
    with pytest.raises(type(error), match=r"spec 1 \(left\): no .*; spec 2 \(right\): no "):
        await several.create(spec, "t")


@pytest.mark.parametrize("made", [[Machine("a-0", 0, "", "")], sky.Unreachable("nobody can tell")])
async def test_no_other_provider_is_tried_if_machines_may_exist(made: Any) -> None:
    error = sky.Unreachable("no answer")
    right = Shop("right", {"b": 2.0})
    spec, several = choose_provider("first", Remembering("left", {"a": 1.0}, error, made), right)
    with pytest.raises(sky.Unreachable, match="no answer"):
        await several.create(spec, "t")


async def test_provider_whose_plan_fails_is_skipped_and_named() -> None:
    class Closed(Shop):
        async def plan(self, spec: sky.PoolSpec) -> RentalPlan:
            raise sky.CredentialsRefused("no key")

    spec, several = choose_provider("first", Closed("left", {"a": 1.0}), Shop("right", {"b": 2.0}))
    assert {each.id for each in await several.create(spec, "t")} == {"b-0", "b-1"}
    assert any("spec 1 (left): no key" in note for note in (await several.plan(spec)).notes)
    spec, several = choose_provider("first", Closed("left", {"a": 1.0}), Shop("right", {"b": 2.0}, ("b",)))
    with pytest.raises(NoCapacity, match=r"spec 1 \(left\): no key; spec 2 \(right\): sold out"):
        await several.create(spec, "t")


# A range of nodes on hosts of one's own: as many as answer.

HOSTS = ["a", "b", "c", "d"]


@pytest.fixture
def unreachable_hosts(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Hosts that do not answer."""
    unreachable_hosts: set[str] = set()

    async def answers(self: sky.SSH, host: str, loaded_with: object) -> str:
        return "no route to it" if host in unreachable_hosts else ""

    monkeypatch.setattr(sky.SSH, "_unavailable_reason", answers)
    return unreachable_hosts


def hosts_of(nodes: Any) -> tuple[list[str], list[str]]:
    """Return the hosts of a pool and the progress messages."""
    messages: list[str] = []
    spec = PoolSpec(name="q", provider=sky.SSH(HOSTS), nodes=nodes)
    with progress_listener(messages.append):
        made = asyncio.run(spec.provider.create(spec, "0" * 16))
    assert [each.node for each in made] == list(range(len(made)))
    return [each.id for each in made], messages


def test_unreachable_hosts_are_skipped_and_named(unreachable_hosts: set[str]) -> None:
    assert hosts_of("2:3") == (["a", "b", "c"], [])
    unreachable_hosts.add("a")
    assert hosts_of("2:3") == (["b", "c", "d"], ["3 of 4 hosts answer: a: no route to it"])
    unreachable_hosts.add("c")
    assert hosts_of("2:8")[0] == ["b", "d"]
    assert hosts_of(2) == (["a", "b"], []), "a number takes the first, whoever answers"


def test_too_few_reachable_hosts_are_an_error(unreachable_hosts: set[str]) -> None:
    unreachable_hosts |= {"a", "b", "d"}
    with pytest.raises(NoCapacity, match="at least 2 nodes are needed, but only 1 of 4 hosts answer: a: no route"):
        hosts_of("2:3")
    with pytest.raises(TooFewHosts, match="5 nodes were requested, but there are only 4 hosts"):
        hosts_of("5:9")


# What a form asks a provider for while somebody types may be a minute old; what a start asks for is not.


class CountedCalls(AwsCalls):
    """Fake that answers each call with its number."""

    def __init__(self) -> None:
        super().__init__(AwsAccount())
        self.asked: list[str] = []
        self.error: Exception | None = None

    def _call(self, service: str, region: str, action: str, answered: Any, params: Any) -> dict[str, Any]:
        self.asked.append(action)
        if self.error is not None:
            raise self.error
        return {"number": len(self.asked)}


async def number(calls: AwsCalls, action: str = "describe_images", region: str = "here", **params: Any) -> int:
    return int((await calls.call("ec2", region, action, **params))["number"])


async def test_cached_answers_are_used_only_on_request_and_until_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CountedCalls()
    with use_cached_answers():
        assert [await number(calls), await number(calls)] == [1, 1]
        assert await number(calls, region="there") == 2 and await number(calls, Owners=["me"]) == 3
        assert [await number(calls, "describe_instances") for _ in range(2)] == [4, 5], "machines never"
    assert await number(calls) == 6, "a start asks anew"
    with use_cached_answers():
        assert await number(calls) == 6, "and what it was told counts from then on"
        monkeypatch.setattr(provider_calls, "CACHE_TTL", 0.0)
        assert await number(calls) == 7


async def test_errors_and_answers_of_another_session_are_not_cached() -> None:
    calls = CountedCalls()
    with use_cached_answers():
        assert await number(calls) == 1
        calls._reset_session()
        assert await number(calls) == 2
        calls.error = SkywardError("no")
        for _ in range(2):
            with pytest.raises(SkywardError):
                await number(calls, Owners=["me"])
    assert len(calls.asked) == 4


def test_answer_cache_is_bounded() -> None:
    cache, most = AnswerCache(), provider_calls.MAX_CACHED_ANSWERS
    for question in range(2 * most):
        cache.put(question, question + 1)
    with use_cached_answers():
        assert [each for each in range(2 * most) if cache.get(each)] == list(range(most, 2 * most))


# Offers: which of them a wish is tried with, and in which order.

T4 = Offer(
    provider="aws", instance_type="g4dn.12xlarge", region="us-east-1", zone="us-east-1a", accelerator="T4", count=4,
    memory_each_gb=16, vcpus=48, memory_gb=192, hourly=3.912, beside_hourly=0.02,
)  # fmt: skip


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (MachineRequirements(accelerator=Accelerator("T4", 4)), ""),
        (MachineRequirements(accelerator=Accelerator("T4", 4), vcpus=48, memory_gb=192, max_hourly=3.932), ""),
        (MachineRequirements(accelerator=Accelerator("T4", 1)), "has 4 T4"),
        (MachineRequirements(instance_type="g4dn.xlarge"), "is not g4dn.xlarge"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), vcpus=49), "has 48 vCPUs"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), memory_gb=192.5), "has 192 GB of memory"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), architecture="arm64"), "is x86_64"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), efa=True), "has no EFA"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), allocation="spot"), "is on-demand"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), regions=("eu-west-1",)), "is in us-east-1"),
        (MachineRequirements(accelerator=Accelerator("T4", 4), zones=("us-east-1b",)), "is in us-east-1a"),
        # What is billed beside the machine counts.
        (MachineRequirements(accelerator=Accelerator("T4", 4), max_hourly=3.92), "costs $3.93/h"),
    ],
)
def test_offer_mismatch_reason_names_the_missing_property(wish: MachineRequirements, why: str) -> None:
    assert mismatch_reason(T4, wish) == why


def test_offer_of_unknown_price_fails_any_price_limit() -> None:
    unknown = replace(T4, hourly=None)
    assert mismatch_reason(unknown, MachineRequirements(accelerator=Accelerator("T4", 4))) == ""
    assert "no known price" in mismatch_reason(
        unknown, MachineRequirements(accelerator=Accelerator("T4", 4), max_hourly=100.0)
    )


def test_spot_offers_come_first_if_spot_is_preferred() -> None:
    spot = replace(T4, market="spot", zone="us-east-1b", hourly=9.0)
    wish = MachineRequirements(accelerator=Accelerator("T4", 4), allocation="spot-if-available")
    assert matching_offers([T4, spot], wish) == [spot, T4]
    assert matching_offers([T4, spot], replace(wish, allocation="cheapest")) == [T4, spot]
    assert matching_offers([T4, spot], replace(wish, allocation="spot")) == [spot]
    assert matching_offers([T4, spot], replace(wish, allocation="on-demand")) == [T4]


OFFERS = st.builds(
    Offer,
    provider=st.just("aws"),
    instance_type=st.sampled_from(["a.large", "b.large"]),
    region=st.sampled_from(["r1", "r2", "r3"]),
    zone=st.sampled_from(["", "z1", "z2"]),
    market=st.sampled_from(["on-demand", "spot"]),
    vcpus=st.just(2),
    hourly=st.none() | st.floats(0.01, 10),
)
WISHES = st.builds(
    MachineRequirements,
    vcpus=st.integers(0, 3),
    regions=st.sampled_from([(), ("r1",), ("r2", "r1")]),
    max_hourly=st.none() | st.floats(0.01, 10),
    allocation=st.sampled_from(ALLOCATIONS),
)


@given(st.lists(OFFERS, max_size=12), WISHES, st.randoms())
def test_offer_order_is_independent_of_input_order(
    offers: list[Offer], wish: MachineRequirements, dice: object
) -> None:
    """The order contains no rejected offer and no dearer offer before a cheaper one."""
    order = matching_offers(offers, wish)
    dice.shuffle(offers)  # type: ignore[attr-defined]
    assert matching_offers(offers, wish) == order
    assert sorted(map(repr, order)) == sorted(repr(each) for each in offers if not mismatch_reason(each, wish))
    for market in ("on-demand", "spot"):
        prices = [each.billed_hourly for each in order if each.market == market]
        known = [price for price in prices if price is not None]
        assert known == sorted(known) and prices[: len(known)] == known
