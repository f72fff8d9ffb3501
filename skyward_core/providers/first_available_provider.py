"""Composite of several providers, of which the first one with capacity rents a pool's machines.

Each machine carries the index of its provider, so that later operations go to that provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

from skyward_core.model import provider_capability_protocols as capabilities
from skyward_core.model.errors import (
    NoCapacity,
    PoolError,
    SkywardError,
    UsageError,
    combine_errors,
    error_message,
)
from skyward_core.model.machines_checks_and_gpu_use import Check, Machine, OrderedHardware
from skyward_core.model.offers_and_rental_plans import MachineRequirements, Offer, RentalPlan, Selection, offer_sort_key
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.provider_call_logs_polling_and_cache import current_listener, progress_listener

if TYPE_CHECKING:
    from skyward_core.transport.transport import Transport

PROVIDER_INDEX = "of"  # key in ``Machine.extra`` for the index of the machine's provider


class MultiProvider:
    """Rents all machines of a pool from the first of several providers that has them.

    Args:
        providers: Candidate providers; each has offers.
        wishes: Machine requirements of each provider; empty if the pool exists already.
        selection: "cheapest" sorts the offers of all providers; "first" prefers earlier providers.

    Raises:
        UsageError: If a provider has no offers, or if the providers use different accounts of the same service.
    """

    about: ClassVar[str] = "first of several providers that has the machines"
    machine: ClassVar[str] = "machine"
    rents: ClassVar[bool] = True

    def __init__(
        self, providers: Sequence[Any], wishes: Sequence[MachineRequirements] = (), selection: Selection = "cheapest"
    ) -> None:
        self._providers = list(providers)
        self._requests = list(wishes)
        self._selection = selection
        payers: dict[str, str] = {}
        for each in self._providers:
            if not isinstance(each, capabilities.Offers):
                raise UsageError(f"provider {each.name} has no offers to choose from: request it alone")
            if payers.setdefault(each.name, each.payer) != each.payer:
                raise UsageError(
                    f"a pool's machines must be of one {each.name} account, not of {payers[each.name]} and {each.payer}"
                )

    @property
    def name(self) -> str:
        """Names of the candidate providers."""
        return " or ".join(dict.fromkeys(each.name for each in self._providers))

    # -- renting -----------------------------------------------------------------------------------------

    async def plan(self, spec: PoolSpec) -> RentalPlan:
        """Return a plan that merges the offers of all providers, in the order of attempts; creates nothing.

        Args:
            spec: Everything that the user requested. Each provider uses its own machine requirements.

        Raises:
            UsageError: If no provider has a fitting offer.
        """
        plans, order, notes, _ = await self._plan_all(spec)
        first = plans[order[0][0]]
        whole = order[0][1] == first.attempts[0]
        return replace(
            first, attempts=[offer for _, offer in order], notes=notes, requests=first.requests if whole else ()
        )

    async def warnings(self, spec: PoolSpec) -> list[str]:
        """Return the warnings of each provider before a launch.

        Args:
            spec: Everything that the user requested.
        """
        warnings = [
            await each.provider.warnings(each)
            for each in self._provider_specs(spec)
            if isinstance(each.provider, capabilities.Warns)
        ]
        return list(dict.fromkeys(text for texts in warnings for text in texts))

    async def _plan_all(self, spec: PoolSpec) -> tuple[
        dict[int, RentalPlan], list[tuple[int, Offer]], list[str], list[tuple[str, SkywardError]]
    ]:  # fmt: skip
        """Return the plan of each provider by its index, the sorted offers, notes, and the errors of providers without
        a plan.
        """
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
        """Rent all machines from the first provider whose offers suffice.

        Raises:
            NoCapacity: If no provider has capacity. The message has each provider's reason.
            CredentialsRefused, Unreachable: If all providers fail for this reason.
            SkywardError: If a problem occurs that no other offer would avoid.
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
                    # stop here: this provider may have created machines, and machines of the next provider would cost
                    # money in addition
                    raise
                reasons.append((self._label(index), error))
            else:
                return self._tag_machines(index, made)
        raise combine_errors(reasons)

    @staticmethod
    async def _may_have_machines(index: int, spec: PoolSpec, token: str) -> bool:
        """Check whether a provider that failed may still have created machines."""
        if not isinstance(spec.provider, capabilities.FindsMachines):
            return True
        try:
            return any(each.state != "gone" for each in await spec.provider.find(spec.name, token))
        except SkywardError:
            return True

    def _provider_specs(self, spec: PoolSpec) -> list[PoolSpec]:
        """Return the specification for each provider."""
        return [
            replace(spec, provider=each, accelerator=requirements.accelerator, wish=requirements)
            for each, requirements in zip(self._providers, self._requests, strict=True)
        ]

    def _labeled_listener(self, index: int, before: str) -> Callable[[str], None]:
        """Return a progress listener that adds the provider's label and the previous provider's error."""
        listener = current_listener()
        return lambda text: listener(f"{before}{self._label(index)}: {text}")

    def _label(self, index: int) -> str:
        return f"spec {index + 1} ({self._providers[index].name})"

    @staticmethod
    def _tag_machines(index: int, machines: Sequence[Machine]) -> list[Machine]:
        return [replace(each, extra=each.extra | {PROVIDER_INDEX: index}) for each in machines]

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Replace a lost machine with another one of the same provider.

        Raises:
            NoCapacity: If the provider has no capacity now.
        """
        index = former[-1].extra[PROVIDER_INDEX]
        made = await self._providers[index].replace(pool, token, node, machines, former)
        return self._tag_machines(index, [made])[0]

    # -- existing machines ------------------------------------------------------------------------------

    async def find(self, pool: str, token: str) -> list[Machine]:
        """Return all machines that any of the providers created for a pool, each once.

        Args:
            pool: Name of the pool.
            token: Token that was passed to ``create``.

        Raises:
            SkywardError: If a provider cannot answer now.
        """
        found: dict[str, Machine] = {}
        for index, each in enumerate(self._providers):
            if isinstance(each, capabilities.FindsMachines):
                for machine in self._tag_machines(index, await each.find(pool, token)):
                    found.setdefault(machine.id, machine)
        return list(found.values())

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        """Return the pool's machines with the states that their providers report.

        Raises:
            SkywardError: If a provider cannot answer now.
        """
        return await self._update_machines(known, lambda provider, mine: provider.describe(pool, mine))

    async def _update_machines(
        self, machines: Sequence[Machine], update: Callable[[Any, list[Machine]], Awaitable[list[Machine]]]
    ) -> list[Machine]:
        """Return machines as their providers update them, in the given order."""
        seen: dict[str, Machine] = {}
        for index, mine in self._by_provider(machines):
            updated = await update(self._providers[index], mine)
            seen |= {each.id: each for each in self._tag_machines(index, updated)}
        return [seen[each.id] for each in machines if each.id in seen]

    async def why_not_now(self) -> str:
        """Return why some machines cannot be terminated at once; "" if all can."""
        for each in self._providers:
            reason = (
                await each.why_not_now()
                if isinstance(each, capabilities.EndsNow)
                else f"provider {each.name} cannot do this"
            )
            if reason:
                return str(reason)
        return ""

    async def terminate_now(self, pool: str, machines: Sequence[Machine]) -> None:
        """Terminate machines at once, each by its own provider.

        Args:
            pool: Name of the pool.
            machines: Machines to terminate.

        Raises:
            SkywardError: If a provider did not accept the request.
        """
        await _run_all(self._providers[index].terminate_now(pool, mine) for index, mine in self._by_provider(machines))

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        """Terminate each machine by its own provider.

        Raises:
            SkywardError: If a provider did not accept the request; the requests to the others were sent.
        """
        await _run_all(self._providers[index].terminate(pool, mine) for index, mine in self._by_provider(machines))

    def paid_for(self, machine: Machine) -> OrderedHardware | None:
        """Return the hardware that was ordered for a machine; None if its provider does not know.

        Args:
            machine: The machine.
        """
        provider = self._providers[machine.extra[PROVIDER_INDEX]]
        return provider.paid_for(machine) if isinstance(provider, capabilities.OrdersHardware) else None

    async def quiet(self, pool: str, machines: Sequence[Machine]) -> list[Machine]:
        """Stop what runs on machines without terminating them, if their provider supports that.

        Args:
            pool: Name of the pool.
            machines: The machines to stop work on.

        Returns:
            The machines, with their retained results.
        """

        async def stop(provider: Any, mine: list[Machine]) -> list[Machine]:
            if isinstance(provider, capabilities.StopsRuns):
                return await provider.quiet(pool, mine)
            reason = {"why": f"provider {provider.name} cannot fetch retained results"}
            return [replace(each, state="unreachable", extra=each.extra | reason) for each in mine]

        return await self._update_machines(machines, stop)

    async def date(self, pool: str, machines: Sequence[Machine], at: float) -> None:
        """Tag machines with the time at which they end, if their provider supports that.

        Args:
            pool: Name of the pool.
            machines: The machines to tag.
            at: Unix time.

        Raises:
            SkywardError: If a machine cannot be tagged.
        """
        for index, mine in self._by_provider(machines):
            if isinstance(provider := self._providers[index], capabilities.SetsExpiryDates):
                await provider.date(pool, mine, at)

    async def teardown(self, pool: str) -> None:
        """Remove the resources other than machines that any provider created.

        Raises:
            SkywardError: If a provider could not remove something. The message names the rest.
        """
        await _run_all(each.teardown(pool) for each in self._providers)

    def _by_provider(self, machines: Sequence[Machine]) -> Iterator[tuple[int, list[Machine]]]:
        for index in range(len(self._providers)):
            if mine := [each for each in machines if each.extra.get(PROVIDER_INDEX, 0) == index]:
                yield index, mine

    async def check(self) -> list[Check]:
        """Return the checks of all providers."""
        return [line for each in self._providers for line in await each.check()]

    @contextmanager
    def warm(self, spec: PoolSpec) -> Iterator[None]:
        """Start the slow preparations of all providers, for the duration of a ``with`` block."""
        with ExitStack() as stack:
            for each in self._providers:
                stack.enter_context(each.warm(spec))
            yield

    def transport(self, pool: str, machine: Machine) -> Transport:
        """Return the transport to a machine, from its provider."""
        way: Transport = self._providers[machine.extra.get(PROVIDER_INDEX, 0)].transport(pool, machine)
        return way

    def notices(self, machine: Machine) -> str:
        """Return the program that reports preemption notices on a machine; "" if its provider has none."""
        return capabilities.notice_program(self._providers[machine.extra.get(PROVIDER_INDEX, 0)], machine)

    def to_json(self) -> dict[str, Any]:
        return {"provider": "several", "of": [each.to_json() for each in self._providers]}


async def _run_all(work: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines one after the other. Run all of them even if some fail, then raise the first error."""
    first: BaseException | None = None
    for each in work:
        try:
            await each
        except Exception as error:  # noqa: BLE001  raised after the others have run
            first = first or error
    if first is not None:
        raise first
