"""The plan beside the form, in words."""

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

from skyward_core.client.launch.launch_request import OPTIONS
from skyward_core.model.errors import ScriptError, SkywardError, error_message
from skyward_core.model.provider_capabilities import NeedsPython, RunsHere
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
from skyward_tui.shutdown import run_in_daemon_thread
from skyward_tui.text.number_and_time_format import count, count_range, duration, hourly
from skyward_tui.text.queue_sweep_comparison_rows import gang_text

if TYPE_CHECKING:
    from skyward_core.client.launch.launch_plan import LaunchPlan
    from skyward_core.client.launch.script_plugin_provider_discovery import Task
    from skyward_core.model.accelerators import Accelerator
    from skyward_core.model.specs import PoolSpec
    from skyward_tui.launch_form.job_form import JobPlan


HOSTS_SHOWN = 6
ATTEMPTS_SHOWN = 5


def plan_rows(plan: LaunchPlan, *, may_remember: bool = False, as_options: bool = False) -> list[tuple[str, str]]:
    """What will happen, as (heading, text); may ask the provider.

    Args:
        may_remember: whether what a provider said a minute ago will do.
        as_options: say it for a command line, not for the form.
    """
    from skyward_core.client.launch.script_plugin_provider_discovery import install_advice

    pool = plan.pool
    world = pool.world_size
    where = (
        _trials_text(plan)
        if plan.sheet is not None
        else "one rank"
        if plan.request.one
        else count(world, "rank")
        if world == 1
        else f"all {world:,} ranks"
    )
    spec = plan.spec
    if (
        spec is not None
        and (spec.least_nodes < spec.most_nodes or spec.worker.ranks_per_node == "gpu")
        and not (plan.request.one or plan.sheet)
    ):
        where = "all ranks that there are then"
    streams = ", streaming what it yields" if plan.function.is_generator else ""
    told = [
        *(_existing_pool_rows(pool) if isinstance(pool, PoolView) else _pool_creation_rows(plan, pool, may_remember)),
        ("runs", f"{_call(plan)} {'' if plan.sheet is not None else 'on '}{where}{streams}"),
    ]
    if plan.sheet is not None or plan.request.one:
        told.append(("world", _world_size_text(plan)))
    told += _option_rows(plan, "the pool is torn down" if as_options else "the app asks")
    if plan.plugins:
        told.append(("plugins", ", ".join(_plugin(plan, each.name) for each in plan.plugins)))
    if plan.spec is not None:
        told += _image(plan.spec)
    if plan.interpreter.chosen:
        told.append(("python", str(plan.interpreter)))
    if plan.spec is not None and plan.interpreter.minor and isinstance(plan.spec.provider, NeedsPython):
        told.append(("needs", plan.spec.provider.needs_python(plan.interpreter.minor)))
    if plan.packages is not None:
        told.append(("packages", str(plan.packages)))
    told += [("sends", f"{each.name}, which lies in {each.folder}") for each in plan.uploaded_packages]
    if plan.spec is not None and plan.spec.image.outputs:
        told.append(_outputs(plan.spec))
    told += [("note", each) for each in plan.interpreter.notes]
    if said := python_mismatch(plan, as_options=as_options):
        told.append(("note", said))
    try:
        lack = (
            [said]
            if (said := missing_packages_text(plan, as_options=as_options))
            else [install_advice(name, plan.interpreter) for name in plan.missing_frameworks]
        )
        told += [("note", each) for each in lack]
    except ScriptError as error:
        told.append(("note", str(error)))
    if unmet := plan.missing_plugins:
        off = (
            "its plugin is off: the ranks will not meet"
            if plan.spec is not None
            else f"pool {pool.name} has no plugin {unmet[0]}: the ranks will not meet there"
        )
        told.append(("note", f"{unmet[0]} is imported, and {off}"))
    if (
        plan.spec is not None
        and plan.spec.accelerator is not None
        and not (plan.price_hourly or plan.has_rental_plan or plan.uses_single_gpus)
    ):
        # Machines that cost nothing are there already, and are taken as they are.
        told.append(("note", f"nothing is rented or looked at: each node must have {plan.spec.accelerator}"))
    if plan.file_loss_warning:
        told.append(("note", plan.file_loss_warning))
    ends = f"skyward-tui down {pool.name}" if as_options else "X"
    end = (
        f"the pool stays up; {ends} tears it down"
        if plan.keep or plan.spec is None  # one that was up is nobody's to end by this
        else "the pool is torn down when the run ends"
    )
    return [*told, ("then", end)]


