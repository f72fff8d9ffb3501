"""Every error, its hint, the exit status it ends in.

Hosts and servers are often quoted in it, and the interpreter prints it as it is: so an error's text is safe to show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.model.outcomes import Outcome, RootCause


class SkywardError(Exception):
    """The root of all errors of this library.

    Attributes:
        hint: what to do about it, as data, where that goes by the library's API, by a command or by a key, depending on
            who shows it; None where the message says all. ``str(error)`` says it in words of the library's API.
        field: which field of what was asked for is wrong, such as "nodes"; "" where it is none, or nobody has said.
    """

    hint: Hint | None = None
    field: str = ""

    def __init__(self, *args: Any, hint: Hint | None = None) -> None:
        super().__init__(*args)
        if hint is not None:
            self.hint = hint

    @property
    def what(self) -> str:
        """What happened, without the hint."""
        return _safe(Exception.__str__(self))  # a run's error may be of another type, too, that has its own

    def __str__(self) -> str:
        return self.what if self.hint is None else message_with_hint(self.what, python_hint(self.hint))

    def __reduce__(self) -> tuple[Any, ...]:
        # The usual way would call __init__ with what it passed on, not with what it was called with.
        return (remake, (type(self), self.args, vars(self)))


def _safe(text: str) -> str:
    from skyward_core.util.terminal_safe_text import sanitize_paragraph

    return sanitize_paragraph(text)


def message_with_hint(what: str, advice: str) -> str:
    """What happened, and what to do about it, as one message that is safe to show."""
    return _safe(f"{what.rstrip('.')}; {advice}")


def error_message(error: BaseException) -> str:
    """What happened, without the hint; of errors that are not ours all that they say, but for a number."""
    if isinstance(error, SkywardError):
        return error.what
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def error_hint(error: BaseException) -> Hint | None:
    """What to do about an error; None where nothing but its message tells."""
    return error.hint if isinstance(error, SkywardError) else None


def remake(kind: type[BaseException], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> BaseException:
    """Make an exception without calling its ``__init__``."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error


class UsageError(SkywardError, ValueError):
    """Something asked for makes no sense (zero nodes, an unknown plugin, a wrong argument)."""


class NoTrials(UsageError):
    """A run is none of a sweep over arguments."""


class SpecError(UsageError):
    """A value that a pool was asked for with makes no sense.

    Attributes:
        reason: what is wrong with it, and what it should be.
        field: what it was given for.
    """

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(reason, field)
        self.reason = reason
        self.field = field

    @property
    def what(self) -> str:
        return _safe(f"{self.field}: {self.reason}" if self.field else self.reason)


class ScriptError(UsageError):
    """A script cannot be used: missing, does not parse, holds no decorated function."""


class JobFileError(UsageError):
    """A job file cannot be used: missing, no YAML, or with what makes no sense in it; says where."""


class ScriptFailed(ScriptError):
    """A script that could be read failed while it was loaded (it raised, exited, or was killed)."""


class NotPicklableError(SkywardError, TypeError):
    """An argument or a result cannot travel; the message names the object that cannot."""


class PoolError(SkywardError):
    """A pool could not be started, reached, or found."""


class PoolExistsError(PoolError):
    """The name of the pool is taken by a pool that is still up."""


class Unreachable(PoolError):
    """There is no connection to a host, or no node of a pool answers."""


class CredentialsRefused(PoolError):
    """A host was reached, and lets nobody in with the keys that were offered."""


class NoCapacity(PoolError):
    """The provider has no machine for a node: none is left, or none of those left can take it."""


def combine_errors(errors: Sequence[tuple[str, SkywardError]], before: str = "") -> SkywardError:
    """One error for all ways that were tried, which names each with its reason; of their kind, where all are of one.

    Where one lacked machines, waiting may help, so that the whole is that.

    Args:
        errors: each way, and what became of it.
        before: what the whole begins with.
    """
    said = before + "; ".join(f"{name}: {error_message(error)}" for name, error in errors)
    if any(isinstance(error, NoCapacity) for _, error in errors):
        return NoCapacity(said)
    for kind in (CredentialsRefused, Unreachable, UsageError):
        if all(isinstance(error, kind) for _, error in errors):
            return kind(said)
    return PoolError(said)


class TooFewHosts(NoCapacity, UsageError):
    """More nodes were asked for than the provider was given hosts."""


class PoolGone(PoolError):
    """The pool has ended, and this client did not end it: nothing runs on it any more.

    Attributes:
        by: the client that tore it down, in words; "" where it ended itself.
        at: when, Unix time in seconds.
        why: the reason; "" where none is known.
    """

    def __init__(self, message: str, *, by: str = "", at: float = 0.0, why: str = "") -> None:
        super().__init__(message)
        self.by = by
        self.at = at
        self.why = why


class LedgerError(SkywardError):
    """The ledger cannot be used (written by a newer version, unreadable, disk full)."""


