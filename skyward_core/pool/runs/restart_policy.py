"""Decision whether a failed run starts again: budgets by cause, progress, and pauses between attempts.

The functions are pure; ``run.Run`` applies the decision. As in SkyPilot's managed jobs, the budgets are separate:
errors of the user's code do not use up the restarts after lost machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from skyward_core.model.outcomes import Outcome, RestartCause, RootCause
from skyward_core.model.root_cause import ECHO, cause_rank, is_failure
from skyward_core.protocol.frame_schema import PREEMPTED
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.model.specs import Options

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a restart after an attempt without progress
MAX_IDLE_ATTEMPTS = 3  # consecutive attempts that may end without progress, if progress can be measured

BUDGET_NAMES: Mapping[RestartCause, str] = {"error": "error_restarts", "loss": "restarts", "preemption": ""}
CAUSE_WORDS: Mapping[RestartCause, str] = {
    "error": "an error of the code",
    "loss": "a lost rank",
    "preemption": "a preemption",
}


@value
class AttemptEnd(Value):
    """How a failed attempt ended.

    Attributes:
        number: Number of the attempt, from 1.
        cause: Cause of the failure.
        message: Root cause in words.
        signature: Type, message and place of the root cause's exception; "" for causes other than errors.
        progress: Largest step that a rank logged until the end, in all attempts; None if no rank logs steps.
        lost_ranks: Ranks whose process, node or machine was lost, as the run counts its ranks.
    """

    number: int
    cause: RestartCause
    message: str
    signature: str = ""
    progress: float | None = None
    lost_ranks: tuple[int, ...] = ()


@value
class RestartDecision(Value):
    """Whether another attempt starts.

    Attributes:
        restarts: Whether it starts.
        reason: Why no attempt starts, or which budget the attempt uses.
        pause: Seconds until the start.
    """

    restarts: bool
    reason: str
    pause: float = 0.0


def describe_end(
    number: int, root: RootCause, outcomes: Iterable[Outcome], progress: float | None, *, preempted: bool = False
) -> AttemptEnd:
    """Describe the end of a failed attempt.

    Args:
        number: Number of the attempt.
        root: Root cause of the failure.
        outcomes: Outcomes of the attempt.
        progress: Largest logged step; None if no rank logs steps.
        preempted: Whether the machine of a rank was preempted.
    """
    outcomes = list(outcomes)
    lost = tuple(sorted(each.index for each in outcomes if _is_loss(each)))
    culprit = next((each for each in outcomes if RootCause.from_outcome(each) == root), None)
    cause: RestartCause = "error"
    if preempted or root.type == PREEMPTED:
        cause = "preemption"
    elif culprit is None or _is_loss(culprit) or cause_rank(culprit) == ECHO:
        cause = "loss"
    message = f"{root.rank_prefix}{root.outcome}: {root.message}" if root.message else f"{root.rank_prefix}{root.type}"
    signature = _signature(culprit) if cause == "error" and culprit is not None else ""
    return AttemptEnd(number, cause, message, signature, progress, lost)


def _is_loss(outcome: Outcome) -> bool:
    """Check whether a process or its node was lost, rather than ended by user code."""
    # A process without a known status ended while no agent was running, probably together with its agent.
    is_unknown = outcome.kind == "exited" and outcome.exit_code is None
    is_timeout = outcome.error is not None and outcome.error.type == "TimeoutError"
    is_ended = outcome.kind == "lost" or outcome.signal is not None or (is_unknown and not is_timeout)
    return is_failure(outcome) and is_ended


def _signature(outcome: Outcome) -> str:
    error = outcome.error
    if error is None:
        return outcome.kind
    places = [line.strip() for line in error.traceback.splitlines() if line.lstrip().startswith("File ")]
    return "\n".join((error.type, error.message, places[-1] if places else "", str(outcome.exit_code)))


def decide_restart(ends: Sequence[AttemptEnd], options: Options) -> RestartDecision:
    """Decide whether a run starts again after a failed attempt.

    Args:
        ends: Ends of all attempts so far, in order. Not empty.
        options: Options of the pool, which contain the budgets.
    """
    last = ends[-1]
    budgets = {"error": options.error_restarts, "loss": options.restarts, "preemption": None}
    limit, used = budgets[last.cause], sum(each.cause == last.cause for each in ends)
    if options.on_loss != "restart":
        return RestartDecision(False, "")
    if limit == 0:
        return RestartDecision(False, "")
    if limit is not None and used > limit:
        times = "once" if limit == 1 else f"{limit} times"
        words = f"the run was restarted {times} after {CAUSE_WORDS[last.cause]}, which is the limit"
        return RestartDecision(False, f"{words} ({BUDGET_NAMES[last.cause]}={limit})")
    idle = _attempts_without_progress(ends)
    before = ends[-2] if len(ends) > 1 else None
    if before is not None and idle and last.signature and last.signature == before.signature:
        return RestartDecision(False, f"attempts {before.number} and {last.number} failed with the same error")
    if last.progress is not None and idle >= MAX_IDLE_ATTEMPTS:
        return RestartDecision(False, f"{idle} attempts ended at step {last.progress:g} or earlier, without progress")
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (idle - 1)) if idle else 0.0
    count = "" if limit is None else f" of {limit}"
    return RestartDecision(True, f"restart {used}{count} after {CAUSE_WORDS[last.cause]}", pause)


def _attempts_without_progress(ends: Sequence[AttemptEnd]) -> int:
    """Return how many of the last attempts logged no greater step than an earlier attempt."""
    count = 0
    for at in range(len(ends) - 1, 0, -1):
        best = max((each.progress for each in ends[:at] if each.progress is not None), default=None)
        now = ends[at].progress
        if now is not None and (best is None or now > best):
            break
        count += 1
    return count