def _option_rows(plan: LaunchPlan, then: str) -> Iterator[tuple[str, str]]:
    """Yield the rows that options declare.

    Args:
        then: what follows once the budget is spent.
    """
    for name, option in OPTIONS.items():
        heading, text = option.plan
        in_pool = option.part == "options"
        if not heading or not plan.request.is_given(name) or (in_pool and plan.spec is None):
            continue
        value = getattr(plan.spec.options, name) if in_pool and plan.spec is not None else getattr(plan.request, name)
        if value:
            yield heading, text.format(duration(value) if option.metavar == "TIME" else value, then=then)


def _image(spec: PoolSpec) -> Iterator[tuple[str, str]]:
    """What the ranks' environment holds; of variables the names, as values may be secret."""
    image = spec.image
    said = {"installs": [*image.pip, *image.apt], "setup": image.setup, "sets": sorted(image.env)}
    said |= {"includes": image.includes, "excludes": image.excludes}
    yield from ((name, ", ".join(map(sanitize_line, values))) for name, values in said.items() if values)


def _plugin(plan: LaunchPlan, name: str) -> str:
    given = plan.plugin_values.get(name, {})
    return (
        f"{name} ({', '.join(f'{key}={sanitize_line(str(value))}' for key, value in given.items())})" if given else name
    )


def python_mismatch(plan: LaunchPlan, *, as_options: bool = False) -> str:
    """That the script's project is for another Python than ours, which it gets, and what to do about it; "" where it
    gets one that it is for.

    Args:
        as_options: say it for a command line, not for the form.
    """
    wanted, name = plan.python_mismatch
    if not wanted:
        return ""
    instead = "--project" if as_options else f"{name} under packages"
    python = "--python PATH" if as_options else "a Python"
    return (
        f"{name} asks for Python {wanted}, and this program's own is {plan.interpreter.version}: {instead} looks for "
        f"one that fits, or give {python} or the project a .venv"
    )


def missing_packages_text(plan: LaunchPlan, *, as_options: bool = False) -> str:
    """Which packages the script imports and will not find, and what to do about it; "" where nothing is known to lack.

    Args:
        as_options: say it for a command line, not for the form.
    """
    from skyward_core.client.launch.script_plugin_provider_discovery import packages_for

    if not (names := plan.missing_packages):
        return ""
    said = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not installed for {sys.executable}: "
    files = {
        format_choice(each.field, relative_path(each.path)): Path(each.path).name for each in packages_for(plan.script)
    }
    if files and as_options:
        return said + " or ".join(f"--{choice}" for choice in files) + " installs what the project asks for"
    if files:
        return said + f"choose {' or '.join(files.values())} under packages"
    if plan.whole:
        return said + "name it in the script's inline metadata (# /// script), or install it in its project's .venv"
    return ""  # who loads the script says it


def _pool_creation_rows(plan: LaunchPlan, spec: PoolSpec, may_remember: bool) -> Iterator[tuple[str, str]]:
    least, most = spec.least_nodes, spec.most_nodes
    machines, per_gpu = count_range(least, most, spec.provider.machine), spec.worker.ranks_per_node == "gpu"
    what = f"{machines} × {'a rank for each GPU' if per_gpu else count(spec.ranks_per_node, 'rank')}"
    at_least = f"{least * spec.ranks_per_node:,} to " if least < most else ""
    size = "" if per_gpu else f", world size {at_least}{spec.world_size:,}"  # of GPUs only the machines can tell
    yield "creates", f"pool {spec.name}: {what}{size}"
    if plan.hosts:
        yield "hosts", _hosts_text(plan.hosts)
    if spec.accelerator is not None:
        yield "needs", _accelerator_text(spec.accelerator)
    yield from _rental_rows(plan, may_remember)


