"""Root cause of a run: the first real failure among the outcomes of its ranks.

When one rank fails, its peers often fail too, because their collectives lose a connection. Such secondary failures
(echoes) must not hide the cause.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from skyward_core.model.outcomes_states_and_alerts import Outcome, RootCause, RunStatus

REAL, DOUBTFUL, ECHO = range(3)
ECHO_WAIT = 0.25  # Seconds to wait after a failure that may be an echo, because the real failure may arrive later.


# Messages of gloo and NCCL. Exceptions of several types contain these messages.
_TRANSPORT = (
    r"gloo/(transport|rendezvous)/|\bGloo \w+ failed: |monitoredBarrier"
    r"|remote process exited or there was a network error"
)
_PLAIN = r"Connection (reset|closed) by peer|Broken pipe|Socket Timeout"
_CARRIERS = ("RuntimeError", "ValueError", "JaxRuntimeError", "XlaRuntimeError", "InternalError")
_TENSORFLOW = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")


def _is_peer_loss(kind: str, message: str) -> bool:
    library, name = kind.partition(".")[0], kind.rpartition(".")[2]
    if library == "torch" and name.startswith("Dist"):
        return True  # for example DistNetworkError, DistStoreError or DistBackendError
    if library in ("jax", "jaxlib") and re.match(r"(UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ", message):
        return True
    if library == "tensorflow" and name in _TENSORFLOW:
        return True
    if kind == "RuntimeError" and re.fullmatch(_PLAIN, message):
        return True
    return name in _CARRIERS and re.search(_TRANSPORT, message) is not None


# Messages of outcomes of ranks that were stopped on request, or because another rank failed.
CANCELLED = "the run was cancelled"
REQUESTED_STOPS = (CANCELLED, "the pool is torn down")
INTENDED_STOPS = (*REQUESTED_STOPS, "another rank failed")


def is_failure(outcome: Outcome) -> bool:
    """Check whether an outcome is a failure. A rank that returned or was stopped has not failed."""
    return outcome.kind in ("raised", "exited", "lost")


def is_symptom(outcome: Outcome) -> bool:
    """Check whether a failure looks like the echo of a peer's failure."""
    return cause_rank(outcome) > REAL


def cause_rank(outcome: Outcome) -> int:
    """Return how likely a failure is only a consequence of another failure.

    Returns:
        ECHO if a rank only reports that it lost its peers. DOUBTFUL if the rank probably lost its peers, but may have
            failed itself: JAX's runtime aborts a process that lost its peers, and a failed assertion aborts a process,
            too. Otherwise REAL.
    """
    error = outcome.error
    if outcome.kind == "exited":
        return DOUBTFUL if outcome.signal == signal.SIGABRT else REAL
    if outcome.kind != "raised" or error is None:
        return REAL
    if error.type in ("ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError"):
        return DOUBTFUL
    return ECHO if _is_peer_loss(error.type, error.message) else REAL


def root_cause(arrived: Iterable[Outcome]) -> RootCause | None:
    """Return the root cause among outcomes in order of arrival.

    None if all ranks returned or were stopped on request. Ranks that only lost peers which were stopped on request are
    no cause either.
    """
    outcomes = list(arrived)
    failures = [outcome for outcome in outcomes if is_failure(outcome)]
    stops = [each.error.message for each in outcomes if each.kind == "collateral" and each.error is not None]
    if any(message.endswith(REQUESTED_STOPS) for message in stops) and all(map(is_symptom, failures)):
        return None
    if failures:
        return RootCause.from_outcome(min(failures, key=cause_rank))
    stopped = [outcome for outcome in outcomes if outcome.kind == "collateral" and not _is_requested_stop(outcome)]
    return RootCause.from_outcome(stopped[0]) if stopped else None


def summarize_outcomes(arrived: Iterable[Outcome]) -> tuple[RunStatus, RootCause | None]:
    """Return the final state and the root cause of a run whose calls have all ended."""
    outcomes = list(arrived)
    cause = root_cause(outcomes)
    done = all(outcome.kind == "returned" for outcome in outcomes)
    return "done" if done else "failed" if cause else "cancelled", cause


def _is_requested_stop(stopped: Outcome) -> bool:
    """Check whether a rank was stopped on request: the run was cancelled, or the pool torn down."""
    message = stopped.error.message if stopped.error is not None else ""
    return not message or message.startswith("not started") or message.endswith(INTENDED_STOPS)
