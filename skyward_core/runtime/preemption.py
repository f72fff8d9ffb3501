"""What user code has done before a machine of its pool is taken back: of some rented ones that is told a short while
ahead. The agent of a rank's node writes such notices into a file, and says by a signal that there is news."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from time import monotonic  # user code may replace the functions of `time`
from typing import Any, TypeVar

NOTICE_SIGNAL = signal.SIGURG  # whoever does not wait for it never notices it
NOTICE_GRACE = 10.0  # seconds after a machine's end in which that is told
MAX_ARGUMENTS = 2  # values that a callback may ask for

C = TypeVar("C", bound=Callable[..., object])


class PreemptionNotice:
    """A node's machine is taken back. (Workers wait for this; a named tuple takes a millisecond to make.)

    Attributes:
        node: the node's index.
        here: whether it is this rank's.
        ends: when, by this machine's monotonic clock.
        pids: processes that get SIGTERM for it.
        sent: whether they have been sent that.
    """

    __slots__ = ("ends", "here", "node", "pids", "sent")

    def __init__(self, node: int, here: bool, ends: float, pids: tuple[int, ...], sent: bool = False) -> None:
        self.node, self.here, self.ends, self.pids, self.sent = node, here, ends, pids, sent

    def to_json(self) -> list[Any]:
        """What a file of them has of it: in the order in which it is made of this again."""
        return [self.node, self.here, self.ends, self.pids, self.sent]


class _Callback:
    """A callback, and which notices it was told of."""

    def __init__(self, callback: Callable[..., object], takes: int) -> None:
        self._callback, self._takes = callback, takes
        self._told: dict[tuple[int, float], object] = {}

    def call_once(self, notice: PreemptionNotice) -> None:
        """Call it, once for each notice, whichever thread comes first."""
        me = object()
        if self._told.setdefault((notice.node, notice.ends), me) is not me:
            return
        try:
            self._callback(*(max(0.0, notice.ends - monotonic()), notice.node)[: self._takes])
        except Exception:  # noqa: BLE001  others have to be called, and what is saved meanwhile goes on
            import traceback

            name = getattr(self._callback, "__qualname__", None) or repr(self._callback)
            said = f"skyward: {name:.200}, a callback of on_preempt, failed:\n{traceback.format_exc()}"
            os.write(2, said.encode(errors="replace"))  # this may be in the midst of a print


_notice_file = ""
_is_gang_call = False
_callbacks: list[_Callback] = []
_persistent_callbacks = 0  # of them, those of plugins' contexts
_received_sigterms: set[tuple[int, float]] = set()  # notices whose SIGTERM has come


def on_preempt(callback: C) -> C:
    """Have something done when a machine of the pool is about to be taken back, such as a spot machine of a cloud.

    It is called once for each notice, on the main thread of every rank of the gang, wherever that is just then, in the
    order of registration; at once, and by the calling thread, where there is a notice already. It counts until the end
    of the call that registers it. The rank goes on afterwards: what it returns in time is its result. Where nothing
    ever takes machines back, and off a pool, it is never called.

    Args:
        callback: called with as many positional arguments as it requires, up to two: the seconds that are left until
            the machine's end, and the index of its node. What it raises is told in the rank's log; ``sys.exit()`` in it
            ends the rank once the others were called.

    Returns:
        The callback, so that this can stand above a function as ``@sky.on_preempt``.

    Raises:
        TypeError: it cannot be called, or requires more.
    """
    added = _Callback(callback, _count_required_arguments(callback))
    _callbacks.append(added)
    for notice in pending_notices():
        added.call_once(notice)
    return callback


def _count_required_arguments(callback: Callable[..., object]) -> int:
    """How many positional arguments it has to be given."""
    from inspect import Parameter, signature  # whoever registers nothing does without

    if not callable(callback):
        raise TypeError(f"on_preempt needs a function, not {callback!r:.80}")
    try:
        parameters = signature(callback).parameters.values()
    except ValueError:
        return 0  # of C code that does not say
    places = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters if each.default is Parameter.empty]
    if any(each.kind is Parameter.KEYWORD_ONLY for each in required):
        raise TypeError("a callback of on_preempt is given nothing by name")
    count = sum(each.kind in places for each in required)
    if count > MAX_ARGUMENTS:
        raise TypeError(f"a callback of on_preempt is given the seconds left and the node; this one requires {count}")
    return count


# -- for the process that runs user code ---------------------------------------------------------------------


def install_handler(file: str) -> None:
    """Hear of notices from now on; to be called by the main thread.

    Args:
        file: where the agent writes them.
    """
    global _notice_file
    _notice_file = file
    signal.signal(NOTICE_SIGNAL, lambda *_: run_callbacks() and None)


def pending_notices() -> list[PreemptionNotice]:
    """Notices that concern what runs here: of its own machine, and of those of its gang that may still be there."""
    now = monotonic()
    return [each for each in _read_notices() if each.here or (_is_gang_call and now < each.ends + NOTICE_GRACE)]


def run_callbacks() -> bool:
    """Tell what is registered of what it was not told yet; says whether anything is registered.

    Raises:
        SystemExit: a callback asked for the end.
    """
    leaving: SystemExit | None = None
    for notice in pending_notices():
        for each in tuple(_callbacks):
            try:
                each.call_once(notice)
            except SystemExit as asked:
                leaving = leaving or asked
    if leaving is not None:
        raise leaving
    return bool(_callbacks)


def is_sigterm_announced() -> bool:
    """Whether this process was to get SIGTERM for a notice."""
    return any(os.getpid() in each.pids for each in _read_notices())


def is_preemption_sigterm() -> bool:
    """Whether a SIGTERM that has just come is a notice's; another one is a stop."""
    for each in _pending_sigterms():
        _received_sigterms.add((each.node, each.ends))
        return True
    return False


def is_sigterm_pending() -> bool:
    """Whether a notice's SIGTERM has not been heard of by Python yet."""
    return bool(_pending_sigterms())


def _pending_sigterms() -> list[PreemptionNotice]:
    return [
        each
        for each in _read_notices()
        if os.getpid() in each.pids and (each.node, each.ends) not in _received_sigterms
    ]


def start_call(in_gang: bool) -> None:
    """A call begins: other nodes' notices concern it where it is a gang's."""
    global _is_gang_call
    _is_gang_call = in_gang


def is_gang_call() -> bool:
    """Whether all ranks run what runs here, or ran last."""
    return _is_gang_call


def keep_callbacks() -> None:
    """What is registered now stays for all calls: plugins' contexts have done it."""
    global _persistent_callbacks
    _persistent_callbacks = len(_callbacks)


def drop_callbacks() -> None:
    """A call has ended, and none runs."""
    del _callbacks[_persistent_callbacks:]


def _read_notices() -> list[PreemptionNotice]:
    if not _notice_file:
        return []
    try:
        with open(_notice_file, "rb") as file:
            told: Any = json.loads(file.read())
        return [PreemptionNotice(node, here, ends, tuple(pids), sent) for node, here, ends, pids, sent in told]
    except (OSError, ValueError, TypeError):
        return []  # none was written
