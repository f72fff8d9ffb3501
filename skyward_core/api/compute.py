"""``sky.Compute``: a pool as a context manager, from arguments or from a table of ``skyward.toml``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from skyward_core import providers
from skyward_core.api.active_pool_and_operand_checks import push_pool, remove_pool
from skyward_core.api.notebook_display import StartupProgress, default_pool_name, is_notebook
from skyward_core.api.older_compute_arguments_and_methods import DeprecatedArguments, translate_arguments
from skyward_core.api.pool_operations import PoolOperations, print_safely, run_in_thread, tear_down
from skyward_core.model.deprecated_and_unknown_arguments import apply_rules, check_unknown_arguments, did_you_mean
from skyward_core.model.errors import (
    Hint,
    LedgerError,
    PoolError,
    SkywardError,
    TeardownError,
    UsageError,
    convert_errors,
)
from skyward_core.model.provider_capability_protocols import RunsHere, ServedByAnother, costs_money, hourly_price
from skyward_core.model.specs import NAME, Image, Nodes, Options, Spec, Worker
from skyward_core.runtime.instance_info_and_attempt import refuse_pool_while_loading
from skyward_core.store import debug_log, state_folder
from skyward_core.tasks import script_loader_child
from skyward_core.tasks.import_path import reject_pool_in_child
from skyward_core.transport.background_loop import call_on_loop, submit

if TYPE_CHECKING:
    from skyward_core.api.attach_and_results import Attached
    from skyward_core.model.offers_and_rental_plans import RentalPlan
    from skyward_core.model.specs import AcceleratorLike, PoolSpec, ProviderLike
    from skyward_core.plugins.plugin import Plugin
    from skyward_core.pool.pool import Pool
    from skyward_core.store.receipts_and_bills import Receipt
    from skyward_core.views.events import Event


class Compute(PoolOperations):
    """Pool that exists inside the ``with`` block and is torn down at the end of the block.

        with sky.Compute(provider=sky.Local(), nodes=4) as compute:
            total = sum(part() @ compute)

    Safe to use from any thread. Leaving the block tears the pool down and verifies that nothing remains, also after an
    exception, ctrl-c, SIGTERM or SIGHUP. Afterwards ``receipt`` contains the proof. Asynchronous code writes ``async
    with`` and awaits calls: ``await part().on(compute)``.

        with sky.Compute(
            sky.Spec(provider=sky.AWS(region="us-east-1"), accelerator="A100:8", max_hourly_cost=30),
            sky.Spec(provider=sky.AWS(region="us-west-2"), accelerator="H100:8"),
            selection="first",
        ) as compute:
            ...

    Args:
        *specs: Alternative machines, each with its own provider, accelerator and other requirements. Leave out if the
            arguments below describe the only alternative.
        provider: Provider of the machines. ``Local`` if None.
        nodes: Number of machines. ``Nodes(min=2, max=8)`` or "2:8" accepts any number in a range. If None: one machine,
            or all hosts that the provider lists.
        accelerator: Accelerator of each node, from ``sky.accelerators`` or as a string ("A100:8"). None for no
            requirement.
        vcpus: Minimum number of CPU threads of each machine. This and the next five arguments require a provider with
            offers.
        memory_gb: Minimum memory of each machine in GB.
        architecture: "x86_64" or "arm64".
        region: Region, or a list of regions.
        max_hourly_cost: Maximum price of one machine in dollars per hour, including disk and address.
        disk_gb: Disk size of each machine in GB.
        allocation: "on-demand", "spot", "spot-if-available" or "cheapest" (the cheaper market). On demand if None.
        selection: "cheapest" tries the cheapest offer first. "first" tries the specs and regions in the given order.
            "cheapest" if None.
        image: Environment of the nodes. ``Image()`` if None.
        plugins: Frameworks, in the order in which they are set up.
        worker: How each node runs calls. ``Worker()`` if None.
        options: All other options. ``Options()`` if None.
        name: Name of the pool. Generated if None. If no arguments except ``name`` and ``options`` are given, the name
            selects the table ``[pools.NAME]`` of ``skyward.toml``, which contains all other arguments.
        ttl: Same as ``Options.ttl``. Set only one of them. 0 for no limit.
        **older: Arguments of older API generations: translated, ignored with a warning, or rejected with a replacement.

    Attributes:
        spec: The validated request.
        plugins: Plugins of the pool, in the order in which they are set up.
        receipt: Proof of the teardown. None until the pool is torn down.

    Raises:
        UsageError: If arguments are invalid or contradict each other. On entering, also if ``SKYWARD_LOG`` is not a log
            level.
        PoolExistsError: If the name is taken.
        PoolError: If the pool cannot start (on entering).
        TeardownError: If resources may still run (on leaving).
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
        from skyward_core.providers.pool_spec_and_provider_choice import (
            check_types,
            machine_alternatives,
            make_pool_spec,
        )

        check_types(specs, options)

        if name is not None and not specs and not older and not plugins:
            arguments = (provider, nodes, accelerator, vcpus, memory_gb, architecture, region, max_hourly_cost, disk_gb,
                    allocation, selection, image, worker, ttl)  # fmt: skip
            if all(each is None for each in arguments):
                table = named_pool_arguments(name)
                if options is not None:
                    if "options" in table:
                        raise UsageError(
                            f"options are given twice: by options= and in [pools.{name}] of skyward.toml. Remove one."
                        )
                    table["options"] = options
                self.__init__(**table)  # type: ignore[misc]  # with the arguments from the table
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
        if providers.provider_override or any(isinstance(each.provider, ServedByAnother) for each in ways):
            from skyward_core.providers.pool_spec_and_provider_choice import resolve_alternatives

            ways = [replace(each, allocation=each.allocation or allocation) for each in ways]
            ways, self._startup_notes = resolve_alternatives(ways, providers.provider_override)
            allocation = None
            if len(ways) == 1 and not ways[0].chooses:
                # The provider that replaces those of the specs has fixed machines, so there is nothing to select.
                selection, options = None, options and replace(options, selection=None)
        if providers.nodes_override is not None:
            ways, nodes = [replace(each, nodes=None) for each in ways], providers.nodes_override
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
        """Add the plugin ``shared``, because scripts for older API versions use ``sky.dict`` etc. without naming it."""
        from skyward_core.api.shared_state import uses_deprecated_names
        from skyward_core.plugins import shared

        has = any(each.name == shared.name for each in self.spec.plugins)
        if self.spec.options.cluster and not has and uses_deprecated_names():
            self.spec = replace(self.spec, plugins=(*self.spec.plugins, shared()))
            self._startup_notes.append(
                "plugins=[sky.plugins.shared()] was added because the script uses sky.dict or a similar name"
            )

    @classmethod
    def attached(cls, ref: str, **older: Any) -> Attached:
        """Attach to a running pool: the newest generation's name of ``sky.attach(ref)``.

        Args:
            ref: Name of the pool.
            **older: Other arguments of that generation: ignored with a warning, or rejected with a replacement.

        Raises:
            PoolError: If no such pool exists. All errors of ``sky.attach`` are raised as well.
        """
        from skyward_core.api.attach_and_results import attach
        from skyward_core.api.older_compute_arguments_and_methods import ATTACHED_RULES

        check_unknown_arguments("sky.Compute.attached", older, ["ref", *ATTACHED_RULES])
        apply_rules("sky.Compute.attached", ATTACHED_RULES, older)
        return attach(ref)

    def _repr_html_(self) -> str:
        """Return the pool's current state as HTML for notebooks."""
        from skyward_core.api.notebook_display import pool_html, unseen_html

        if self._pool is not None:
            return pool_html(self._current_view())
        return unseen_html("pool", self.name, f"gone: {self.receipt}" if self.receipt else "not up")

    @property
    def name(self) -> str:
        """Name of the pool."""
        return self.spec.name

    def plan(self) -> RentalPlan:
        """Return the plan: the attempts in order, with prices, and the resources that would be created.

        ``print(compute.plan())`` shows the plan. Nothing is created.

        Raises:
            UsageError: If no offer satisfies the request. The message names the nearest offers.
        """
        from skyward_core.providers.pool_spec_and_provider_choice import make_plan

        return make_plan(self.spec)

    # -- life --------------------------------------------------------------------------------------------

    def __enter__(self) -> Compute:
        self._check_not_open()
        self._stack.enter_context(leave_on_signals())
        try:
            self._start()
            self._enter_plugins()
        except BaseException:
            with self._stack:
                self._abort_startup()
            raise
        return self

    async def __aenter__(self) -> Compute:
        self._check_not_open()
        self._stack.enter_context(leave_on_signals())
        try:
            await run_in_thread(self._start, cancel=self._cancel_startup)
            self._enter_plugins()  # in the user's thread, because plugins may set up thread-local state
        except BaseException:
            with self._stack:
                await run_in_thread(self._abort_startup)
            raise
        return self

    def _check_not_open(self) -> None:
        """Raise a PoolError if the pool is up already."""
        if self._pool is not None:
            raise PoolError(f"pool {self.name} is already up. Use it inside its open block, or create another Compute.")

    def _start(self) -> None:
        if script_loader_child.loading:
            raise script_loader_child.PoolInScript
        refuse_pool_while_loading()
        reject_pool_in_child()
        for notice in self._startup_notes:
            print_safely(f"pool {self.name}: {notice}")
        with self.spec.provider.warm(self.spec):
            # Import here while another thread prepares the provider, which takes about as long.
            from skyward_core.api.rank_output_printer import ScriptConsole
            from skyward_core.pool import pool  # noqa: F401

            startup = self._startup_future = submit(self._start_pool())
            if self._is_startup_cancelled:
                startup.cancel()
            from skyward_core.tasks import function_pickling  # noqa: F401  load it now for the first call

            if self._startup_progress is not None:
                self._startup_progress.wait(startup)
            startup.result()
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
        # The pool may be missing, because ctrl-c can interrupt any line, even before the start of the pool is stored.
        if not call_on_loop(lambda: self._pool is not None):
            return
        pool = self.pool
        receipt = self._tear_down()
        if receipt.machines and costs_money(self.spec.provider):
            machines = ", ".join(receipt.machines)
            self._print_receipt(pool, f"pool {self.name} did not start: {receipt}; machines: {machines}")

    async def _start_pool(self) -> None:
        from skyward_core.pool.pool import Pool
        from skyward_core.store.default_and_forbidden_working_folders import (
            main_script,
            unusable_reason,
            working_folder,
        )
        from skyward_core.store.ledger import Ledger

        if notice := debug_log.start_logging():
            print_safely(notice)
        script = main_script()
        if script and unusable_reason(script.parent) and not isinstance(self.spec.provider, RunsHere):
            # Imported late, because few scripts are in a folder that must not be sent.
            from skyward_core.tasks.script_functions import check_script_folder

            check_script_folder(script)
        self._pool = await Pool.register(self.spec, Ledger(), working_folder())
        if self.spec.options.console and (news := self._pool.view.detail):
            print_safely(f"pool {self.name}: {news}")
        if (progress := self._startup_progress) is not None:
            progress.follow(self._pool.view, self._pool.news)
        stop: Callable[[], None] | None = None
        if costs_money(self.spec.provider):
            stop = print_rental_notice(self.spec, self._pool)
        try:
            await self._pool.start(self.spec)
        except SkywardError:  # after ctrl-c, ignore the error, because the receipt reports remaining machines
            if not self._is_startup_cancelled:
                raise
        finally:
            if progress is not None:
                progress.stop()
            if stop is not None:
                stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forked:
            return  # in a forked child, do nothing, because the parent process owns the pool and tears it down
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
            if receipt.retained:
                self._print_receipt(pool, f"pool {self.name}: {receipt}; sky.results(run) fetches them")
            elif costs_money(self.spec.provider):
                self._print_receipt(pool, f"pool {self.name} is down: {receipt}")
            return
        message = f"pool {self.name}: {receipt}"
        if receipt.unaccounted:
            failure = TeardownError(message, hint=Hint("down", self.name))
        else:
            failure = TeardownError(
                f"{message}. Listing the pools saves the receipt once the ledger is writable", hint=Hint("list")
            )
        if error is None:
            raise failure
        self._print_receipt(pool, str(failure))

    @staticmethod
    def _print_receipt(pool: Pool, text: str) -> None:
        """Print a receipt. If printing fails, or this process dies first, the next list of pools shows the receipt."""
        with suppress(LedgerError):
            pool.ledger.save_receipt_text(pool.row.token, text)
        if print_safely(text):
            with suppress(LedgerError):
                pool.ledger.mark_receipts_printed([pool.row.token])

    def _print_teardown_notice(self) -> None:
        print_safely(f"tearing down pool {self.name}; press ctrl-c again to stop waiting: the pool then ends by itself")

    def _tear_down(self) -> Receipt:
        """Tear the pool down. Complete the teardown even after a first ctrl-c or signal."""
        pool = self.pool
        interrupted: KeyboardInterrupt | SystemExit | None = None
        try:
            self._close_connections()
        except (KeyboardInterrupt, SystemExit) as again:
            interrupted = again
        self._pool = None  # release the pool, because an ended Compute must not keep the ledger open
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


