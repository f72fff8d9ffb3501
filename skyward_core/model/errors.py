"""All errors of this library, their hints, and the exit statuses of commands.

Errors often quote hosts and servers, and Python prints them unchanged. The text of every error is therefore sanitized
for terminals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from skyward_core.util.light_dataclass import Value, value

if TYPE_CHECKING:
    from skyward_core.model.outcomes_states_and_alerts import Outcome, RootCause


class SkywardError(Exception):
    """Base class of all errors of this library.

    Attributes:
        hint: Fix as structured data, if the wording of the fix depends on the front end (API, command or key). None if
            the message contains the fix. ``str(error)`` formats the hint for the API.
        field: Name of the invalid field, such as "nodes". "" if there is none, or if unknown.
    """

    hint: Hint | None = None
    field: str = ""

    def __init__(self, *args: Any, hint: Hint | None = None) -> None:
        super().__init__(*args)
        if hint is not None:
            self.hint = hint

    @property
    def what(self) -> str:
        """Message of the error without the hint."""
        return _safe(
            Exception.__str__(self)
        )  # not super().__str__, because a combined error of a run may derive from a user's class that defines __str__

    def __str__(self) -> str:
        return self.what if self.hint is None else message_with_hint(self.what, python_hint(self.hint))

    def __reduce__(self) -> tuple[Any, ...]:
        # Not Exception.__reduce__, which would call __init__ with self.args although its parameters may differ.
        return (remake, (type(self), self.args, vars(self)))


def _safe(text: str) -> str:
    from skyward_core.util.terminal_safe_text import sanitize_paragraph

    return sanitize_paragraph(text)


def message_with_hint(what: str, advice: str) -> str:
    """Return a message and its hint as one sanitized message."""
    return _safe(f"{what.rstrip('.')}; {advice}")


def error_message(error: BaseException) -> str:
    """Return an error's message without the hint, and without the errno of an OSError."""
    if isinstance(error, SkywardError):
        return error.what
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def error_hint(error: BaseException) -> Hint | None:
    """Return the hint of an error. None if the message itself contains the advice."""
    return error.hint if isinstance(error, SkywardError) else None


