"""Decision whether a failed run starts again: budgets by cause, progress, and pauses between attempts.

The functions are pure. Clients apply the decision in ``pool.runs.run``, and agents without a client in
``node.agent.restart_without_client``. As in SkyPilot's managed jobs, the budgets are separate: errors of the user's
code do not use up the restarts after lost machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from skyward_core.model.outcomes_states_and_alerts import Outcome, RestartCause, RootCause
from skyward_core.model.root_cause import ECHO, cause_rank, is_failure
from skyward_core.protocol.frame_codec import MAX_SHORT_TEXT
from skyward_core.protocol.frame_schemas_and_size_limits import GROWTH_STOP, PREEMPTED
from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.model.specs import Options
    from skyward_core.protocol.frame_types import AttemptEndKeys, AttemptKeys

# First and longest pause in seconds before a restart, after attempts without progress.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
MAX_SENT_MESSAGE = 300  # maximum characters of a failure's message that a frame contains
# Maximum consecutive attempts without progress, if the ranks log steps; after them, the run is not restarted.
MAX_IDLE_ATTEMPTS = 3

BUDGET_NAMES: Mapping[RestartCause, str] = {
    "error": "error_restarts",
    "loss": "restarts",
    "preemption": "preemption_restarts",
}
CAUSE_WORDS: Mapping[RestartCause, str] = {
    "error": "an error of the code",
    "loss": "a lost rank",
    "preemption": "a preemption",
    "growth": "the return of machines",
}


@value
class RestartLimits(Value):
    """Budgets of a run, with the names of ``Options``."""

    restarts: int
    error_restarts: int
    preemption_restarts: int | None = None


@value
class AttemptEnd(Value):
    """How a failed attempt ended.

    Attributes:
        number: Number of the attempt, from 1.
        cause: Cause of the failure.
        message: Root cause in words.
        signature: Hash of type and place of the root cause's exception (of type and message if the place is unknown);
            "" for causes other than errors.
        progress: Largest step that a rank logged until the end, in all attempts; None if no rank logs steps.
        lost_ranks: Ranks whose process, node or machine was lost, by their numbers in the run.
        reason: Budget that the restart used, in words.
        at: Unix time of the end; 0 if unknown.
        has_saved: Whether ranks saved a checkpoint file during the attempt. False for the first attempt.
    """

    number: int
    cause: RestartCause
    message: str
    signature: str = ""
    progress: float | None = None
    lost_ranks: tuple[int, ...] = ()
    reason: str = ""
    at: float = 0.0
    has_saved: bool = False

    def to_keys(self) -> AttemptEndKeys:
        """Return this end of an attempt as keys of a frame. The message is shortened, because the frame of each call
        contains the ends of all attempts.
        """
        return {
            "number": self.number, "cause": self.cause, "message": self.message[:MAX_SENT_MESSAGE],
            "signature": self.signature, "progress": self.progress, "lost": list(self.lost_ranks),
            "reason": self.reason, "at": self.at, "saved": self.has_saved,
        }  # fmt: skip

    @classmethod
    def from_keys(cls, keys: AttemptEndKeys) -> AttemptEnd:
        number, cause, message, signature = keys["number"], keys["cause"], keys["message"], keys["signature"]
        lost, saved = tuple(keys["lost"]), keys.get("saved", False)
        return cls(number, cause, message, signature, keys["progress"], lost, keys["reason"], keys["at"], saved)


def attempt_keys(
    number: int, limits: RestartLimits | Options, ends: Sequence[AttemptEnd], least_nodes: int | None = None
) -> AttemptKeys:
    """Return the attempt of a call in the format of the call's frame: all that the decision about a further attempt
    needs.
    """
    last = ends[-1] if ends else None
    keys: AttemptKeys = {
        "number": number, "restarts": limits.restarts, "error_restarts": limits.error_restarts,
        "cause": last.cause if last else "", "message": last.message[:MAX_SHORT_TEXT] if last else "",
        "lost": list(last.lost_ranks) if last else [], "ends": [end.to_keys() for end in ends],
    }  # fmt: skip
    if least_nodes is not None:
        keys["least_nodes"] = least_nodes
    if limits.preemption_restarts is not None:
        keys["preemption_restarts"] = limits.preemption_restarts
    return keys


def place_attempt(
    nodes: Sequence[int], away: Mapping[int, str], least_nodes: int | None
) -> tuple[tuple[int, ...], str]:
    """Choose the nodes of the next attempt.

    Args:
        nodes: Nodes of a whole gang. The first one is the head, without which no gang is formed.
        away: Lost nodes that have no replacement -> reason.
        least_nodes: Minimum number of nodes of a smaller gang; None if the gang must be whole.

    Returns:
        The nodes, and why there are fewer than usual. If there are none, why the attempt cannot start.
    """
    there = tuple(node for node in nodes if node not in away)
    lost = "; ".join(f"node {node} is lost: {reason}" for node, reason in away.items())
    if not away:
        return there, ""
    if nodes[0] in away:
        return (), lost
    if least_nodes is None or len(there) < least_nodes:
        least = f"; {len(there)} of at least {least_nodes} nodes are left" if least_nodes is not None else ""
        return (), lost + least
    return there, f"on {len(there)} of {len(nodes)} nodes, because {lost}"


@value
class RestartDecision(Value):
    """Whether another attempt starts.

    Attributes:
        restarts: Whether it starts.
        reason: Why no attempt starts, or which budget the attempt uses.
        pause: Seconds until the start.
        left: Further restarts that the budget of this cause allows; None if the number is unlimited.
        idle: Number of the last attempts without progress, if the decision depends on it; otherwise 0.
    """

    restarts: bool
    reason: str
    pause: float = 0.0
    left: int | None = None
    idle: int = 0


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
    elif culprit is not None and culprit.kind == "collateral" and root.message.endswith(GROWTH_STOP):
        cause = "growth"  # the client stopped the ranks for a restart on more nodes, but died before the restart
    elif culprit is None or _is_loss(culprit) or cause_rank(culprit) == ECHO:
        cause = "loss"
    message = f"{root.rank_prefix}{root.outcome}: {root.message}" if root.message else f"{root.rank_prefix}{root.type}"
    signature = _signature(culprit) if cause == "error" and culprit is not None else ""
    return AttemptEnd(number, cause, message, signature, progress, lost)


def _is_loss(outcome: Outcome) -> bool:
    """Check whether a process or its node was lost, rather than ended by user code."""
    # If a process has no exit status, it ended while no agent was running, so it was probably killed together with the
    # agent.
    is_unknown = outcome.kind == "exited" and outcome.exit_code is None
    is_timeout = outcome.error is not None and outcome.error.type == "TimeoutError"
    is_ended = outcome.kind == "lost" or outcome.signal is not None or (is_unknown and not is_timeout)
    return is_failure(outcome) and is_ended


def _signature(outcome: Outcome) -> str:
    from hashlib import blake2b  # imported late, because most agents never describe a failure

    error = outcome.error
    # Messages may contain numbers that differ in each attempt, so compare them only if the place is unknown.
    parts = (outcome.kind,) if error is None else (error.type, last_place(error.traceback) or error.message)
    return blake2b("\n".join((*parts, str(outcome.exit_code))).encode(), digest_size=16).hexdigest()


def last_place(traceback: str) -> str:
    """Return the line of a traceback that names the file and line of the exception; "" if there is none."""
    places = [line.strip() for line in traceback.splitlines() if line.lstrip().startswith("File ")]
    return places[-1] if places else ""


def decide_restart(ends: Sequence[AttemptEnd], limits: RestartLimits | Options) -> RestartDecision:
    """Decide whether a run starts again after a failed attempt.

    Args:
        ends: Ends of all attempts so far, in order. Not empty.
        limits: Budgets of the run.
    """
    last = ends[-1]
    limit = getattr(limits, BUDGET_NAMES[last.cause]) if last.cause in BUDGET_NAMES else None
    used = sum(each.cause == last.cause for each in ends)
    if last.cause == "growth":
        return RestartDecision(True, f"restart after {CAUSE_WORDS[last.cause]}")
    if limit == 0:
        return RestartDecision(False, "")
    if limit is not None and used > limit:
        times = "once" if limit == 1 else f"{limit} times"
        words = f"the run was restarted {times} after {CAUSE_WORDS[last.cause]}, which is the limit"
        return RestartDecision(False, f"{words} ({BUDGET_NAMES[last.cause]}={limit})")
    idle = _attempts_without_progress(ends)
    before = ends[-2] if len(ends) > 1 else None
    if before is not None and idle and last.signature and last.signature == before.signature:
        words = f"attempts {before.number} and {last.number} failed with the same error"
        return RestartDecision(False, words, idle=idle)
    if last.progress is not None and idle >= MAX_IDLE_ATTEMPTS:
        words = f"{idle} attempts ended at step {last.progress:g} or earlier, without progress"
        return RestartDecision(False, words, idle=idle)
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (idle - 1)) if idle else 0.0
    count = "" if limit is None else f" of {limit}"
    left = None if limit is None else limit - used
    return RestartDecision(True, f"restart {used}{count} after {CAUSE_WORDS[last.cause]}", pause, left, idle)


def _attempts_without_progress(ends: Sequence[AttemptEnd]) -> int:
    """Return how many of the last attempts neither logged a greater step than earlier ones nor saved a checkpoint."""
    count = 0
    for at in range(len(ends) - 1, 0, -1):
        best = max((each.progress for each in ends[:at] if each.progress is not None), default=None)
        now = ends[at].progress
        if ends[at].has_saved or (now is not None and (best is None or now > best)):
            break
        count += 1
    return count