@contextmanager
def leave_on_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP leave the ``with`` block, so that the pool is torn down.

    A signal that the program itself handles or ignores keeps its effect. So does a signal to a forked process.
    """
    owner, is_main = os.getpid(), threading.current_thread() is threading.main_thread()

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise SystemExit(128 + number)

    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL and is_main]
    for each in numbers:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in numbers:
            if signal.getsignal(each) is leave and threading.current_thread() is threading.main_thread():
                signal.signal(each, signal.SIG_DFL)


def print_rental_notice(spec: PoolSpec, pool: Pool) -> Callable[[], None]:
    """Print the requested machines now, and the place and price of each attempt to rent them during the start.

    Options cannot suppress the notice, because users must know that they pay for machines.

    Args:
        spec: The request.
        pool: The pool that starts.

    Returns:
        A function that stops the notices.
    """
    least, most = spec.least_nodes, spec.most_nodes
    number = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    price = hourly_price(spec.provider)
    each = "" if price is None else f", ${price:,.2f}/h each"
    print_safely(f"pool {spec.name}: renting {number} machine{'s' * (most != 1)} from {spec.provider.name}{each}")

    from skyward_core.views.events import PoolState  # imported late, because most pools rent no machines

    def print_state(event: Event) -> None:
        # Skip the state "failed", because the raised error reports the failure.
        match event:
            case PoolState(state="starting", detail=detail) if detail and pool.context.startup.is_running:
                print_safely(f"pool {spec.name} starting: {detail}")

    return pool.news.subscribe(print_state, None)


# Keys that a table [pools.NAME] of skyward.toml may contain: plain values, values that are parsed, and pool options.
_PLAIN_KEYS = (
    "accelerator", "vcpus", "cpus", "memory_gb", "disk_gb", "architecture", "region", "max_hourly_cost",
    "allocation", "selection", "ttl", "volumes", "ports",
)  # fmt: skip
_TABLE_KEYS = ("name", "provider", "nodes", "image", "worker", "plugins", "options")
_OPTION_KEYS = ({each.name for each in fields(Options)} | Options.older_words()) - {*_PLAIN_KEYS, "worker"}


def named_pool_arguments(name: str) -> dict[str, Any]:
    """Return the arguments of ``Compute`` for a named pool.

    Args:
        name: Name of a table in ``pools`` of ``skyward.toml``, in the working folder or in the user's settings folder.
            The working folder takes precedence.

    Raises:
        UsageError: If the table does not exist, or contains invalid values.
    """
    from difflib import get_close_matches

    from skyward_core.store import skyward_toml

    pools, providers = skyward_toml.pool_tables()
    table = pools.get(name)
    if not isinstance(table, Mapping):
        near = get_close_matches(name, pools, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"existing tables: {', '.join(pools) or 'none'}."
        raise UsageError(
            f"sky.Compute(name={name!r}) requires [pools.{name}] of a skyward.toml, but neither the file in the "
            f"working folder nor {state_folder.state_home() / state_folder.SETTINGS_FILE} has that table: {hint} "
            f"For a new pool give a provider: sky.Compute(provider=sky.Local(), name={name!r})"
        )
    with convert_errors(f"[pools.{name}] of skyward.toml", UsageError, (SkywardError, TypeError, AttributeError)):
        return _parse_pool_table({**table}, name, providers)


def _parse_pool_table(table: dict[str, Any], name: str, providers: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {key: table.pop(key) for key in _PLAIN_KEYS if key in table}
    arguments["name"] = table.pop("name", name if NAME.fullmatch(name) else name.lower().replace("_", "-"))
    arguments["provider"] = _parse_provider(table.pop("provider", None), providers)
    if (nodes := table.pop("nodes", None)) is not None:
        arguments["nodes"] = Nodes(**nodes) if isinstance(nodes, Mapping) else nodes
    if (image := table.pop("image", None)) is not None:
        from skyward_core.model.specs import PipIndex

        indexes = [PipIndex(**each) for each in image.get("pip_indexes", ())]
        arguments["image"] = Image(**{**image, "pip_indexes": indexes})
    if (worker := table.pop("worker", None)) is not None:
        arguments["worker"] = Worker(**worker)
    if (plugins := table.pop("plugins", None)) is not None:
        arguments["plugins"] = [_parse_plugin(each, plugins) for each in plugins]
    options = table.pop("options", {}) | {key: table.pop(key) for key in sorted(_OPTION_KEYS & table.keys())}
    if options:
        arguments["options"] = Options(**options)
    if table:
        known = (*_PLAIN_KEYS, *_TABLE_KEYS, *_OPTION_KEYS)
        first = next(iter(table))
        raise UsageError(f"unknown key {first!r}{did_you_mean(first, known)}")
    return arguments


def _parse_provider(value: Any, providers: Mapping[str, Any]) -> Any:
    """Return a provider by its type name, or by the name of a table in ``providers``."""
    from skyward_core.providers import DEFAULT_PROVIDER, provider_class
    from skyward_core.providers.unsupported_providers import PROVIDERS_BY_TYPE

    if value is None:
        return DEFAULT_PROVIDER
    if not isinstance(value, str):
        raise UsageError(f"provider must be a name, got {value!r:.60}")
    table = providers.get(value)
    parameters = {**table} if isinstance(table, Mapping) else {}
    word = parameters.pop("type", value)
    return (PROVIDERS_BY_TYPE.get(word) or provider_class(word))(**parameters)


def _parse_plugin(name: str, tables: Any) -> Plugin:
    """Return a plugin by its name, with the parameters of its table, if any."""
    from skyward_core.plugins import factory

    parameters = tables[name] if isinstance(tables, Mapping) else True
    made: Plugin = factory(name)(**(parameters if isinstance(parameters, Mapping) else {}))
    return made
