"""The nodes of a pool, phase by phase: where each is, since when, what it waits for, when it tries again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from textual.content import Content

from skyward_core.views.job_steps import StepOnNode, last_words, on_nodes, steps_of
from skyward_core.views.views import PHASES, NodeView, PoolView, RunView

from ..beat import beat_of
from ..hints import detail_of
from ..theme import look, node_look
from ..words import age, clip, duration, taken_back, took
from .rank_state import FAILURES, link_note
from .roll import Roll

_ROAD = PHASES[:-1]
ROOMY = 90  # cells in which a node's way, and its steps, have room


class PhaseBoard(Roll):
    """One row per node; the ones that are not ready come first where there are many."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[Content] = []
        self._head: list[Content] = []
        self._state: object = None
        self._steps: Mapping[int, Sequence[StepOnNode]] = {}

    def update(self, pool: PoolView, now: float, run: RunView | None = None) -> bool:
        """Look at a pool; returns whether anything is new.

        Args:
            run: that is looked at; of a job, its steps stand beside each node.
        """
        job = "" if run is None else run.job
        state = (pool.version, job, pool.logs.version if job else 0, beat_of([pool], now), self.size)
        if state == self._state:
            return False
        self._state = state
        job_steps = steps_of(pool, run)
        self._steps = on_nodes(job_steps, now)
        bad = pool.state in ("failed", "degraded", "unreachable")
        style = "$text-error" if bad else "$muted"
        self._head = [Content.styled(f" {line}", style) for line in detail_of(pool).splitlines()[:3]]
        for number, line in enumerate(last_words(pool, job_steps)):
            self._head.append(Content.styled(f" {line}", "$muted" if number else "$text-error"))
        nodes = pool.nodes
        if len(nodes) > self.size.height:
            nodes = sorted(nodes, key=lambda node: (self._is_quiet(node), node.index))
        self._rows = [self._node(node, now) for node in nodes]
        self.refresh_if_changed()
        return True

    def _is_quiet(self, node: NodeView) -> bool:
        """Whether nobody need look at a node first."""
        steps = self._steps.get(node.index, ())
        amiss = any(step.late or step.state in FAILURES for step in steps)
        return node.phase == "ready" and not (link_note(node) or node.notice or amiss)

    def head(self, width: int) -> list[Content]:
        return self._head

    def row_count(self, width: int) -> int:
        return len(self._rows)

    def row(self, index: int, width: int) -> Content:
        return self._rows[index]

    def _node(self, node: NodeView, now: float) -> Content:
        mark = node_look(node.phase)
        reached = len(_ROAD) if node.phase == "gone" else _ROAD.index(node.phase) + 1
        style = "$muted" if node.phase == "gone" else mark.style
        parts = [(f" n{node.index:<3}", "bold")]
        # Who is at a job's step is ready; where there is little room, the step is worth more.
        if node.phase != "ready" or not self._steps.get(node.index) or self.size.width >= ROOMY:
            parts += [
                ("■" * reached, style),
                ("□" * (len(_ROAD) - reached), "$muted"),
                (f" {mark.text:<11}", mark.style),
                (f"{_lasts(node, now):>6}", "$muted"),
            ]
        if node.retry_at is not None and node.retry_at > now:
            parts.append((f"  retry {duration(node.retry_at - now)}", "$text-warning"))
        if said := taken_back(node, now):
            parts.append((f"  ! {said}", "$text-error" if node.is_taken_back else "$text-warning"))
        if note := link_note(node):
            parts.append((f"  ! {note}", "$text-error"))
        elif steps := self._steps.get(node.index):
            parts += _steps(steps)
        elif said := node.detail or node.address:
            parts.append((f"  {clip(said, 160)}", "$muted"))
        return Content.assemble(*parts)


def _steps(steps: Sequence[StepOnNode]) -> Iterator[tuple[str, str]]:
    """The steps of a job on a node, the newest first, which is never cut off, with the time in each."""
    for step in reversed(steps):
        mark = look(step.state)
        lasts = duration if step.state == "running" else took
        time = "" if step.seconds is None else f" {lasts(step.seconds)}"
        style = "$muted" if step.state in ("returned", "collateral") else mark.style
        yield f"  {mark.glyph} {clip(step.name, 20)}{time}", style
        if step.late:
            yield " ! others wait for it", "$text-warning"


def _lasts(node: NodeView, now: float) -> str:
    """How long it has been where it is: by the second while it is on its way."""
    return (age if node.phase in ("ready", "gone") else duration)(now - node.since)