def remake(kind: type[BaseException], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> BaseException:
    """Create an exception without calling its ``__init__``."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error


class UsageError(SkywardError, ValueError):
    """Invalid request: for example, zero nodes, an unknown plugin or a wrong argument."""


class NoTrials(UsageError):
    """A run does not belong to a sweep."""


class SpecError(UsageError):
    """Invalid field of a pool's specification.

    Attributes:
        reason: The problem, and the valid values.
        field: Name of the field.
    """

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(reason, field)
        self.reason = reason
        self.field = field

    @property
    def what(self) -> str:
        return _safe(f"{self.field}: {self.reason}" if self.field else self.reason)


class ScriptError(UsageError):
    """A script cannot be used: it is missing, has a syntax error, or contains no decorated function."""


class JobFileError(UsageError):
    """A job file cannot be used: it is missing, is not YAML, or has invalid contents. The message names the line."""


class ScriptFailed(ScriptError):
    """A script failed while it was loaded: it raised, exited, or was killed."""


class NotPicklableError(SkywardError, TypeError):
    """An argument or a result cannot be pickled. The message names the object."""


class PoolError(SkywardError):
    """A pool could not be started, reached, or found."""


class PoolExistsError(PoolError):
    """A running pool has the same name."""


class Unreachable(PoolError):
    """No connection to a host, or no answer from any node of a pool."""


class CredentialsRefused(PoolError):
    """A host rejected all offered keys."""


class NoCapacity(PoolError):
    """The provider has no machine available for a node."""


def combine_errors(errors: Sequence[tuple[str, SkywardError]], before: str = "") -> SkywardError:
    """Return one error for several failed attempts, which names each attempt and its reason.

    The error has the attempts' common type. If any attempt lacked capacity, the error is a NoCapacity, because waiting
    may help.

    Args:
        errors: Name of each attempt, and its error.
        before: Start of the message.
    """
    message = before + "; ".join(f"{name}: {error_message(error)}" for name, error in errors)
    if any(isinstance(error, NoCapacity) for _, error in errors):
        return NoCapacity(message)
    for kind in (CredentialsRefused, Unreachable, UsageError):
        if all(isinstance(error, kind) for _, error in errors):
            return kind(message)
    return PoolError(message)


class TooFewHosts(NoCapacity, UsageError):
    """More nodes were requested than the provider has hosts."""


class PoolGone(PoolError):
    """The pool has ended, and this client did not end it.

    Attributes:
        by: Description of the client that tore it down. "" if the pool ended itself.
        at: Unix time of the end.
        why: Reason. "" if unknown.
    """

    def __init__(self, message: str, *, by: str = "", at: float = 0.0, why: str = "") -> None:
        super().__init__(message)
        self.by = by
        self.at = at
        self.why = why


class LedgerError(SkywardError):
    """The ledger cannot be used: a newer version wrote it, it is unreadable, or the disk is full."""


class TeardownError(SkywardError):
    """A teardown could not be verified. The message names resources that may still run."""


class HostKeyError(PoolError):
    """The key of a host is unknown or has changed. Nothing was sent to the host."""


class Cancelled(SkywardError):
    """The run was cancelled, or the pool was torn down during its startup."""


class RemoteTraceback(Exception):
    """Traceback of another process as text, printed as the cause of an exception."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{_safe(self.text)}"""'


class RemoteError(SkywardError):
    """Substitute for an exception of a rank that cannot be rebuilt on this machine.

    Attributes:
        type_name: Qualified name of the original class.
        attributes: The attributes that could be serialized.
    """

    def __init__(self, type_name: str, message: str, attributes: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        self.attributes = dict(attributes or {})


class RankExit(SkywardError):
    """The process of a rank ended before its function returned.

    Attributes:
        exit_code: Exit status, or None if a signal ended the process.
        signal: Number of the signal, or None.
    """

    def __init__(self, message: str, exit_code: int | None = None, signal: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal


class RunError(SkywardError, RuntimeError):
    """A run failed.

    ``__cause__`` is the user's own exception if a rank raised one. If possible, the error also derives from the class
    of that exception, so that ``except ValueError`` catches it.

        try:
            values = train(10) @ compute
        except sky.RunError as error:
            print(error.root_cause, error.results)

    Attributes:
        run: Id of the run.
        function: Name of the function.
        outcomes: Outcome of every rank (or task), by index, including the ones that returned.
        root_cause: The first real failure.
        results: Partial results: values by index of the ranks (or tasks) that returned.
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
    """Advice that belongs to an error.

    Attributes:
        action: "list" (list running pools), "list-all" (also list ended pools and runs), "attach" (the pool is up:
            attach to it or tear it down), "down" (tear down the pool), "results" (show the results of a run),
            "trust-host-key" (accept the host's key), "upgrade" (install a newer release), "blocks" (list capacity
            blocks for sale), "purchases" (list purchased capacity).
        subject: Name of the pool, id of the run, or host. "" if the action needs none.
        path: The known_hosts file to add the key to. "" for the default file.
    """

    action: Action
    subject: str = ""
    path: str = ""


def python_hint(hint: Hint) -> str:
    """Return the hint for users of the API, or the command if the API has no equivalent."""
    name = hint.subject
    match hint.action:
        case "attach":
            return f"use it (sky.attach({name!r})), tear it down (sky.attach({name!r}).down()), or choose another name"
        case "trust-host-key":
            more = f", known_hosts={hint.path!r}" if hint.path else ""
            return f"accept it with: sky.SSH([{name!r}]{more}, host_keys='accept-new')"
        case "upgrade":
            return "a newer release of this library can read it"
        case _:
            return command_hint(hint)


def command_hint(hint: Hint) -> str:
    """Return the hint as a command."""
    from shlex import quote

    name = quote(hint.subject)
    return {
        "list": "list running pools with: skyward-tui ls",
        "list-all": "list all pools and runs with: skyward-tui ls --all",
        "down": f"tear it down with: skyward-tui down {name}",
        "results": f"show what is known of them with: skyward-tui results {name}",
        "blocks": "list current offers with: skyward-tui offers --block 24",
        "purchases": "list purchases with: skyward-tui capacity ls",
    }[hint.action]


@contextmanager
def set_error_field(name: str) -> Iterator[None]:
    """Set the field of errors that do not name one."""
    try:
        yield
    except SkywardError as error:
        error.field = error.field or name
        raise


OK, FAILED, USAGE, UNVERIFIED, INTERRUPTED = 0, 1, 2, 3, 130


@contextmanager
def convert_errors(
    failure: str,
    kind: type[Exception] = PoolError,
    caught: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Iterator[None]:
    """Raise the errors of a block as errors of another type.

    Args:
        failure: What failed: the beginning of the message, before the cause. "" for the cause alone.
        kind: Type of the raised error.
        caught: Types of the errors to convert.
    """
    try:
        yield
    except caught as error:
        raise kind(f"{failure}: {error}" if failure else str(error)) from error


def root_cause_exit_code(cause: RootCause | None) -> int:
    """Return the exit status of a failed run: the exit status of its root cause if that is known, and never 0.

    A rank that exits with status 0 before its function returns has failed as well.
    """
    return (cause.exit_code if cause else None) or FAILED


def error_exit_code(error: BaseException) -> int:
    """Return the exit status of a command that ended with an exception."""
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


# Name of an importable module -> name of its package, if they differ. Hints name the package to install.
DISTRIBUTIONS: Mapping[str, str] = {
    "PIL": "pillow", "attr": "attrs", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil",
    "dotenv": "python-dotenv", "git": "GitPython", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}  # fmt: skip
