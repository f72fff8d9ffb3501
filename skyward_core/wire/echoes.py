"""How far a rank's failure is from being a cause.

When a rank dies, the others fail too: their collective loses its peer. Such echoes often arrive before the news of
the death itself. They are told by what gloo, NCCL, PyTorch's stores, JAX's coordination service and TensorFlow's
collectives say then (seen with PyTorch 2.13 and JAX 0.10), and by nothing that a user's own code would say.
"""

from __future__ import annotations

import re
import signal

REAL, DOUBTFUL, ECHO = range(3)
SETTLE = 0.25  # seconds in which the real failure may still follow what looks like its echo

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


def doubt(kind: str, number: int | None, error: tuple[str, str] | None) -> int:
    """How far a failure is from being a cause.

    Args:
        kind: how the rank ended, as outcomes have it.
        number: the signal that ended it.
        error: its exception's type, and what that says.

    Returns:
        ECHO where a rank only says that it lost its peers; DOUBTFUL where that is likely, but it could have failed by
        itself (JAX's runtime aborts a process that has lost the others; so does a failed assertion); REAL else.
    """
    if kind == "exited":
        return DOUBTFUL if number == signal.SIGABRT else REAL
    if kind != "raised" or error is None:
        return REAL
    if error[0] in _SOCKETS:
        return DOUBTFUL
    return ECHO if _lost_its_peers(*error) else REAL


def _lost_its_peers(kind: str, message: str) -> bool:
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
