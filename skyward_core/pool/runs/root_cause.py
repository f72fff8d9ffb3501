"""Which of several failures was the first real one; what looks like an echo is told by :mod:`...wire.echoes`."""

from __future__ import annotations

from collections.abc import Iterable

from ...model.outcome import Outcome, RootCause
from ...model.states import RunStatus
from ...wire import echoes

# What outcomes say of ranks that were stopped because somebody wanted it so, or as another one had failed.
MEANT = (
    "the run was cancelled",
    "the pool is torn down",
    "another rank failed",
)


def is_failure(outcome: Outcome) -> bool:
    """Whether a rank failed by itself, rather than was stopped."""
    return outcome.kind in ("raised", "exited", "lost")


def is_symptom(outcome: Outcome) -> bool:
    """Whether a failure looks like the echo of a peer's."""
    return doubt(outcome) > echoes.REAL


def doubt(outcome: Outcome) -> int:
    """How far a failure is from being a cause; see :mod:`...wire.echoes`."""
    error = outcome.error
    return echoes.doubt(outcome.kind, outcome.signal, None if error is None else (error.type, error.message))


def root_cause(arrived: Iterable[Outcome]) -> RootCause | None:
    """The root cause among outcomes in order of arrival; None when no rank failed, or was stopped that nobody meant."""
    outcomes = list(arrived)
    failures = [outcome for outcome in outcomes if is_failure(outcome)]
    if failures:
        return RootCause.of(min(failures, key=doubt))
    stopped = [outcome for outcome in outcomes if outcome.kind == "collateral" and not _was_meant(outcome)]
    return RootCause.of(stopped[0]) if stopped else None


def end_of(arrived: Iterable[Outcome]) -> tuple[RunStatus, RootCause | None]:
    """Return how a run ended whose calls have all ended, and its root cause."""
    outcomes = list(arrived)
    cause = root_cause(outcomes)
    done = all(outcome.kind == "returned" for outcome in outcomes)
    return "done" if done else "failed" if cause else "cancelled", cause


def _was_meant(stopped: Outcome) -> bool:
    """Whether somebody asked for a rank to be stopped: for the run's or the pool's end."""
    said = stopped.error.message if stopped.error is not None else ""
    return not said or said.startswith("not started") or said.endswith(MEANT)
