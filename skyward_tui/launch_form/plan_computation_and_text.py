"""Text of the launch plan: resources to create, runs and costs."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from skyward_core.client.launch import plugin_and_provider_catalog as catalog
from skyward_core.client.launch.launch_option_declarations import OPTIONS
from skyward_core.model.errors import ScriptError, SkywardError, error_message
from skyward_core.model.provider_capability_protocols import NeedsPython, RunsHere
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import PoolView
from skyward_tui.launch_form.form import (
    FieldError,
    Form,
    format_choice,
    is_job,
    plan_launch,
    python_script,
    relative_path,
)
from skyward_tui.shutdown_and_daemon_threads import run_in_daemon_thread
from skyward_tui.text.number_time_and_run_state_format import count, count_range, duration, hourly, money
from skyward_tui.text.queue_trial_and_comparison_rows import gang_text
from skyward_tui.text.teardown_and_leftovers import kept_pool_text

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_plan import LaunchPlan
    from skyward_core.model.accelerators import Accelerator
    from skyward_core.model.specs import PoolSpec
    from skyward_tui.launch_form.job_file_plan import JobPlan


HOSTS_SHOWN = 6
ATTEMPTS_SHOWN = 5


def plan_rows(plan: LaunchPlan, *, may_remember: bool = False, as_options: bool = False) -> list[tuple[str, str]]:
    """Return the rows of a plan as (heading, text). May query the provider for prices, which takes time.

    Args:
        plan: The plan.
        may_remember: Whether recent answers of the provider may be reused.
        as_options: Whether advice refers to command-line options instead of fields of the form.
    """
    pool, spec = plan.pool, plan.spec
    if plan.sheet is not None:
        where = _trials_text(plan)
    elif plan.request.one:
        where = "one rank"
    elif spec is not None and (spec.least_nodes < spec.most_nodes or spec.worker.ranks_per_node == "gpu"):
        where = "all available ranks"
    else:
        where = "1 rank" if pool.world_size == 1 else f"all {pool.world_size:,} ranks"
    streams = ", streaming its values" if plan.function.is_generator else ""
    rows = [
        *(_existing_pool_rows(pool) if isinstance(pool, PoolView) else _pool_creation_rows(plan, pool, may_remember)),
        ("runs", f"{_call(plan)} {'' if plan.sheet is not None else 'on '}{where}{streams}"),
    ]
    if plan.sheet is not None or plan.request.one:
        rows.append(("world", _world_size_text(plan)))
    rows += _option_rows(plan, "the pool is torn down" if as_options else "the app asks")
    if plan.plugins:
        rows.append(("plugins", ", ".join(_plugin(plan, each.name) for each in plan.plugins)))
    if plan.spec is not None:
        rows += _image(plan.spec)
    if plan.interpreter.chosen:
        rows.append(("python", str(plan.interpreter)))
    if plan.spec is not None and plan.interpreter.minor and isinstance(plan.spec.provider, NeedsPython):
        rows.append(("needs", plan.spec.provider.needs_python(plan.interpreter.minor)))
    if plan.packages is not None:
        rows.append(("packages", str(plan.packages)))
    rows += [("sends", f"{each.name} from {each.folder}") for each in plan.uploaded_packages]
    if plan.spec is not None and plan.spec.image.outputs:
        rows.append(_outputs(plan.spec))
    notes = [*plan.interpreter.notes, python_mismatch(plan, as_options=as_options)]
    try:
        missing = missing_packages_text(plan, as_options=as_options)
        notes += (
            [missing]
            if missing
            else [catalog.install_advice(name, plan.interpreter) for name in plan.missing_frameworks]
        )
    except ScriptError as error:
        notes.append(str(error))
    notes.append(missing_plugins_text(plan, as_options=as_options))
    is_checked = plan.price_hourly or plan.has_rental_plan or plan.uses_single_gpus
    if spec is not None and spec.accelerator is not None and not is_checked:
        # Only rented machines have a price. Other machines belong to the user, and the plan does not know their
        # accelerators.
        notes.append(f"not checked: each node must have {spec.accelerator}")
    rows += [("note", each) for each in (*notes, plan.file_loss_warning) if each]
    ends = f"skyward-tui down {pool.name}" if as_options else "X"
    # A run on an existing pool never tears that pool down.
    end = kept_pool_text(pool, ends) if plan.keep or plan.spec is None else "pool is torn down after the run"
    return [*rows, ("then", end)]


def _option_rows(plan: LaunchPlan, then: str) -> Iterator[tuple[str, str]]:
    """Yield a row for each given option whose declaration has a text for the plan.

    Args:
        plan: The plan.
        then: Text about what happens when the budget is spent.
    """
    for name, option in OPTIONS.items():
        heading, text = option.plan
        in_pool = option.part == "options"
        if not heading or not plan.request.is_given(name) or (in_pool and plan.spec is None):
            continue
        value = getattr(plan.spec.options, name) if in_pool and plan.spec is not None else getattr(plan.request, name)
        if value:
            shown = duration(value) if option.metavar == "TIME" and "{}" in text else value
            yield heading, text.format(shown, then=then)


def _image(spec: PoolSpec) -> Iterator[tuple[str, str]]:
    """Yield the rows about the environment of the ranks. Of variables, only the names are included, because values may
    be secret."""
    image = spec.image
    rows = {"installs": [*image.pip, *image.apt], "setup": image.setup, "sets": sorted(image.env)}
    rows |= {"includes": image.includes, "excludes": image.excludes}
    yield from ((name, ", ".join(map(sanitize_line, values))) for name, values in rows.items() if values)


def _plugin(plan: LaunchPlan, name: str) -> str:
    given = [f"{key}={sanitize_line(str(value))}" for key, value in plan.plugin_values.get(name, {}).items()]
    return f"{name} ({', '.join(given)})" if given else name


def python_mismatch(plan: LaunchPlan, *, as_options: bool = False) -> str:
    """Return a warning if the script would run with skyward-tui's Python, which the script's project does not support;
    otherwise "".

    Args:
        plan: The plan.
        as_options: Whether to name command-line options instead of fields of the form.
    """
    version, name = plan.python_mismatch
    if not version:
        return ""
    instead = "--project" if as_options else f"{name} under packages"
    python = "--python PATH" if as_options else "a Python"
    return (
        f"{name} requires Python {version}, but skyward-tui runs {plan.interpreter.version}. Choose {instead} to find "
        f"a matching one, choose {python}, or create a .venv in the project"
    )


def missing_plugins_text(plan: LaunchPlan, *, as_options: bool = False) -> str:
    """Return a warning that the ranks will train separately, because a plugin is missing; otherwise "".

    Args:
        plan: The plan.
        as_options: Whether to name the command-line option that adds the plugin.
    """
    if not (unmet := plan.missing_plugins):
        return ""
    if plan.spec is None:
        return f"{unmet[0]} plugin is missing on pool {plan.pool.name}: ranks will train separately"
    advice = f". Add --plugin {unmet[0]}" if as_options else ""
    return f"{unmet[0]} plugin is off: ranks will train separately{advice}"


def missing_packages_text(plan: LaunchPlan, *, as_options: bool = False) -> str:
    """Return a warning about packages that the script imports and that are not installed; "" if none is missing.

    Args:
        plan: The plan.
        as_options: Whether to name command-line options instead of fields of the form.
    """
    if not (names := plan.missing_packages):
        return ""
    missing = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not installed for {sys.executable}. "
    files = {
        format_choice(each.field, relative_path(each.path)): Path(each.path).name
        for each in catalog.packages_for(plan.script)
    }
    if files and as_options:
        return missing + f"Install the project's packages with {' or '.join(f'--{choice}' for choice in files)}"
    if files:
        return missing + f"Choose {' or '.join(files.values())} under packages"
    if plan.whole:
        return missing + "Add it to the script's inline metadata (# /// script), or install it in the project's .venv"
    return ""  # no warning here, because loading the script reports the missing packages


def _pool_creation_rows(plan: LaunchPlan, spec: PoolSpec, may_remember: bool) -> Iterator[tuple[str, str]]:
    least, most = spec.least_nodes, spec.most_nodes
    machines, per_gpu = count_range(least, most, spec.provider.machine), spec.worker.ranks_per_node == "gpu"
    what = f"{machines} × {'one rank per GPU' if per_gpu else count(spec.ranks_per_node, 'rank')}"
    at_least = f"{least * spec.ranks_per_node:,} to " if least < most else ""
    # With one rank per GPU, the world size is unknown until the machines have reported their GPUs.
    size = "" if per_gpu else f", world size {at_least}{spec.world_size:,}"
    yield "creates", f"pool {spec.name}: {what}{size}"
    if plan.hosts:
        more = len(plan.hosts) - HOSTS_SHOWN
        yield "hosts", ", ".join(plan.hosts[:HOSTS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    if spec.accelerator is not None:
        yield "needs", _accelerator_text(spec.accelerator)
    yield from _rental_rows(plan, may_remember)


def _rental_rows(plan: LaunchPlan, may_remember: bool) -> Iterator[tuple[str, str]]:
    """Yield the rows about cost, the offers in the order in which they are tried, and the resources to create."""
    try:
        rental = plan.rental_plan(may_remember=may_remember)
    except SkywardError as error:
        yield from _cost(hourly(plan))
        yield "note", error_message(error)
        return
    total = ""
    if rental.hourly and (limit := plan.request.timeout) and not plan.keep and plan.sheet is None:
        total = f", {money(rental.hourly * limit / 3600)} at the time limit of {duration(limit)}"
    yield from _cost((rental.cost if rental.attempts else hourly(plan)) + total)
    for number, each in enumerate(rental.attempts[:ATTEMPTS_SHOWN], 1):
        yield "tries" if number == 1 else "or", sanitize_line(each.priced)
    if (more := len(rental.attempts) - ATTEMPTS_SHOWN) > 0:
        yield "or", count(more, "other offer")
    yield from (("makes", sanitize_line(created)) for created in rental.creates)
    yield from (("sends", sanitize_line(", ".join(_request_text(sent)))) for sent in rental.requests)
    yield from (("note", sanitize_line(note)) for note in rental.notes)


def _cost(hourly: str) -> Iterator[tuple[str, str]]:
    """Yield the row with the cost of the machines, unless they are free."""
    if hourly:
        yield "cost", hourly


def _request_text(request: Mapping[str, object]) -> Iterator[str]:
    """Yield the values of the request that the launch would send to the provider, as far as they fit one line."""
    for name, value in request.items():
        if isinstance(value, int) or (isinstance(value, str) and "\n" not in value):
            yield f"{name} {value}"


def _existing_pool_rows(pool: PoolView) -> Iterator[tuple[str, str]]:
    yield "uses", f"pool {pool.name}: {count(len(pool.nodes), 'node')}, world size {pool.world_size:,}"
    yield from _cost("no additional cost" if hourly(pool) else "")


def _call(plan: LaunchPlan) -> str:
    """Return the call in Python, or the command of a whole script."""
    if plan.whole:
        return shlex.join(["python", plan.function.name, *plan.values["args"]])

    texts = {
        name: str(each) if isinstance(each, catalog.RawArgument) else repr(each) for name, each in plan.values.items()
    }
    return f"{plan.function.name}({', '.join(f'{name}={text}' for name, text in texts.items())})"


def _trials_text(plan: LaunchPlan) -> str:
    """Return the number of trials of a sweep, and what each trial runs on. The row with the call shows the first
    trial."""
    sheet = plan.sheet
    if sheet is None or len(sheet.rows) == len(sheet.tasks) == 1:
        if sheet is not None and sheet.nodes:
            return f"on all ranks of {count(sheet.nodes, 'node')}"
        return "on all ranks" if sheet is not None and sheet.gang else "on one rank"
    part = "" if len(sheet.tasks) == len(sheet.rows) else f"{len(sheet.tasks):,} of "
    trials = f"and so on: {part}{count(len(sheet.rows), 'trial')}"
    return f"{trials}, {gang_text(sheet.nodes, plan.max_nodes) if sheet.gang else 'each on one rank'}"


def _world_size_text(plan: LaunchPlan) -> str:
    """Return the world size of each trial of a sweep, or of a call on one rank."""
    sheet, spec = plan.sheet, plan.spec
    ranks = 1
    if sheet is not None and sheet.gang:
        varies = spec is not None and not sheet.nodes and spec.least_nodes < spec.most_nodes
        if varies or (spec is not None and spec.worker.ranks_per_node == "gpu"):
            return "each trial: all ranks of its nodes"
        ranks = (sheet.nodes or plan.max_nodes) * plan.pool.ranks_per_node
    return f"{'' if sheet is None else 'each trial: '}{count(ranks, 'rank')}, world size {ranks:,}"


def _outputs(spec: PoolSpec) -> tuple[str, str]:
    """Return the plan's row about the download of files that the ranks write."""
    named = " ".join(map(sanitize_line, spec.image.outputs))
    if isinstance(spec.provider, RunsHere):
        return "note", f"nothing to download: ranks write {named} directly to this folder"
    return "saves", f"{named} to outputs/RUN, during and after the run"