def _rental_rows(plan: LaunchPlan, may_remember: bool) -> Iterator[tuple[str, str]]:
    """What it costs, and what is tried and made for it."""
    try:
        rental = plan.rental_plan(may_remember=may_remember)
    except SkywardError as error:
        yield from _cost(hourly(plan))
        yield "note", error_message(error)
        return
    yield from _cost(rental.cost if rental.attempts else hourly(plan))
    for number, each in enumerate(rental.attempts[:ATTEMPTS_SHOWN], 1):
        yield "tries" if number == 1 else "or", sanitize_line(each.priced)
    if (more := len(rental.attempts) - ATTEMPTS_SHOWN) > 0:
        yield "or", count(more, "other offer")
    for made in rental.creates:
        yield "makes", sanitize_line(made)
    for sent in rental.requests:
        yield "sends", sanitize_line(", ".join(_request_text(sent)))
    for note in rental.notes:
        yield "note", sanitize_line(note)


def _cost(hourly: str) -> Iterator[tuple[str, str]]:
    """Where nothing costs, there is nothing to say of it."""
    if hourly:
        yield "cost", hourly


def _request_text(request: Mapping[str, object]) -> Iterator[str]:
    """What a line has room for of a request; ``--json`` has all."""
    for name, value in request.items():
        if isinstance(value, int) or (isinstance(value, str) and "\n" not in value):
            yield f"{name} {value}"


def _existing_pool_rows(pool: PoolView) -> Iterator[tuple[str, str]]:
    yield "uses", f"pool {pool.name}: {count(len(pool.nodes), 'node')}, world size {pool.world_size:,}"
    yield from _cost("nothing new" if hourly(pool) else "")


def _call(plan: LaunchPlan) -> str:
    """What is run, as it would be written in Python, or for a shell where it is a whole script."""
    if plan.whole:
        return shlex.join(["python", plan.function.name, *plan.values["args"]])
    given = ", ".join(f"{name}={_value_text(value)}" for name, value in plan.values.items())
    return f"{plan.function.name}({given})"


def _trials_text(plan: LaunchPlan) -> str:
    """How many trials a sweep has, of which the call shows the first."""
    sheet = plan.sheet
    if sheet is None or len(sheet.rows) == len(sheet.tasks) == 1:
        if sheet is not None and sheet.nodes:
            return f"on every rank of {count(sheet.nodes, 'node')}"
        return "on every rank" if sheet is not None and sheet.gang else "on one rank"
    left = "" if len(sheet.tasks) == len(sheet.rows) else f" {len(sheet.tasks):,} of"
    many = f"and so on, as{left} {count(len(sheet.rows), 'trial')}"
    if not sheet.gang:
        return f"{many}, each on one rank"
    return f"{many}, {gang_text(sheet.nodes, plan.max_nodes)}"


def _world_size_text(plan: LaunchPlan) -> str:
    """Return how many ranks meet in each trial, or in a call on one rank."""
    sheet, spec = plan.sheet, plan.spec
    ranks = 1
    if sheet is not None and sheet.gang:
        varies = spec is not None and not sheet.nodes and spec.least_nodes < spec.most_nodes
        if varies or (spec is not None and spec.worker.ranks_per_node == "gpu"):
            return "each trial: all ranks that its nodes have then"
        ranks = (sheet.nodes or plan.max_nodes) * plan.pool.ranks_per_node
    return f"{'' if sheet is None else 'each trial: '}{count(ranks, 'rank')}, world size {ranks:,}"


def _outputs(spec: PoolSpec) -> tuple[str, str]:
    """What becomes of the files that are asked for."""
    named = " ".join(map(sanitize_line, spec.image.outputs))
    if isinstance(spec.provider, RunsHere):
        return "note", f"ranks work in your own folder here: of {named} there is nothing to bring"
    return "brings", f"{named} to outputs/RUN here, while the run goes on and when it is over"


def _value_text(value: object) -> str:
    """A value as in source, or the text of one that is still to be made of it."""
    from skyward_core.client.launch.script_plugin_provider_discovery import RawArgument

    return str(value) if isinstance(value, RawArgument) else repr(value)


