"""Machines of whichever of several providers has them: one provider to a pool, which knows which machine is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model.errors import (
    NoCapacity,
    PoolError,
    SkywardError,
    UsageError,
    combine_errors,
    error_message,
)
from skyward_core.model.machines import Check, Machine
from skyward_core.model.offers import MachineRequirements, Offer, RentalPlan, Selection, offer_sort_key
from skyward_core.model.provider_capabilities import (
    Dates,
    EndsNow,
    Finds,
    Offers,
    Quiets,
    Sells,
    Warns,
    notice_program,
)
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.provider_calls import current_listener, progress_listener

if TYPE_CHECKING:
    from skyward_core.model.machines import OrderedHardware
    from skyward_core.transport.transport import Transport

PROVIDER_INDEX = "of"  # in what is kept of a machine: which of the providers it is of, by number


class MultiProvider:
    """See the module.

    Args:
        providers: that may have the machines; each tells its offers.
        wishes: what a machine of each has to be; nothing where the pool exists already.
        selection: "cheapest" of all first, or all of the "first" before any of the second.

    Raises:
        UsageError: they do not go together.
    """

    about: ClassVar[str] = "several providers, of which one has the machines"
    machine: ClassVar[str] = "machine"
    rents: ClassVar[bool] = True

    def __init__(
        self,
        providers: Sequence[Any],
        wishes: Sequence[MachineRequirements] = (),
        selection: Selection = "cheapest",
    ) -> None:
        self._providers = list(providers)
        self._requests = list(wishes)
        self._selection = selection
        payers: dict[str, str] = {}
        for each in self._providers:
            if not isinstance(each, Offers):
                raise UsageError(f"provider {each.name} tells no offers, and cannot be one of several: have it alone")
            if payers.setdefault(each.name, each.payer) != each.payer:
                raise UsageError(
                    f"the machines of a pool are of one account of {each.name}: {payers[each.name]}, or {each.payer}"
                )

    @property
    def name(self) -> str:
        """How people name it: by those that may have the machines."""
        return " or ".join(dict.fromkeys(each.name for each in self._providers))

    # -- having machines ---------------------------------------------------------------------------------

    async def plan(self, spec: PoolSpec) -> RentalPlan:
        """What would be tried, of all providers, in its order; nothing is made.

        Args:
            spec: all that was asked for; what a machine has to be, each provider has its own.

        Raises:
            UsageError: nothing fits at any of them.
        """
        plans, order, notes, _ = await self._plan_all(spec)
        first = plans[order[0][0]]
        whole = order[0][1] == first.attempts[0]
        return replace(
            first,
            attempts=[offer for _, offer in order],
            notes=notes,
            requests=first.requests if whole else (),
        )

    async def warnings(self, spec: PoolSpec) -> list[str]:
        """What a person should know before a launch, of each of them.

        Args:
            spec: all that was asked for.
        """
        told = [
            await each.provider.warnings(each)
            for each in self._provider_specs(spec)
            if isinstance(each.provider, Warns)
        ]
        return list(dict.fromkeys(said for some in told for said in some))

    async def _plan_all(self, spec: PoolSpec) -> tuple[
        dict[int, RentalPlan], list[tuple[int, Offer]], list[str], list[tuple[str, SkywardError]]
    ]:  # fmt: skip
        """The plan of each provider by its number, the offers of all in order, what is to be known of it, and why some
        have none."""
        asked = [each.provider.plan(each) for each in self._provider_specs(spec)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        plans: dict[int, RentalPlan] = {}
        notes: list[str] = []
        reasons: list[tuple[str, SkywardError]] = []
        for index, plan in enumerate(found):
            if isinstance(plan, RentalPlan):
                plans[index] = plan
                notes += plan.notes
            elif isinstance(plan, UsageError | PoolError):
                reasons.append((self._label(index), plan))
                notes.append(f"{self._label(index)}: {error_message(plan)}")
            else:
                raise plan
        if not plans:
            raise combine_errors(reasons)

        def key(item: tuple[int, Offer]) -> tuple[Any, ...]:
            index, offer = item
            best = offer_sort_key(offer, self._requests[index])
            return (index, *best) if self._selection == "first" else (*best[:4], index, *best[4:])

        tried = [(index, offer) for index, plan in plans.items() for offer in plan.attempts]
        return plans, sorted(tried, key=key), list(dict.fromkeys(notes)), reasons

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Rent machines, all of one provider: of the first whose offer gives them all.

        Raises:
            NoCapacity: none has; says why of each.
            CredentialsRefused, Unreachable: that is why of all.
            SkywardError: something is amiss that no other place would change.
        """
        _, order, _, reasons = await self._plan_all(spec)
        for index, group in groupby(order, key=lambda item: item[0]):
            own = self._provider_specs(spec)[index]
            own = replace(own, wish=replace(own.needs, only=tuple(offer for _, offer in group)))
            before = "".join(f"{name}: {error_message(reason)}; " for name, reason in reasons[-1:])
            try:
                with progress_listener(self._labeled_listener(index, before)):
                    made = await own.provider.create(own, token)
            except PoolError as error:
                if not isinstance(error, NoCapacity) and await self._may_have_machines(index, own, token):
                    raise  # those of another one would be paid beside them
                reasons.append((self._label(index), error))
            else:
                return self._tag_machines(index, made)
        raise combine_errors(reasons)

    @staticmethod
    async def _may_have_machines(index: int, spec: PoolSpec, token: str) -> bool:
        """Whether a provider that failed may have made machines all the same."""
        if not isinstance(spec.provider, Finds):
            return True
        try:
            return bool(await spec.provider.find(spec.name, token))
        except SkywardError:
            return True

    def _provider_specs(self, spec: PoolSpec) -> list[PoolSpec]:
        """What each of the providers is asked for."""
        return [
            replace(spec, provider=each, accelerator=requirements.accelerator, wish=requirements)
            for each, requirements in zip(self._providers, self._requests, strict=True)
        ]

    def _labeled_listener(self, index: int, before: str) -> Callable[[str], None]:
        """What passes on what a provider says it is at, with its name and what became of the one before."""
        say = current_listener()
        return lambda text: say(f"{before}{self._label(index)}: {text}")

    def _label(self, index: int) -> str:
        return f"spec {index + 1} ({self._providers[index].name})"

    @staticmethod
    def _tag_machines(index: int, machines: Sequence[Machine]) -> list[Machine]:
        return [replace(each, extra=each.extra | {PROVIDER_INDEX: index}) for each in machines]

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Another machine of the provider that the lost one was of.

        Raises:
            NoCapacity: it has none now.
        """
        index = former[-1].extra[PROVIDER_INDEX]
        made = await self._providers[index].replace(pool, token, node, machines, former)
        return self._tag_machines(index, [made])[0]

    # -- what is there -----------------------------------------------------------------------------------

    async def find(self, pool: str, token: str) -> list[Machine]:
        """All machines of a pool that any of the providers made, each once.

        Args:
            pool: the pool's name.
            token: as ``create`` was given it.

        Raises:
            SkywardError: one of them cannot tell now.
        """
        found: dict[str, Machine] = {}
        for index, each in enumerate(self._providers):
            if isinstance(each, Finds):
                for machine in self._tag_machines(index, await each.find(pool, token)):
                    found.setdefault(machine.id, machine)
        return list(found.values())

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """The pool's machines with their state, each by the word of its own provider.

        Raises:
            SkywardError: one of them cannot be asked now.
        """
        seen: dict[str, Machine] = {}
        for index, mine in self._by_provider(known):
            told = await self._providers[index].describe(pool, mine)
            seen |= {each.id: each for each in self._tag_machines(index, told)}
        return [seen[each.id] for each in known if each.id in seen]

    async def why_not_now(self) -> str:
        """Why machines of one of them cannot be ended at once, in words; "" where all can."""
        for each in self._providers:
            reason = await each.why_not_now() if isinstance(each, EndsNow) else f"{each.name} cannot do that"
            if reason:
                return str(reason)
        return ""

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have machines ended at once, each by its own provider.

        Args:
            pool: the pool's name.
            machines: those that are meant.

        Raises:
            SkywardError: one of them was not told.
        """
        parts = self._by_provider(machines)
        await _run_all(self._providers[index].terminate_now(pool, mine) for index, mine in parts)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Have each machine's provider end it.

        Raises:
            SkywardError: one of them was not told; the others were.
        """
        await _run_all(self._providers[index].terminate(pool, mine) for index, mine in self._by_provider(machines))

    def paid_for(self, machine: Machine) -> OrderedHardware | None:
        """What was bought of a machine, by its own provider's word.

        Args:
            machine: it.
        """
        provider = self._providers[machine.extra[PROVIDER_INDEX]]
        return provider.paid_for(machine) if isinstance(provider, Sells) else None

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """End what runs on machines, which stay, where their provider can; gives them, with what lies there.

        Args:
            pool: the pool's name.
            machines: those that are meant.
        """
        seen: dict[str, Machine] = {}
        for index, mine in self._by_provider(machines):
            provider = self._providers[index]
            if isinstance(provider, Quiets):
                told = await provider.quiet(pool, mine)
            else:
                reason = {"why": f"provider {provider.name} gives nothing back"}
                told = [replace(each, state="unreachable", extra=each.extra | reason) for each in mine]
            seen |= {each.id: each for each in self._tag_machines(index, told)}
        return [seen[each.id] for each in machines if each.id in seen]

    async def date(self, pool: str, machines: Sequence[Machine], at: float) -> None:
        """Have machines say when they end, where their provider can.

        Args:
            pool: the pool's name.
            machines: those that are meant.
            at: Unix time.

        Raises:
            SkywardError: it could not be said.
        """
        for index, mine in self._by_provider(machines):
            if isinstance(provider := self._providers[index], Dates):
                await provider.date(pool, mine, at)

    async def teardown(self, pool: str) -> None:
        """Remove what any of them made beside machines.

        Raises:
            SkywardError: one of them left something; says what.
        """
        await _run_all(each.teardown(pool) for each in self._providers)

    def _by_provider(self, machines: Sequence[Machine]) -> Iterator[tuple[int, list[Machine]]]:
        for index in range(len(self._providers)):
            if mine := [each for each in machines if each.extra.get(PROVIDER_INDEX, 0) == index]:
                yield index, mine

    async def check(self) -> list[Check]:
        """What each of them says."""
        return [line for each in self._providers for line in await each.check()]

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Begin what each of them can begin."""
        with ExitStack() as stack:
            for each in self._providers:
                stack.enter_context(each.warm(spec))
            yield

    def transport(self, pool: str, machine: Machine) -> Transport:
        """The way to one machine, as its provider has it."""
        way: Transport = self._providers[machine.extra.get(PROVIDER_INDEX, 0)].transport(pool, machine)
        return way

    def notices(self, machine: Machine) -> str:
        """What says on a machine that it is about to be taken back, where its provider has that."""
        return notice_program(self._providers[machine.extra.get(PROVIDER_INDEX, 0)], machine)

    def to_json(self) -> dict[str, Any]:
        return {"provider": "several", "of": [each.to_json() for each in self._providers]}


async def _run_all(work: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Do all, one by one, whatever becomes of each; the first error is raised when all were tried."""
    first: BaseException | None = None
    for each in work:
        try:
            await each
        except Exception as error:  # noqa: BLE001  raised below
            first = first or error
    if first is not None:
        raise first
