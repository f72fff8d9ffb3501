"""Compute."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from skyward_core.api.active_pool import push_pool, remove_pool
from skyward_core.api.notebook_display import StartupProgress, default_pool_name, is_notebook
from skyward_core.api.older_api_methods import DeprecatedArguments, translate_arguments
from skyward_core.api.operators import PoolOperations, print_safely, run_in_thread, tear_down
from skyward_core.model.errors import Cancelled, Hint, LedgerError, PoolError, TeardownError, UsageError
from skyward_core.model.older_api_arguments import apply_rules, check_unknown_arguments
from skyward_core.model.provider_capabilities import RunsHere, ServedByAnother, costs_money, hourly_price
from skyward_core.model.specs import Image, Nodes, Options, Spec, Worker
from skyward_core.runtime.instance_info import refuse_pool_while_loading
from skyward_core.store import debug_log, state_folder
from skyward_core.tasks import script_loader
from skyward_core.tasks.client_interpreter import reject_pool_in_child
from skyward_core.transport.background_loop import submit

if TYPE_CHECKING:
    from skyward_core.api.attach_and_results import Attached
    from skyward_core.model.offers import RentalPlan
    from skyward_core.model.specs import PoolSpec
    from skyward_core.model.type_aliases import AcceleratorLike, ProviderLike
    from skyward_core.plugins.plugin import Plugin
    from skyward_core.pool.pool import Pool
    from skyward_core.store.ledger_rows import Receipt
    from skyward_core.views.events import Event


class Compute(PoolOperations):
    """A pool that is up inside the ``with`` block and gone after it.

        with sky.Compute(provider=sky.Local(), nodes=4) as compute:
            total = sum(part() @ compute)

    Safe to use from any thread. Leaving the block tears the pool down and verifies it, also when an exception or
    ctrl-c leaves it; afterwards ``receipt`` is the proof. Asynchronous code writes ``async with``, and awaits calls:
    ``await part().on(compute)``.

        with sky.Compute(
            sky.Spec(provider=sky.AWS(region="us-east-1"), accelerator="A100:8", max_hourly_cost=30),
            sky.Spec(provider=sky.AWS(region="us-west-2"), accelerator="H100:8"),
            selection="first",
        ) as compute:
            ...

    Args:
        *specs: ways to have the machines, each with its provider, accelerator and what else machines have to be; none
            where that is said here.
        provider: where machines come from; ``Local`` when None.
        nodes: how many machines; ``Nodes(min=2, max=8)``, or "2:8", for as many as can be had and at least so many;
            when None one, or as many as the provider has hosts.
        accelerator: what each node needs, as ``sky.accelerators`` makes it or as a string ("A100:8"); None for nothing.
        vcpus: processor threads that each machine has at least; as the next five only of providers with offers.
        memory_gb: memory in GB that each has at least.
        architecture: "x86_64" or "arm64".
        region: where; several are a list.
        max_hourly_cost: dollars that an hour of one machine may cost, with disk and address.
        disk_gb: size of each machine's disk in GB.
        allocation: "on-demand", "spot", "spot-if-available" or "cheapest" of both; on demand when None.
        selection: "cheapest" offer first, or those of the "first" spec and region before all others; "cheapest" when
            None.
        image: what the nodes' environment holds; an ``Image()`` when None.
        plugins: frameworks to set up, in order of entry.
        worker: how each node runs what it is given; a ``Worker()`` when None.
        options: everything else; ``Options()`` when None.
        name: The pool's name; made up if None. Alone, or with only ``options`` beside it, it names the table
            ``[pools.NAME]`` of ``skyward.toml``, which says all else.
        ttl: as of ``Options``, for either to say; 0 for no limit.
        **older: what older generations take besides (``older_arguments.py`` lists it): heeded, said to go unheeded, or
            refused in words.

    Attributes:
        spec: all that was asked for, checked.
        plugins: frameworks that are set up, in order of entry.
        receipt: the proof that nothing is left; None until the pool is torn down.

    Raises:
        UsageError: what was asked for makes no sense; or ``SKYWARD_LOG`` names no level (on entering).
        PoolExistsError: the name is taken.
        PoolError: the pool could not come up (on entering).
        TeardownError: something may still run (on leaving).
    """

    def __init__(
        self,
        *specs: Spec,
        provider: ProviderLike | None = None,
        nodes: int | Nodes | str | None = None,
        accelerator: AcceleratorLike | None = None,
        vcpus: float | None = None,
        memory_gb: float | None = None,
        architecture: str | None = None,
        region: str | Sequence[str] | None = None,
        max_hourly_cost: float | None = None,
        disk_gb: int | None = None,
        allocation: str | None = None,
        selection: str | None = None,
        image: Image | None = None,
        plugins: Sequence[Plugin] = (),
        worker: Worker | None = None,
        options: Options | None = None,
        name: str | None = None,
        ttl: float | None = None,
        **older: Unpack[DeprecatedArguments],
    ) -> None:
        from skyward_core.providers.pool_planning import check_types, machine_alternatives, make_pool_spec

        check_types(specs, options)

        if name is not None and not specs and not older and not plugins:
            said = (provider, nodes, accelerator, vcpus, memory_gb, architecture, region, max_hourly_cost, disk_gb,
                    allocation, selection, image, worker, ttl)  # fmt: skip
            if all(each is None for each in said):
                from skyward_core.api.pool_from_settings import named_pool_arguments

                table = named_pool_arguments(name)
                if options is not None:
                    if "options" in table:
                        raise UsageError(f"options= beside [pools.{name}] of skyward.toml, which says them")
                    table["options"] = options
                self.__init__(**table)  # type: ignore[misc]  # the same pool, said in full
                return
        words = translate_arguments(older, Compute.__init__.__kwdefaults__ or ()) if older else {}
        machines = {
            "provider": provider, "accelerator": accelerator, "vcpus": words.pop("vcpus", vcpus),
            "memory_gb": memory_gb, "architecture": architecture, "region": region,
            "max_hourly_cost": max_hourly_cost, "disk_gb": disk_gb,
        }  # fmt: skip
        if "worker" in words:
            worker = words.pop("worker")
        if words:
            options = replace(options or Options(), **words)
        ways, self._startup_notes = machine_alternatives(specs, machines), list[str]()
        if state_folder.provider_override or any(isinstance(each.provider, ServedByAnother) for each in ways):
            from skyward_core.providers.pool_planning import resolve_alternatives

            ways = [replace(each, allocation=each.allocation or allocation) for each in ways]
            ways, self._startup_notes = resolve_alternatives(ways, state_folder.provider_override)
            allocation = None
            if len(ways) == 1 and not ways[0].chooses:  # who serves has what it has: there is no choice
                selection, options = None, options and replace(options, selection=None)
        if state_folder.nodes_override is not None:
            ways, nodes = [replace(each, nodes=None) for each in ways], state_folder.nodes_override
        self.spec = make_pool_spec(
            default_pool_name(),
            *ways,
            name=name,
            nodes=nodes,
            image=image,
            plugins=plugins,
            worker=worker,
            options=options,
            allocation=allocation,
            selection=selection,
            ttl=ttl,
        )
        if "skyward" in sys.modules and isinstance(self.spec.provider, RunsHere):
            self._add_shared_plugin()
        super().__init__()
        self.plugins = self.spec.plugins
        self.receipt: Receipt | None = None
        self._stack = ExitStack()
        self._startup_future: Future[None] | None = None
        self._is_startup_cancelled = False
        self._startup_progress = StartupProgress() if self.spec.options.console and is_notebook() else None

    def _add_shared_plugin(self) -> None:
        """Add the plugin that older generations have no need of."""
        from skyward_core.api.shared_state import uses_deprecated_names
        from skyward_core.plugins import shared

        has = any(each.name == shared.name for each in self.spec.plugins)
        if self.spec.options.cluster and not has and uses_deprecated_names():
            self.spec = replace(self.spec, plugins=(*self.spec.plugins, shared()))
            self._startup_notes.append(
                "plugins=[sky.plugins.shared()] is added, for the script has sky.dict or its like"
            )

    @classmethod
    def attached(cls, ref: str, **older: Any) -> Attached:
        """Come to a pool that is up, by the newest generation's word: ``sky.attach(ref)``.

        Args:
            ref: the pool's name.
            **older: what it takes besides there: said to go unheeded, or refused in words.

        Raises:
            PoolError: there is no such pool; and as ``sky.attach``.
        """
        from skyward_core.api.attach_and_results import attach
        from skyward_core.api.older_api_methods import ATTACHED_RULES

        check_unknown_arguments("sky.Compute.attached", older, ["ref", *ATTACHED_RULES])
        apply_rules("sky.Compute.attached", ATTACHED_RULES, older)
        return attach(ref)

    def _repr_html_(self) -> str:
        """How the pool is now, as a notebook shows it."""
        from skyward_core.api.notebook_display import pool_html, unseen_html

        if self._pool is not None:
            return pool_html(self._current_view())
        return unseen_html("pool", self.name, f"gone: {self.receipt}" if self.receipt else "not up")

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.spec.name

    def plan(self) -> RentalPlan:
        """What would be rented: attempts in their order, with prices, and what would be made. Nothing is made by it.

        ``print(compute.plan())`` shows it.

        Raises:
            UsageError: nothing that can be had is what was asked for; says what comes nearest.
        """
        from skyward_core.providers.pool_planning import make_plan

        return make_plan(self.spec)

    # -- life --------------------------------------------------------------------------------------------

    def __enter__(self) -> Compute:
        self._check_not_open()
        try:
            self._start()
            self._enter_plugins()
        except BaseException:
            self._abort_startup()
            raise
        return self

    async def __aenter__(self) -> Compute:
        self._check_not_open()
        try:
            await run_in_thread(self._start, cancel=self._cancel_startup)
            self._enter_plugins()  # on this thread: what they set up may be its own
        except BaseException:
            await run_in_thread(self._abort_startup)
            raise
        return self

    def _check_not_open(self) -> None:
        """Whose block is open stays as it is."""
        if self._pool is not None:
            raise PoolError(f"pool {self.name} is up already: use it in the block that is open, or make another")

    def _start(self) -> None:
        if script_loader.loading:
            raise script_loader.PoolInScript
        refuse_pool_while_loading()
        reject_pool_in_child()
        for said in self._startup_notes:
            print_safely(f"pool {self.name}: {said}")
        with self.spec.provider.warm(self.spec):
            # Imported now, and on this thread: it takes about as long as what the provider has begun meanwhile
            # on the other one.
            from skyward_core.api.rank_output_printer import ScriptConsole
            from skyward_core.pool import pool  # noqa: F401

            coming = self._startup_future = submit(self._start_pool())
            if self._is_startup_cancelled:
                coming.cancel()
            from skyward_core.tasks import function_pickling  # noqa: F401  what the first call needs, while the nodes come up

            if self._startup_progress is not None:
                self._startup_progress.wait(coming)
            coming.result()
        if self.spec.options.console and sys.stdout is not None:
            self._console = ScriptConsole(self.pool.news)
            self._stack.callback(self._console.close)

    def _enter_plugins(self) -> None:
        from skyward_core.plugins.plugin import enter_client

        self._stack.enter_context(enter_client(self.spec.plugins, self))
        push_pool(self)

    def _cancel_startup(self) -> None:
        self._is_startup_cancelled = True
        if self._startup_future is not None:
            self._startup_future.cancel()

    def _abort_startup(self) -> None:
        self._cancel_startup()
        # A ctrl-c may have come at any line, even before we knew of the work that had begun.
        if submit(self._has_pool()).result():
            try:
                self._tear_down()
            finally:
                self._stack.close()

    async def _start_pool(self) -> None:
        from skyward_core.pool.pool import Pool
        from skyward_core.store.ledger import Ledger
        from skyward_core.store.state_folder import main_script, unusable_reason, working_folder

        if said := debug_log.start_logging():
            print_safely(said)
        script = main_script()
        if script and unusable_reason(script.parent) and not isinstance(self.spec.provider, RunsHere):
            from skyward_core.tasks.script_inspection import check_script_folder  # hardly any script lies so

            check_script_folder(script)
        self._pool = await Pool.register(self.spec, Ledger(), working_folder())
        if self.spec.options.console and (news := self._pool.view.detail):
            print_safely(f"pool {self.name}: {news}")
        if (shown := self._startup_progress) is not None:
            shown.follow(self._pool.view, self._pool.news)
        stop: Callable[[], None] | None = None
        if costs_money(self.spec.provider):
            stop = print_rental_notice(self.spec, self._pool)
        try:
            await self._pool.start(self.spec)
        except Cancelled:
            if not self._is_startup_cancelled:
                raise
        finally:
            if shown is not None:
                shown.stop()
            if stop is not None:
                stop()

    async def _has_pool(self) -> bool:
        return self._pool is not None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forked:
            return  # the pool is the parent's, and so is its end
        remove_pool(self)
        try:
            pool = self.pool
            receipt = self._tear_down()
        finally:
            self._stack.close()
        self._report_teardown(pool, receipt, error)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forked:
            return
        remove_pool(self)
        try:
            pool = self.pool
            receipt = await run_in_thread(self._tear_down, cancel=self._print_teardown_notice)
        finally:
            self._stack.close()
        self._report_teardown(pool, receipt, error)

    def _report_teardown(self, pool: Pool, receipt: Receipt, error: BaseException | None) -> None:
        if receipt.ok:
            if receipt.kept:
                self._print_receipt(pool, f"pool {self.name}: {receipt}; sky.results(run) fetches them")
            elif costs_money(self.spec.provider):
                self._print_receipt(pool, f"pool {self.name} is down: {receipt}")
            return
        said = f"pool {self.name}: {receipt}"
        if receipt.unaccounted:
            failure = TeardownError(said, hint=Hint("down", self.name))
        else:
            failure = TeardownError(f"{said}; a look at the pools writes it down once that works", hint=Hint("list"))
        if error is None:
            raise failure
        self._print_receipt(pool, str(failure))

    @staticmethod
    def _print_receipt(pool: Pool, text: str) -> None:
        """Print a receipt; the next list of pools shows it if that fails, or if this process dies before."""
        with suppress(LedgerError):
            pool.ledger.save_receipt_text(pool.row.token, text)
        if print_safely(text):
            with suppress(LedgerError):
                pool.ledger.mark_receipts_printed([pool.row.token])

    def _print_teardown_notice(self) -> None:
        print_safely(f"tearing down pool {self.name}; ctrl-c again leaves it to end by itself")

    def _tear_down(self) -> Receipt:
        """Tear down, whatever happens meanwhile: a ctrl-c or a signal here must not leave half a teardown."""
        pool = self.pool
        interrupted: KeyboardInterrupt | SystemExit | None = None
        try:
            self._close_connections()
        except (KeyboardInterrupt, SystemExit) as again:
            interrupted = again
        self._pool = None  # an ended Compute must not keep the ledger open
        work = submit(tear_down(pool))
        while True:
            try:
                self.receipt = work.result()
                break
            except (KeyboardInterrupt, SystemExit) as again:
                if interrupted is not None:
                    raise
                interrupted = again
                self._print_teardown_notice()
        if interrupted is not None:
            raise interrupted
        return self.receipt


def print_rental_notice(spec: PoolSpec, pool: Pool) -> Callable[[], None]:
    """Say what is rented, and with each try where and at what price, until the start has failed; returns how to stop.

    Options cannot have it silent: nobody is to pay for machines and not know it.
    """
    least, most = spec.least_nodes, spec.most_nodes
    number = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    price = hourly_price(spec.provider)
    each = "" if price is None else f", ${price:,.2f}/h each"
    print_safely(
        f"pool {spec.name}: is about to rent {number} machine{'s' * (most != 1)} of {spec.provider.name}{each}"
    )

    from skyward_core.views.events import PoolState  # late: most pools rent nothing

    def hear(event: Event) -> None:
        # What made it fail is told by the error.
        if (
            isinstance(event, PoolState)
            and event.state == "starting"
            and event.detail
            and pool.context.startup.is_running
        ):
            print_safely(f"pool {spec.name} starting: {event.detail}")

    return pool.news.subscribe(hear, None)