def _accelerator_text(accelerator: Accelerator) -> str:
    power = f", bf16 {accelerator.bf16_tflops:,.0f} TFLOP/s" if accelerator.bf16_tflops else ""
    each = f"{accelerator.min_memory_gb:g} GB{power}"
    return f"{accelerator.count} × {accelerator.maker} {accelerator.name} per node, each {each}"


def _hosts_text(hosts: Sequence[str]) -> str:
    """Hosts as the plan has room for them."""
    more = len(hosts) - HOSTS_SHOWN
    return ", ".join(hosts[:HOSTS_SHOWN]) + (f" and {more} more" if more > 0 else "")


T = TypeVar("T")

MIN_SHOWN_SECONDS = 0.5  # seconds; what takes no longer is not spoken of


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What a form comes to: a plan, with its words, or the field that is wrong."""

    form: Form
    plan: LaunchPlan | None = None
    rows: Sequence[tuple[str, str]] = ()
    error: FieldError | None = None
    script: str = ""  # the same as Python
    job: JobPlan | None = None  # of a job file, in place of the plan


def compute_plan(form: Form, pools: Collection[PoolView], *, launching: bool = False) -> PlanResult:
    """Work a form out.

    Args:
        launching: whether the launch has begun: only then the Python that it means is run, to learn its version.
    """
    if is_job(form.script):
        return _compute_job_plan(form, pools)
    try:
        plan = plan_launch(form, pools, launching=launching)
    except FieldError as error:
        return PlanResult(form, error=error)
    return PlanResult(form, plan, plan_rows(plan, may_remember=True), script=python_script(form, pools))


def _compute_job_plan(form: Form, pools: Collection[PoolView]) -> PlanResult:
    from skyward_tui.launch_form.job_form import (  # pydantic and a reader of YAML come with it
        job_plan,
        job_rows,
    )

    try:
        job = job_plan(form, pools)
    except FieldError as error:
        return PlanResult(form, error=error)
    return PlanResult(form, rows=job_rows(job), script=python_script(form, pools), job=job)


class Planner:
    """Threads that work forms out. Those that ask the same Python go one by one: the next has its answer at once, and
    typing makes no threads that all wait for it."""

    def __init__(self) -> None:
        self._busy: dict[tuple[str, str], asyncio.Future[Any]] = {}

    async def run(self, form: Form, work: Callable[[], T]) -> T:
        """Do something that may ask for the form's Python. Not to wait any longer leaves the thread to its limit."""
        asks = form.script, form.python
        before = self._busy.get(asks)
        if before is not None and not before.done():
            await asyncio.wait({before})
        begun = self._busy[asks] = run_in_daemon_thread(work)
        begun.add_done_callback(lambda _: self._forget(asks, begun))
        return await asyncio.shield(begun)

    def _forget(self, asks: tuple[str, str], begun: asyncio.Future[Any]) -> None:
        if self._busy.get(asks) is begun:
            del self._busy[asks]


@dataclass(slots=True)
class ScriptWait:
    """Something that a person waits for, in words.

    Attributes:
        what: what for.
        line: what was last heard of it; set from any thread.
    """

    what: str
    line: str = ""
    _since: float = dataclass_field(default_factory=time.monotonic)

    def __str__(self) -> str:
        lasts = time.monotonic() - self._since
        if lasts < MIN_SHOWN_SECONDS:
            return ""
        heard = f": {self.line}" if self.line else " …"
        return f"{self.what}, {duration(lasts)}{heard}"


async def load_tasks(plan: LaunchPlan, wait: ScriptWait) -> list[Task]:
    """Load the plan's script, and make its calls; not to wait any longer ends it, and all that it has started.

    Args:
        wait: hears what whoever makes the script's environment says.

    Raises:
        SkywardError: as :meth:`~skyward_core.client.launch.launch_plan.LaunchPlan.tasks`.
    """
    from skyward_core.client.launch.script_plugin_provider_discovery import CancellationToken
    from skyward_core.util.terminal_safe_text import sanitize_line

    def hear(line: str) -> None:
        wait.line = sanitize_line(line)

    stop = CancellationToken()
    try:
        return await run_in_daemon_thread(lambda: plan.load_tasks(said=hear, stop=stop))
    finally:
        stop.cancel()
