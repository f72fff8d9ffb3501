"""The first real failure, told from its echoes: what PyTorch 2.13 and JAX 0.10 were seen to say when a peer died."""

from __future__ import annotations

import itertools
import signal

import pytest

from skyward_core.model.outcomes import ErrorInfo, Outcome, RootCause
from skyward_core.model.root_cause import is_failure, is_symptom, root_cause

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
HINT = "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
ECHOES = [
    (
        "RuntimeError",
        f"{GLOO}pair.cc:537] Read error [127.0.0.1]:25494: Connection reset by peer. This is typically caused by a "
        f"remote worker hanging or bugs in the application. {HINT}",
    ),
    (
        "RuntimeError",
        f"{GLOO}pair.cc:553] Connection closed by peer [127.0.0.1]:26504. This is typically caused by a remote worker "
        f"crashing. {HINT}",
    ),
    ("RuntimeError", f"{GLOO}unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete"),
    (
        "RuntimeError",
        f"{GLOO}unbound_buffer.cc:129] Timed out waiting 12000ms for send operation to complete",
    ),
    (
        "RuntimeError",
        "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 1800000 ms\n Original exception: \n"
        f"{GLOO}pair.cc:537] Read error [127.0.0.1]:58587: Connection reset by peer.",
    ),
    (
        "RuntimeError",
        "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
        "Please check rank 0 logs for faulty rank.",
    ),
    ("torch.distributed.DistNetworkError", "Connection reset by peer"),
    (
        "torch.distributed.DistNetworkError",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    ),
    (
        "torch.distributed.DistNetworkError",
        "The client socket has timed out after 12000ms while trying to connect to (127.0.0.1, 38777).",
    ),
    ("torch.distributed.DistStoreError", "wait timeout after 12000ms, keys: /default_pg/0//cpu//0/0"),
    (
        "torch.distributed.DistStoreError",
        "Timed out after 13 seconds waiting for clients. 2/3 clients joined.",
    ),
    (
        "ValueError",
        "UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error "
        "[127.0.0.1]:25761: Connection reset by peer",
    ),
    (
        "jax.errors.JaxRuntimeError",
        "UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
        "[127.0.0.1]:48041",
    ),
    ("jax.errors.JaxRuntimeError", "UNAVAILABLE: Failed to send RPC to coordination service."),
    ("jax.errors.JaxRuntimeError", "DEADLINE_EXCEEDED: Barrier timed out."),
    ("RuntimeError", "Connection reset by peer"),
]

REAL = [
    ("ValueError", "mine"),
    ("RuntimeError", "peer review failed"),
    ("RuntimeError", "the feature store is unavailable"),
    ("RuntimeError", "a barrier island, a heartbeat, a broken pipe dream"),
    ("RuntimeError", "no gloo on this roof"),
    ("RuntimeError", "NCCL is not built in"),
    ("RuntimeError", "CUDA error: an illegal memory access was encountered"),
    ("torch.OutOfMemoryError", "CUDA out of memory."),
    ("ValueError", "UNKNOWN: column"),
    ("ValueError", "ABORTED: by the curator"),
    ("jax.errors.JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes."),
    ("jax.errors.JaxRuntimeError", "INVALID_ARGUMENT: shapes do not match"),
    ("requests.exceptions.ConnectionError", "Connection reset by peer"),
    ("mine.DistrictError", "Connection closed by peer"),
    ("KeyError", "'gloo/transport/'"),
    ("skyward_core.model.errors.NotPicklableError", "the result of f() cannot travel back"),
]


def raised(rank: int, type_: str, message: str) -> Outcome:
    return Outcome(rank, rank, rank, "raised", error=ErrorInfo(type_, message, "Traceback …"))


def exited(rank: int, code: int | None = None, number: int | None = None) -> Outcome:
    return Outcome(rank, rank, rank, "exited", error=ErrorInfo("RankExit", "gone"), exit_code=code, signal=number)


KILLED = exited(9, number=signal.SIGKILL)
ABORTED = exited(8, number=signal.SIGABRT)
LOST = Outcome(7, 7, 7, "lost", error=ErrorInfo("NodeLost", "its host is gone"))
RETURNED = Outcome(6, 6, 6, "returned")
STOPPED = Outcome(5, 5, 5, "collateral", error=ErrorInfo("Stopped", "another rank failed"))


def culprit(*arrived: Outcome) -> int:
    found = root_cause(arrived)
    assert found is not None
    return found.rank


@pytest.mark.parametrize(("type_", "message"), ECHOES, ids=range(len(ECHOES)))
def test_an_echo_that_came_first_is_not_the_cause(type_: str, message: str) -> None:
    echo = raised(0, type_, message)
    assert is_failure(echo)
    assert is_symptom(echo)
    for real in (
        KILLED,
        LOST,
        exited(1, code=3),
        exited(1, number=signal.SIGSEGV),
        raised(1, "ValueError", "mine"),
    ):
        assert culprit(echo, RETURNED, real, STOPPED) == real.rank
    assert culprit(echo, ABORTED) == ABORTED.rank, "an abort may be a cause, this cannot"


@pytest.mark.parametrize(("type_", "message"), REAL, ids=range(len(REAL)))
def test_what_a_users_code_says_is_no_echo(type_: str, message: str) -> None:
    real = raised(1, type_, message)
    assert not is_symptom(real)
    for echo in (
        raised(0, *ECHOES[0]),
        ABORTED,
        raised(0, "ConnectionResetError", "[Errno 104] reset by peer"),
    ):
        assert culprit(echo, real) == culprit(real, echo) == 1
    assert culprit(real, KILLED) == 1, "of two real failures the first counts"
    assert culprit(KILLED, real) == KILLED.rank


def test_in_any_order_the_real_one_is_found() -> None:
    outcomes = [raised(0, *ECHOES[0]), raised(1, *ECHOES[6]), ABORTED, STOPPED, RETURNED, KILLED]
    assert {culprit(*order) for order in itertools.permutations(outcomes)} == {KILLED.rank}


def test_where_all_are_echoes_the_first_counts() -> None:
    assert culprit(raised(2, *ECHOES[1]), raised(1, *ECHOES[0])) == 2
    assert culprit(ABORTED, exited(1, number=signal.SIGABRT)) == ABORTED.rank
    assert culprit(ABORTED) == ABORTED.rank


def test_a_connection_of_the_users_own_may_be_a_cause() -> None:
    own = raised(1, "ConnectionResetError", "[Errno 104] Connection reset by peer")
    assert is_symptom(own)
    assert culprit(raised(0, *ECHOES[0]), own) == 1


def test_without_a_failure_there_is_no_cause() -> None:
    assert root_cause([]) is None
    assert root_cause([RETURNED, STOPPED]) is None


def test_the_cause_carries_what_a_command_should_exit_with() -> None:
    assert root_cause([KILLED]) == RootCause(9, "exited", "RankExit", "gone", 137)
    assert root_cause([exited(1, code=3)]) == RootCause(1, "exited", "RankExit", "gone", 3)
    assert root_cause([raised(1, "ValueError", "mine")]) == RootCause(1, "raised", "ValueError", "mine", None)
    assert root_cause([LOST]) == RootCause(7, "lost", "NodeLost", "its host is gone", None)
    interrupted = root_cause([raised(1, "KeyboardInterrupt", "")])
    assert interrupted is not None and interrupted.exit_code == 130  # as plain Python
