"""Which of several failures was the first real one.

When a rank dies, the others fail too: their collective loses its peer. Such echoes often arrive before the news of
the death itself. They are told by what gloo, NCCL, PyTorch's stores, JAX's coordination service and TensorFlow's
collectives say then (seen with PyTorch 2.13 and JAX 0.10), and by nothing that a user's own code would say.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from ...model.outcome import ErrorInfo, Outcome, RootCause

REAL, DOUBTFUL, ECHO = range(3)
# What outcomes say of ranks that were stopped because somebody wanted it so, or as another one had failed.
MEANT = (
    "the run was cancelled",
    "the pool is torn down",
    "another rank failed",
    ": cancel",
    ": fail-fast",
    ": timeout",
)

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


def is_failure(outcome: Outcome) -> bool:
    """Whether a rank failed by itself, rather than was stopped."""
    return outcome.kind in ("raised", "exited", "lost")


def is_symptom(outcome: Outcome) -> bool:
    """Whether a failure looks like the echo of a peer's."""
    return doubt(outcome) > REAL


def doubt(outcome: Outcome) -> int:
    """How far a failure is from being a cause.

    Returns:
        ECHO where a rank only says that it lost its peers; DOUBTFUL where that is likely, but it could have failed by
        itself (JAX's runtime aborts a process that has lost the others; so does a failed assertion); REAL else.
    """
    if outcome.kind == "exited":
        return DOUBTFUL if outcome.signal == signal.SIGABRT else REAL
    if outcome.kind != "raised" or outcome.error is None:
        return REAL
    if outcome.error.type in _SOCKETS:
        return DOUBTFUL
    return ECHO if _lost_its_peers(outcome.error) else REAL


def _lost_its_peers(error: ErrorInfo) -> bool:
    library, name = error.type.partition(".")[0], error.type.rpartition(".")[2]
    if library == "torch" and name.startswith("Dist"):
        return True  # DistNetworkError, DistStoreError, DistBackendError: they speak of nothing else
    if library in ("jax", "jaxlib") and _STATUS.match(error.message):
        return True
    if library == "tensorflow" and name in _TENSORFLOW:
        return True
    if error.type == "RuntimeError" and _PLAIN.fullmatch(error.message):
        return True
    return name in _CARRIERS and _TRANSPORT.search(error.message) is not None


def root_cause(arrived: Iterable[Outcome]) -> RootCause | None:
    """The root cause among outcomes in order of arrival; None when no rank failed, or was stopped that nobody meant."""
    outcomes = list(arrived)
    failures = [outcome for outcome in outcomes if is_failure(outcome)]
    if failures:
        return RootCause.of(min(failures, key=doubt))
    stopped = [outcome for outcome in outcomes if outcome.kind == "collateral" and not _was_meant(outcome)]
    return RootCause.of(stopped[0]) if stopped else None


def _was_meant(stopped: Outcome) -> bool:
    """Whether somebody asked for a rank to be stopped: for the run's or the pool's end."""
    said = stopped.error.message if stopped.error is not None else ""
    return not said or said.startswith("not started") or said.endswith(MEANT)
