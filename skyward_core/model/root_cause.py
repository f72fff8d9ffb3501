"""The root cause of a run: the first real failure among the outcomes of its ranks."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from skyward_core.model.outcomes import Outcome, RootCause, RunStatus

REAL, DOUBTFUL, ECHO = range(3)
ECHO_WAIT = 0.25  # seconds in which the real failure may still follow what looks like its echo


# Where gloo's and NCCL's own words are, whatever exception carries them.
_TRANSPORT = re.compile(
    r"gloo/(transport|rendezvous)/|\bGloo \w+ failed: |monitoredBarrier"
    r"|remote process exited or there was a network error"
)
_PLAIN = re.compile(r"Connection (reset|closed) by peer|Broken pipe|Socket Timeout")
_STATUS = re.compile(r"(UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")
_CARRIERS = ("RuntimeError", "ValueError", "JaxRuntimeError", "XlaRuntimeError", "InternalError")
_TENSORFLOW = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
_SOCKETS = ("ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError")


def _is_peer_loss(kind: str, message: str) -> bool:
    library, name = kind.partition(".")[0], kind.rpartition(".")[2]
    if library == "torch" and name.startswith("Dist"):
        return True  # DistNetworkError, DistStoreError, DistBackendError: they speak of nothing else
    if library in ("jax", "jaxlib") and _STATUS.match(message):
        return True
    if library == "tensorflow" and name in _TENSORFLOW:
        return True
    if kind == "RuntimeError" and _PLAIN.fullmatch(message):
        return True
    return name in _CARRIERS and _TRANSPORT.search(message) is not None


# What outcomes say of ranks that were stopped because somebody wanted it so, or as another one had failed.
INTENDED_STOPS = (
    "the run was cancelled",
    "the pool is torn down",
    "another rank failed",
)


def is_failure(outcome: Outcome) -> bool:
    """Whether a rank failed by itself, rather than was stopped."""
    return outcome.kind in ("raised", "exited", "lost")


def is_symptom(outcome: Outcome) -> bool:
    """Whether a failure looks like the echo of a peer's."""
    return cause_rank(outcome) > REAL


def cause_rank(outcome: Outcome) -> int:
    """Return how far a failure is from being a cause.

    Returns:
        ECHO if a rank only says that it lost its peers; DOUBTFUL if that is likely, but it could have failed by
        itself (JAX's runtime aborts a process that has lost the others; so does a failed assertion); REAL else.
    """
    error = outcome.error
    if outcome.kind == "exited":
        return DOUBTFUL if outcome.signal == signal.SIGABRT else REAL
    if outcome.kind != "raised" or error is None:
        return REAL
    if error.type in _SOCKETS:
        return DOUBTFUL
    return ECHO if _is_peer_loss(error.type, error.message) else REAL


def root_cause(arrived: Iterable[Outcome]) -> RootCause | None:
    """The root cause among outcomes in order of arrival; None when no rank failed, or was stopped that nobody meant."""
    outcomes = list(arrived)
    failures = [outcome for outcome in outcomes if is_failure(outcome)]
    if failures:
        return RootCause.from_outcome(min(failures, key=cause_rank))
    stopped = [outcome for outcome in outcomes if outcome.kind == "collateral" and not _is_requested_stop(outcome)]
    return RootCause.from_outcome(stopped[0]) if stopped else None


def summarize_outcomes(arrived: Iterable[Outcome]) -> tuple[RunStatus, RootCause | None]:
    """Return how a run ended whose calls have all ended, and its root cause."""
    outcomes = list(arrived)
    cause = root_cause(outcomes)
    done = all(outcome.kind == "returned" for outcome in outcomes)
    return "done" if done else "failed" if cause else "cancelled", cause


def _is_requested_stop(stopped: Outcome) -> bool:
    """Whether somebody asked for a rank to be stopped: for the run's or the pool's end."""
    said = stopped.error.message if stopped.error is not None else ""
    return not said or said.startswith("not started") or said.endswith(INTENDED_STOPS)