def _accelerator_text(accelerator: Accelerator) -> str:
    power = f", bf16 {accelerator.bf16_tflops:,.0f} TFLOP/s" if accelerator.bf16_tflops else ""
    each = f"{accelerator.min_memory_gb:g} GB{power}"
    return f"{accelerator.count} × {accelerator.maker} {accelerator.name} per node, each {each}"


T = TypeVar("T")

MIN_SHOWN_SECONDS = 0.5  # seconds; a shorter wait for the script shows no text


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Result of planning a form: either a plan with its text, or an error in a field.

    Attributes:
        form: The form.
        plan: The plan of a script.
        rows: Text of the plan, as (heading, text).
        error: Error in a field.
        script: The launch as a Python script.
        job: The plan of a job file.
    """

    form: Form
    plan: LaunchPlan | None = None
    rows: Sequence[tuple[str, str]] = ()
    error: FieldError | None = None
    script: str = ""
    job: JobPlan | None = None


def compute_plan(
    form: Form, pools: Collection[PoolView], *, launching: bool = False, shown: bool = False
) -> PlanResult:
    """Plan the launch of a form.

    Args:
        form: The form.
        pools: All known pools.
        launching: Whether the launch has started. Only then may the script's Python be run to read its version.
        shown: Whether the text of this form's plan is already shown. The result then has no rows and no script.
    """
    try:
        if is_job(form.script):
            # imported late, because this module imports pydantic and a YAML parser
            from skyward_tui.launch_form.job_file_plan import job_plan, job_rows

            job = job_plan(form, pools)
            return PlanResult(form, rows=job_rows(job), script=python_script(form, pools), job=job)
        plan = plan_launch(form, pools, launching=launching)
    except FieldError as error:
        return PlanResult(form, error=error)
    if shown:
        return PlanResult(form, plan)
    return PlanResult(form, plan, plan_rows(plan, may_remember=True), script=python_script(form, pools))


class Planner:
    """Computation of launch plans in threads, one at a time for each script.

    Forms with the same script and Python are planned one after the other: the first planning may start that Python, and
    the next ones reuse the result. Fast typing therefore does not create many threads that wait for the same Python.
    """

    def __init__(self) -> None:
        self._busy: dict[tuple[str, str], asyncio.Future[Any]] = {}

    async def run(self, form: Form, work: Callable[[], T]) -> T:
        """Run a function that may start the form's Python in a thread, which continues if the caller is cancelled."""
        key = form.script, form.python
        before = self._busy.get(key)
        if before is not None and not before.done():
            await asyncio.wait({before})
        started = self._busy[key] = run_in_daemon_thread(work)
        started.add_done_callback(lambda _: self._forget(key, started))
        return await asyncio.shield(started)

    def _forget(self, key: tuple[str, str], started: asyncio.Future[Any]) -> None:
        if self._busy.get(key) is started:
            del self._busy[key]


@dataclass(slots=True)
class ScriptWait:
    """Text about the work on the user's script that a plan or launch waits for, and for how long it has been waiting.

    Attributes:
        what: Description of the work.
        line: Latest line of the work's output; may be set from any thread.
    """

    what: str
    line: str = ""
    _since: float = dataclass_field(default_factory=time.monotonic)

    def __str__(self) -> str:
        lasts = time.monotonic() - self._since
        if lasts < MIN_SHOWN_SECONDS:
            return ""
        return f"{self.what}, {duration(lasts)}{f': {self.line}' if self.line else ' …'}"


async def load_tasks(plan: LaunchPlan, wait: ScriptWait) -> list[catalog.Task]:
    """Load the plan's script, and return its calls. Cancelling the caller also stops all processes that load the
    script.

    Args:
        plan: The plan.
        wait: Receives the output of the installer that prepares the script's environment.

    Raises:
        SkywardError: If the script cannot be loaded, or its calls cannot be pickled.
    """

    def on_line(line: str) -> None:
        wait.line = sanitize_line(line)

    stop = catalog.CancellationToken()
    try:
        return await run_in_daemon_thread(lambda: plan.load_tasks(report=on_line, stop=stop))
    finally:
        stop.cancel()
