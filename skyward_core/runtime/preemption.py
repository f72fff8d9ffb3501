"""Callbacks of user code for preemption notices, for example to save a checkpoint before a spot machine is preempted.

The agent of a rank's node writes notices to a file and sends a signal to the rank's processes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from time import monotonic  # imported by name, because user code may replace the functions of `time`
from typing import Any, TypeVar

from skyward_core.protocol.frame_codec import CANCELLED_NODE

NOTICE_SIGNAL = signal.SIGURG  # signal that announces a notice; processes without a handler ignore it
NOTICE_GRACE = 10.0  # seconds after a machine's end for which its notice is still delivered to ranks of other nodes
MAX_ARGUMENTS = 2  # maximum number of arguments that an on_preempt callback may require

C = TypeVar("C", bound=Callable[..., object])


class PreemptionNotice:
    """Notice that a node's machine will be preempted. Not a named tuple, which would delay workers by a millisecond.

    Attributes:
        node: Index of the node; CANCELLED_NODE or less if a run is cancelled instead.
        here: Whether the notice is for this rank's node.
        ends: Time on this machine's monotonic clock at which the noticed machine ends.
        pids: Processes that receive SIGTERM because of the notice.
        sent: Whether SIGTERM was sent.
    """

    __slots__ = ("ends", "here", "node", "pids", "sent")

    def __init__(self, node: int, here: bool, ends: float, pids: tuple[int, ...], sent: bool = False) -> None:
        self.node, self.here, self.ends, self.pids, self.sent = node, here, ends, pids, sent

    def to_json(self) -> list[Any]:
        """Return the constructor's arguments in order, for the file of notices."""
        return [self.node, self.here, self.ends, self.pids, self.sent]


class _Callback:
    """Callback that user code registered, with the notices for which it has run."""

    def __init__(self, callback: Callable[..., object], takes: int) -> None:
        self._callback, self._takes = callback, takes
        self._deliveries: dict[tuple[int, float], object] = {}

    def call_once(self, notice: PreemptionNotice) -> None:
        """Run the callback unless it has already run for this notice, possibly in another thread."""
        marker = object()
        if self._deliveries.setdefault((notice.node, notice.ends), marker) is not marker:
            return
        try:
            node = max(CANCELLED_NODE, notice.node)
            self._callback(*(max(0.0, notice.ends - monotonic()), node)[: self._takes])
        except Exception:  # noqa: BLE001  other callbacks must run, and the call continues
            import traceback

            name = getattr(self._callback, "__qualname__", None) or repr(self._callback)
            text = f"skyward: {name:.200}, a callback of on_preempt, failed:\n{traceback.format_exc()}"
            # Write to the descriptor, because a signal handler that interrupts a print must not use sys.stderr.
            os.write(2, text.encode(errors="replace"))


_notice_file = ""
_is_gang_call = False
_callbacks: list[_Callback] = []
_persistent_callbacks = 0  # number of callbacks that plugins' contexts registered, which are the first ones of the list
# (node, deadline) of the notices whose SIGTERM this process has received
_received_sigterms: set[tuple[int, float]] = set()


def on_preempt(callback: C) -> C:
    """Register a callback for preemption notices of the pool's machines, for example cloud spot machines.

        @sky.on_preempt
        def save(seconds: float) -> None:
            checkpoint.save()

    The callback runs once for each notice, on the main thread of every rank of the gang, interrupting the rank's code,
    in the order of registration. If a notice exists already, the callback runs at once in the calling thread. The
    registration ends with the call that registers it. The rank continues after the callback. If the function returns
    before the machine ends, its value is the result as usual. Without preemptions, and off a pool, nothing is called.

    Args:
        callback: Called with as many positional arguments as it requires, at most two: the seconds until the machine's
            end, and the index of its node. An exception is written to the rank's log. ``sys.exit()`` ends the rank
            after all callbacks have run.

    Returns:
        The callback, so that ``@sky.on_preempt`` works as a decorator.

    Raises:
        TypeError: If the callback is not callable, or requires more arguments.
    """
    added = _Callback(callback, _count_required_arguments(callback))
    _callbacks.append(added)
    if _notice_file and signal.getsignal(NOTICE_SIGNAL) == signal.SIG_DFL:
        with suppress(ValueError):
            # Only the main thread can set handlers. Without a handler, the notice's SIGTERM runs the callback.
            signal.signal(NOTICE_SIGNAL, _on_signal)
    for notice in pending_notices():
        added.call_once(notice)
    return callback