class TeardownError(SkywardError):
    """A teardown could not be verified; the message names what may still be running."""


class HostKeyError(PoolError):
    """A host's key is unknown or has changed; nothing was sent to it."""


class Cancelled(SkywardError):
    """The run was cancelled, or the pool torn down while it was starting."""


class RemoteTraceback(Exception):
    """Carries the traceback of another process as text, so that it prints where the cause belongs."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{_safe(self.text)}"""'


class RemoteError(SkywardError):
    """Stands in for an exception of a rank that could not be rebuilt here.

    Attributes:
        type_name: qualified name of the original class.
        attributes: those of its attributes that could travel.
    """

    def __init__(self, type_name: str, message: str, attributes: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        self.attributes = dict(attributes or {})


class RankExit(SkywardError):
    """A rank's process ended before its function returned.

    Attributes:
        exit_code: its exit status, or None when a signal ended it.
        signal: the signal that ended it, or None.
    """

    def __init__(self, message: str, exit_code: int | None = None, signal: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal


class RunError(SkywardError, RuntimeError):
    """A run failed.

    Attributes:
        run: id of the run.
        function: name of the function.
        outcomes: every rank's (or task's) outcome, by index; values of those that returned are in them.
        root_cause: the first real failure.
        results: value by index of the ranks that returned (partial results).

    ``__cause__`` is the user's own exception where a rank raised one. The error is of that one's type, too, wherever
    there can be such a class: ``except ValueError`` catches it.
    """

    def __init__(
        self,
        message: str,
        *,
        run: str,
        function: str,
        outcomes: Mapping[int, Outcome],
        root_cause: RootCause,
        results: Mapping[int, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.run = run
        self.function = function
        self.outcomes = dict(outcomes)
        self.root_cause = root_cause
        self.results = dict(results or {})


Action = Literal["list", "list-all", "attach", "down", "results", "trust-host-key", "upgrade", "blocks", "purchases"]


@value
class Hint(Value):
    """What to do about an error.

    Attributes:
        action: "list" (look at the pools that are up), "list-all" (at those that are over and at runs, too), "attach"
            (the pool is up: use it or end it), "down" (end the pool), "results" (look at what a run's results were),
            "trust-host-key" (accept the host's key), "upgrade" (a newer release of this software can read
            what this one cannot), "blocks" (list what can be bought ahead), "purchases" (look what was).
        subject: the name of the pool, the id of the run, or the host; "" where the action needs none.
        path: the known_hosts file that is to take the key; "" for the usual one.
    """

    action: Action
    subject: str = ""
    path: str = ""


def python_hint(hint: Hint) -> str:
    """Return the hint in words of this library, if its API has something for it."""
    name = hint.subject
    match hint.action:
        case "attach":
            return f"use it (sky.attach({name!r})), end it (sky.attach({name!r}).down()), or choose another name"
        case "trust-host-key":
            more = f", known_hosts={hint.path!r}" if hint.path else ""
            return f"accept it with: sky.SSH([{name!r}]{more}, host_keys='accept-new')"
        case "upgrade":
            return "a newer release of this library can read it"
        case _:
            return command_hint(hint)


def command_hint(hint: Hint) -> str:
    """Return a hint that names a command."""
    from shlex import quote

    name = quote(hint.subject)
    return {
        "list": "skyward-tui ls shows those that are up",
        "list-all": "skyward-tui ls --all shows pools and their runs",
        "down": f"end it: skyward-tui down {name}",
        "results": f"skyward-tui results {name} shows what they were",
        "blocks": "skyward-tui offers --block 24 lists what is sold now",
        "purchases": "skyward-tui capacity ls shows what was bought",
    }[hint.action]


@contextmanager
def set_error_field(name: str) -> Iterator[None]:
    """Have an error that says nothing of a field say that it is about this one; it stays what it is otherwise."""
    try:
        yield
    except SkywardError as error:
        error.field = error.field or name
        raise


OK, FAILED, USAGE, UNVERIFIED, INTERRUPTED = 0, 1, 2, 3, 130


def root_cause_exit_code(cause: RootCause | None) -> int:
    """The exit status of a failed run: that of the rank that failed first where it had one.

    A rank that left with status 0 before its function returned has failed too, so never 0.
    """
    return (cause.exit_code if cause else None) or FAILED


def error_exit_code(error: BaseException) -> int:
    """The exit status of a command that an exception ended."""
    match error:
        case RunError():
            return root_cause_exit_code(error.root_cause)
        case TeardownError():
            return UNVERIFIED
        case ScriptFailed():
            return FAILED
        case UsageError():
            return USAGE
        case KeyboardInterrupt():
            return INTERRUPTED
    return FAILED


# Packages whose modules have another name: hints name the package to install.
DISTRIBUTIONS: Mapping[str, str] = {
    "PIL": "pillow", "attr": "attrs", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "dotenv": "python-dotenv", "git": "GitPython", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}  # fmt: skip
