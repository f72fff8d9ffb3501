"""Planning of the launch form beside the app: a launch runs the script's Python, which may hang."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from skyward_core.views.views import PoolView

from .ends import beside
from .launch_form import FieldError, Form, check, is_job, python_script
from .launch_plan import rows
from .words import duration

if TYPE_CHECKING:
    from skyward_core.front.launch_plan import LaunchPlan
    from skyward_core.front.scripts import Task

    from .job_form import JobPlan

T = TypeVar("T")

NOTICEABLE = 0.5  # seconds; what takes no longer is not spoken of


@dataclass(frozen=True, slots=True)
class Planned:
    """What a form comes to: a plan, with its words, or the field that is wrong."""

    form: Form
    plan: LaunchPlan | None = None
    told: Sequence[tuple[str, str]] = ()
    error: FieldError | None = None
    script: str = ""  # the same as Python
    job: JobPlan | None = None  # of a job file, in place of the plan


def planned(form: Form, pools: Collection[PoolView], *, launching: bool = False) -> Planned:
    """Work a form out.

    Args:
        launching: whether the launch has begun: only then the Python that it means is run, to learn its version.
    """
    if is_job(form.script):
        return _of_job(form, pools)
    try:
        plan = check(form, pools, launching=launching)
    except FieldError as error:
        return Planned(form, error=error)
    return Planned(form, plan, rows(plan, may_remember=True), script=python_script(form, pools))


def _of_job(form: Form, pools: Collection[PoolView]) -> Planned:
    from .job_form import job_plan, job_rows  # pydantic and a reader of YAML come with it

    try:
        job = job_plan(form, pools)
    except FieldError as error:
        return Planned(form, error=error)
    return Planned(form, told=job_rows(job), script=python_script(form, pools), job=job)


class Planner:
    """Threads that work forms out. Those that ask the same Python go one by one: the next has its answer at once, and
    typing makes no threads that all wait for it."""

    def __init__(self) -> None:
        self._busy: dict[tuple[str, str], asyncio.Future[Any]] = {}

    async def work(self, form: Form, work: Callable[[], T]) -> T:
        """Do something that may ask for the form's Python. Not to wait any longer leaves the thread to its limit."""
        asks = form.script, form.python
        before = self._busy.get(asks)
        if before is not None and not before.done():
            await asyncio.wait({before})
        begun = self._busy[asks] = beside(work)
        begun.add_done_callback(lambda _: self._forget(asks, begun))
        return await asyncio.shield(begun)

    def _forget(self, asks: tuple[str, str], begun: asyncio.Future[Any]) -> None:
        if self._busy.get(asks) is begun:
            del self._busy[asks]


@dataclass(slots=True)
class Wait:
    """Something that a person waits for, in words.

    Attributes:
        what: what for.
        line: what was last heard of it; set from any thread.
    """

    what: str
    line: str = ""
    _since: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        lasts = time.monotonic() - self._since
        if lasts < NOTICEABLE:
            return ""
        heard = f": {self.line}" if self.line else " …"
        return f"{self.what}, {duration(lasts)}{heard}"


async def loaded(plan: LaunchPlan, wait: Wait) -> list[Task]:
    """Load the plan's script, and make its calls; not to wait any longer ends it, and all that it has started.

    Args:
        wait: hears what whoever makes the script's environment says.

    Raises:
        SkywardError: as :meth:`~skyward_core.front.launch_plan.LaunchPlan.tasks`.
    """
    from skyward_core.front.scripts import Stop
    from skyward_core.wire.safe_text import field

    def hear(line: str) -> None:
        wait.line = field(line)

    stop = Stop()
    try:
        return await beside(lambda: plan.tasks(said=hear, stop=stop))
    finally:
        stop.ask()