def _count_required_arguments(callback: Callable[..., object]) -> int:
    """Return the number of positional arguments that a callback function requires."""
    from inspect import Parameter, signature  # imported late, because most scripts register no callback

    if not callable(callback):
        raise TypeError(f"on_preempt takes a function, got {callback!r:.80}")
    try:
        parameters = signature(callback).parameters.values()
    except ValueError:
        return 0  # Some functions written in C have no signature.
    places = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters if each.default is Parameter.empty]
    if any(each.kind is Parameter.KEYWORD_ONLY for each in required):
        raise TypeError("a callback of on_preempt cannot require keyword arguments")
    count = sum(each.kind in places for each in required)
    if count > MAX_ARGUMENTS:
        raise TypeError(
            f"a callback of on_preempt gets the seconds left and the node, but this one requires {count} arguments"
        )
    return count


# -- in the process that runs user code ----------------------------------------------------------------------


def install_handler(file: str, *, expected: bool = True) -> None:
    """Install the signal handler that reads and delivers notices. Call this on the main thread.

    Args:
        file: File in which the agent writes notices.
        expected: Whether the machine may be preempted. Otherwise only cancelled runs have notices, so the signal keeps
            its default until a callback is registered.
    """
    global _notice_file
    _notice_file = file
    if expected:
        signal.signal(NOTICE_SIGNAL, _on_signal)


def _on_signal(*_: object) -> None:
    run_callbacks()


def pending_notices() -> list[PreemptionNotice]:
    """Return the saved notices that concern this rank.

    These are notices for this machine or process, and during a gang's call also notices for other machines of the gang
    that may still run.
    """
    now, pid = monotonic(), os.getpid()

    def is_for_gang(notice: PreemptionNotice) -> bool:
        return _is_gang_call and notice.node > CANCELLED_NODE and now < notice.ends + NOTICE_GRACE

    return [each for each in read_notices(_notice_file) if each.here or pid in each.pids or is_for_gang(each)]


def run_callbacks() -> bool:
    """Call each callback with the notices for which it has not run yet. Return whether any callback is registered.

    Raises:
        SystemExit: If a callback requested the end.
    """
    leaving: SystemExit | None = None
    for notice in pending_notices():
        for each in tuple(_callbacks):
            try:
                each.call_once(notice)
            except SystemExit as error:
                leaving = leaving or error
    if leaving is not None:
        raise leaving
    return bool(_callbacks)


def is_sigterm_announced() -> bool:
    """Check whether a saved notice states that this process will get SIGTERM."""
    return any(os.getpid() in each.pids for each in read_notices(_notice_file))


def has_callbacks() -> bool:
    """Check whether the current call has registered a callback."""
    return len(_callbacks) > _persistent_callbacks


def is_preemption_sigterm() -> bool:
    """Check whether a SIGTERM that was just received belongs to a preemption notice. Otherwise it stops the rank."""
    for each in _pending_sigterms():
        _received_sigterms.add((each.node, each.ends))
        return True
    return False


def is_sigterm_pending() -> bool:
    """Check whether the agent has sent the SIGTERM of a notice, but Python has not handled it yet."""
    return bool(_pending_sigterms())


def _pending_sigterms() -> list[PreemptionNotice]:
    return [
        each
        for each in read_notices(_notice_file)
        if os.getpid() in each.pids and (each.node, each.ends) not in _received_sigterms
    ]


def start_call(in_gang: bool) -> None:
    """Record whether the call that starts is a gang's call. Only for such calls are notices of other nodes relevant."""
    global _is_gang_call
    _is_gang_call = in_gang


def is_gang_call() -> bool:
    """Check whether all ranks run the current or the last call."""
    return _is_gang_call


def keep_callbacks() -> None:
    """Keep all callbacks registered so far, which contexts of plugins have registered, for all calls."""
    global _persistent_callbacks
    _persistent_callbacks = len(_callbacks)


def drop_callbacks() -> None:
    """Remove the callbacks of the ended call."""
    del _callbacks[_persistent_callbacks:]


def read_notices(path: str) -> list[PreemptionNotice]:
    """Return the notices that an agent has written to a file; none if the file is missing or invalid."""
    try:
        with open(path, "rb") as file:
            notices: Any = json.loads(file.read())
        return [PreemptionNotice(node, here, ends, tuple(pids), sent) for node, here, ends, pids, sent in notices]
    except (OSError, ValueError, TypeError):
        return []
