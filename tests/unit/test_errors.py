"""Errors, the root cause of failed runs, and hints for the user."""

from __future__ import annotations

import ast
import builtins
import copy
import errno
import inspect
import itertools
import json
import pickle
import re
import shlex
import signal
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import pytest

import skyward_core as sky
from skyward_core.model import errors
from skyward_core.model.errors import Action, Hint, PoolError, RunError, UsageError, error_exit_code, python_hint
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, RootCause
from skyward_core.model.root_cause import is_failure, is_symptom, root_cause, summarize_outcomes
from skyward_core.pool.event_publisher import EventPublisher
from skyward_core.pool.runs.result_loading_and_run_errors import error_of_cause_type
from skyward_core.store.ledger import Ledger
from skyward_core.util.redaction import Redactor
from skyward_core.views import events
from skyward_core.views.pool_view import PoolView, apply
from skyward_tui.cli.console_and_log_printer import Console
from skyward_tui.text.error_hint_text import advice, format_detail, format_error
from tests.support.commands import COMMANDS
from tests.support.hostile_text import is_harmful
from tests.support.sessions import new_session
from tests.support.sources import nodes_of


def every_error() -> list[type[Exception]]:
    found = inspect.getmembers(errors, lambda x: inspect.isclass(x) and issubclass(x, errors.SkywardError))
    return [kind for _, kind in found]


def test_all_errors_derive_from_skyward_error_and_are_exported() -> None:
    for name in errors.__dict__:
        if name.endswith("Error") and name[0] != "_":
            assert issubclass(getattr(errors, name), errors.SkywardError)
    assert issubclass(sky.UsageError, ValueError)
    assert issubclass(sky.NotPicklableError, TypeError)
    assert issubclass(sky.PoolExistsError, sky.PoolError)
    for kind in every_error():
        if kind.__name__ in sky.__all__:
            assert getattr(sky, kind.__name__) is kind


OUTCOME = Outcome(0, 0, 0, "exited", signal=9)


@pytest.mark.parametrize(
    "error",
    [
        *(kind("words") for kind in every_error() if kind not in (errors.RemoteError, errors.RunError)),
        errors.RankExit("gone", exit_code=3),
        errors.RankExit("gone", signal=9),
        errors.RemoteError("mine.Odd", "broke", {"step": 3}),
        errors.RunError(
            "train failed", run="r1", function="train", outcomes={0: OUTCOME},
            root_cause=RootCause.from_outcome(OUTCOME),
            results={1: "kept"},
        ),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_error_is_unchanged_by_pickling(error: Exception) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def with_hint(kind: type[errors.SkywardError]) -> bool:
    return kind not in (errors.RemoteError, errors.RunError, errors.SpecError, errors.PoolGone, errors.RankExit)


@pytest.mark.parametrize("kind", [*filter(with_hint, every_error())], ids=lambda kind: kind.__name__)  # type: ignore[arg-type]
def test_hint_is_kept_when_its_error_is_pickled_or_copied(kind: type[errors.SkywardError]) -> None:
    error = kind("no pool is up.", hint=Hint("down", "p"))
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (back.hint, back.args, str(back)) == (error.hint, error.args, str(error))
    assert (error.what, kind("words").hint) == ("no pool is up.", None)
    assert str(error).startswith("no pool is up; tear it down with: ")


def test_error_hint_is_sanitized_for_printing() -> None:
    text = str(sky.PoolError("no", hint=Hint("down", "p\x1b[2J\u202e\x07")))
    assert not any(is_harmful(character) for character in text)


def test_remote_traceback_is_printed_as_the_cause() -> None:
    error: Any = ValueError("mine")
    error.__cause__ = errors.RemoteTraceback("Traceback (most recent call last):\n  File far away")
    printed = "".join(traceback.format_exception(error))
    assert 'RemoteTraceback: \n"""\nTraceback (most recent call last):\n  File far away"""' in printed
    assert printed.rstrip().endswith("ValueError: mine")


def test_error_message_is_sanitized_for_printing() -> None:
    message = "the host said: \x1b]52;c;aGk=\x07\x1b[\x002J\x9b2J\u202e\r\nline two"
    for error in (sky.PoolError(message), errors.SpecError(message, "hosts"), errors.RemoteError("E", message)):
        printed = "".join(traceback.format_exception(error))
        assert "the host said: �\nline two" in printed
        assert not any(is_harmful(character) for character in printed)
    assert "�\nline two" in str(errors.RemoteTraceback(message))
    assert sky.PoolError(message).args == (message,)  # as it was, for whoever wants it


# A run's error is of its cause's type, too, and in all else a run's error.

SAID = "train failed: rank 0 (node 0) raised E: no"
NEVER = (StopIteration, StopAsyncIteration, BaseExceptionGroup, errors.PoolError, errors.Cancelled)


def run_error(text: str = SAID) -> RunError:
    outcome = Outcome(0, 0, 0, "raised", 0.0)
    cause = RootCause(0, "raised", "E", "no")
    return RunError(text, run="r", function="train", outcomes={0: outcome}, root_cause=cause, results={1: "one"})


def check(cause: BaseException, *kinds: type[BaseException]) -> RunError:
    """Check the type of an error, and that it is otherwise like any run's error."""
    plain, error = run_error(), error_of_cause_type(run_error(), cause)
    assert error.__cause__ is cause
    assert not kinds or isinstance(error, kinds)
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert isinstance(each, RunError)
        assert (str(each), repr(each), each.args, each.what) == (SAID, repr(plain), plain.args, plain.what)
        assert (each.run, each.function, each.results) == ("r", "train", {1: "one"})
        assert (each.outcomes, each.root_cause) == (plain.outcomes, plain.root_cause)
        assert (each.hint, each.field, error_exit_code(each)) == (None, "", 1)
        assert each == each and hash(each) is not None and each != plain
    for kind in kinds:
        assert isinstance(copy.copy(error), kind)
    try:
        raise error
    except RunError as caught:
        assert (
            traceback.format_exception_only(type(caught), caught)[-1] == f"skyward_core.model.errors.RunError: {SAID}\n"
        )
        assert "".join(traceback.format_exception(caught)).count("direct cause") >= 1
    return error


def make_exception(kind: type[BaseException]) -> BaseException | None:
    for args in ((), ("no",), ("utf-8", b"\xff", 0, 1, "no"), ("a", 0, 1, "no"), ("no", [ValueError()])):
        try:
            return kind(*args)
        except TypeError:
            continue
    return None


BUILT_IN = [each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, BaseException)]
OURS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SkywardError)]


@pytest.mark.parametrize("kind", [*dict.fromkeys(BUILT_IN), *OURS], ids=lambda kind: kind.__name__)
def test_run_error_inherits_any_exception_type_of_its_cause(kind: type[BaseException]) -> None:
    cause = make_exception(kind)
    if cause is None:
        cause = kind.__new__(kind, "no")
    if issubclass(kind, NEVER) or not issubclass(kind, Exception) or issubclass(RunError, kind):
        assert not isinstance(check(cause), NEVER)
        return
    error = check(cause, kind)
    assert isinstance(pickle.loads(pickle.dumps(error)), kind)


def test_run_error_has_the_attributes_of_its_cause() -> None:
    error = check(FileNotFoundError(errno.ENOENT, "gone", "a.pt"), OSError)
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(each, OSError)
        assert (each.errno, each.strerror, each.filename) == (errno.ENOENT, "gone", "a.pt")
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("[1,")
    wrong = check(caught.value, json.JSONDecodeError, ValueError)
    assert getattr(wrong, "pos", None) == 3
    cause = ImportError("no", name="torch")
    assert getattr(check(cause, ImportError), "name", None) == "torch"
    misspelt = AttributeError("no", name="argz", obj=run_error())
    assert getattr(check(misspelt, AttributeError), "name", "") is None


class Meta(type):
    pass


class Field(ValueError):
    """User exception with its own constructor arguments."""

    def __init__(self, name: str, value: int) -> None:
        super().__init__(f"{name} cannot be {value}")
        self.name, self.value = name, value

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    def __reduce__(self) -> Any:
        raise RuntimeError("nobody asks")


class Slotted(OSError):
    __slots__ = ("place",)


class Odd(ArithmeticError):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def with_traceback(self, tb: object) -> Any:
        raise RuntimeError


class Both(ValueError, OSError):
    pass


class Ours(errors.SkywardError, KeyError):
    pass


class WithMeta(KeyError, metaclass=Meta):
    pass


class Registered(ConnectionError):
    def __init_subclass__(cls) -> None:
        raise RuntimeError("made a class of it")


class Property(RuntimeError):
    @property
    def results(self) -> int:
        return 3


class Ended(StopIteration, ValueError):
    pass


class Gone(KeyboardInterrupt):
    pass


@pytest.mark.parametrize(
    ("cause", "kinds", "not_this"),
    [
        (Field("lr", 3), (Field, ValueError), None),
        (Slotted(2, "x"), (Slotted, OSError), None),
        (Odd("x"), (Odd, ArithmeticError), None),
        (Both("x"), (Both, ValueError, OSError), None),
        (Ours("x"), (Ours, KeyError), None),
        (WithMeta("x"), (KeyError,), WithMeta),
        (Registered("x"), (ConnectionError,), Registered),
        (Property("x"), (RuntimeError,), Property),
        (Ended("x"), (ValueError,), StopIteration),
        (Gone("x"), (), BaseException),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_run_error_inherits_exception_types_of_scripts(
    cause: BaseException, kinds: tuple[type[BaseException], ...], not_this: type[BaseException] | None
) -> None:
    error = check(cause, *kinds)
    assert not_this is None or not isinstance(error, not_this) or not_this is BaseException
    again = pickle.loads(pickle.dumps(error))
    assert all(isinstance(again, kind) for kind in kinds)
    if isinstance(cause, Field):
        assert isinstance(again, Field) and (again.name, again.value) == ("lr", 3)


def test_unpicklable_cause_type_becomes_a_plain_run_error() -> None:
    class Here(ValueError):
        pass

    cause = Here("no")
    cause.lock = lambda: 1  # type: ignore[attr-defined]  # it cannot be pickled either
    error = check(cause, Here)
    assert type(pickle.loads(pickle.dumps(error))) is RunError
    assert type(error) is type(error_of_cause_type(run_error(), Here("another")))
    assert getattr(copy.copy(error), "lock", None) is cause.lock  # type: ignore[attr-defined]


def test_nested_run_error_inherits_the_inner_cause_type() -> None:
    inner = error_of_cause_type(run_error("inner failed"), ZeroDivisionError("by zero"))
    assert type(check(inner, ZeroDivisionError)) is type(inner)


# The first real failure, told from its echoes: what PyTorch 2.13 and JAX 0.10 were seen to say when a peer died.

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
HINT = "Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
ECHOES = [
    (
        "RuntimeError",
        f"{GLOO}pair.cc:537] Read error [127.0.0.1]:25494: Connection reset by peer. This is typically caused by a "
        f"remote worker hanging or bugs in the application. {HINT}",
    ),
    ("RuntimeError", f"{GLOO}unbound_buffer.cc:129] Timed out waiting 12000ms for send operation to complete"),
    (
        "RuntimeError",
        "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
        "Please check rank 0 logs for faulty rank.",
    ),
    (
        "torch.distributed.DistNetworkError",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    ),
    ("torch.distributed.DistStoreError", "Timed out after 13 seconds waiting for clients. 2/3 clients joined."),
    (
        "ValueError",
        "UNKNOWN: Gloo AllGather failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error "
        "[127.0.0.1]:25761: Connection reset by peer",
    ),
    ("jax.errors.JaxRuntimeError", "UNAVAILABLE: Failed to send RPC to coordination service."),
    ("RuntimeError", "Connection reset by peer"),
]

REAL = [
    ("ValueError", "mine"),
    ("RuntimeError", "peer review failed"),
    ("RuntimeError", "a barrier island, a heartbeat, a broken pipe dream"),
    ("RuntimeError", "no gloo on this roof"),
    ("RuntimeError", "CUDA error: an illegal memory access was encountered"),
    ("ValueError", "UNKNOWN: column"),
    ("jax.errors.JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes."),
    ("requests.exceptions.ConnectionError", "Connection reset by peer"),
    ("mine.DistrictError", "Connection closed by peer"),
    ("KeyError", "'gloo/transport/'"),
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
def test_symptom_that_arrived_first_is_not_the_root_cause(type_: str, message: str) -> None:
    echo = raised(0, type_, message)
    assert is_failure(echo)
    assert is_symptom(echo)
    for real in (KILLED, LOST, exited(1, code=3), exited(1, number=signal.SIGSEGV), raised(1, "ValueError", "mine")):
        assert culprit(echo, RETURNED, real, STOPPED) == real.rank
    assert culprit(echo, ABORTED) == ABORTED.rank, "an abort may be a cause, this cannot"


@pytest.mark.parametrize(("type_", "message"), REAL, ids=range(len(REAL)))
def test_error_of_user_code_is_no_symptom(type_: str, message: str) -> None:
    real = raised(1, type_, message)
    assert not is_symptom(real)
    for echo in (raised(0, *ECHOES[0]), ABORTED, raised(0, "ConnectionResetError", "[Errno 104] reset by peer")):
        assert culprit(echo, real) == culprit(real, echo) == 1
    assert culprit(real, KILLED) == 1, "of two real failures the first counts"
    assert culprit(KILLED, real) == KILLED.rank


def test_root_cause_is_independent_of_outcome_order() -> None:
    outcomes = [raised(0, *ECHOES[0]), raised(1, *ECHOES[6]), ABORTED, STOPPED, RETURNED, KILLED]
    assert {culprit(*order) for order in itertools.permutations(outcomes)} == {KILLED.rank}


def test_root_cause_is_none_without_a_failure() -> None:
    assert root_cause([]) is None
    assert root_cause([RETURNED, STOPPED]) is None


def test_root_cause_has_the_exit_code_for_the_command() -> None:
    assert root_cause([KILLED]) == RootCause(9, "exited", "RankExit", "gone", 137)
    assert root_cause([exited(1, code=3)]) == RootCause(1, "exited", "RankExit", "gone", 3)
    assert root_cause([raised(1, "ValueError", "mine")]) == RootCause(1, "raised", "ValueError", "mine", None)
    assert root_cause([LOST]) == RootCause(7, "lost", "NodeLost", "its host is gone", None)
    interrupted = root_cause([raised(1, "KeyboardInterrupt", "")])
    assert interrupted is not None and interrupted.exit_code == 130  # as plain Python


# Hints: data in the library, words of the library for scripts, commands for the command line.


HINTS = [Hint(action, "train", "/my keys/known") for action in get_args(Action)]
CORE = Path(sky.__file__).parent


def texts(nodes: Iterable[ast.AST], without: Collection[ast.AST] = ()) -> Iterator[str]:
    """Return all strings of a module, with implicitly joined pieces as one."""
    for node in nodes:
        if node in without:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value for part in node.values if isinstance(part, ast.Constant))  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def docstrings(nodes: Iterable[ast.AST]) -> set[ast.AST]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.body[0].value for node in nodes if isinstance(node, kinds) and isinstance(node.body[0], ast.Expr)}


def options_of(command: click.Command) -> set[str]:
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return own.union(*(options_of(each) for each in getattr(command, "commands", {}).values()))


def not_public(text: str) -> Iterator[str]:
    """Return the names in a text that no user of the library or of the command line can use."""
    yield from re.findall(r"\bskyward_core\.\w[\w.]*", text)
    for name, words in re.findall(r"\bsky\.(\w+)(?:\(([^()]*)\))?", text):
        if not hasattr(sky, name):
            yield f"sky.{name}"
        elif words:
            known = inspect.signature(getattr(sky, name)).parameters
            more = any(each.kind == each.VAR_KEYWORD for each in known.values())
            options = () if more else re.findall(r"(\w+)=", words)
            yield from (f"sky.{name}({word}=)" for word in options if word not in known)
    for name, words in re.findall(r"\bskyward-tui ([a-z]+)((?: [^ ;,]+)*)", text):
        if (command := COMMANDS.get(name)) is None:
            yield f"skyward-tui {name}"
        else:
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)
            yield from (f"skyward-tui {name} {each}" for each in options if each not in options_of(command))


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: hint.action)
def test_hints_name_only_public_api_and_commands(hint: Hint) -> None:
    assert list(not_public(python_hint(hint))) == list(not_public(advice(hint))) == []


def test_raised_messages_name_only_public_api_and_commands() -> None:
    found = []
    for path in (path for package in (CORE, CORE.with_name("skyward_tui")) for path in sorted(package.rglob("*.py"))):
        nodes = nodes_of(path)
        raised = {part for node in nodes if isinstance(node, ast.Raise) for part in ast.walk(node)}
        for text in texts(raised - docstrings(nodes)):
            found += [f"{path.name}: {name}" for name in not_public(text)]
    assert not found


def test_check_finds_names_that_are_not_public() -> None:
    message = (
        "skyward_core.client.session.Session() has them; sky.pools() has them; sky.Image(pips=['x']) has them; "
        "skyward-tui pools has them; skyward-tui ls --everything has them; sky.Image(pip=['x']); skyward-tui ls --all"
    )
    assert list(not_public(message)) == [
        "skyward_core.client.session.Session", "sky.pools", "sky.Image(pips=)", "skyward-tui pools",
        "skyward-tui ls --everything",
    ]  # fmt: skip


# Modules whose texts name commands: hints, and what only users at a terminal read.
NAMING_COMMANDS = ("errors.py", "breakpoints.py", "machine_metrics_recorder.py", "leftover_verdicts.py")


def test_library_texts_name_no_command_outside_hints() -> None:
    found = [
        f"{path.relative_to(CORE)}: {text}"
        for path in sorted(CORE.rglob("*.py"))
        if path.name not in NAMING_COMMANDS
        for text in texts(nodes_of(path), without=docstrings(nodes_of(path)))
        if re.search(r"skyward[-_]tui(?!\[)", text)  # extras are installed without a command
    ]
    assert not found, found


def test_command_in_a_hint_is_quoted_for_the_shell() -> None:
    text = advice(Hint("trust-host-key", "me@gpu 1;reboot", "/my keys/known"))
    words = shlex.split(text.partition("skyward-tui ")[2])
    assert words == ["trust", "me@gpu 1;reboot", "--known-hosts", "/my keys/known"]


def test_formatted_error_with_hint_is_sanitized() -> None:
    text = format_error(PoolError("no", hint=Hint("down", "p\x1b[2J\x07\u202e")))
    assert not any(is_harmful(character) for character in text)


def test_failed_command_prints_hint_as_command(capsys: pytest.CaptureFixture[str]) -> None:
    Console(as_json=True).report_error(PoolError("no pool named 'p' is up", hint=Hint("list")))
    output = capsys.readouterr()
    expected = "no pool named 'p' is up; list running pools with: skyward-tui ls"
    assert output.err == f"error: {expected}\n"
    assert json.loads(output.out) == {"error": {"type": "PoolError", "message": expected}}


def test_errors_without_a_hint_are_formatted_unchanged() -> None:
    assert format_error(OSError("disk full")) == "disk full"
    assert format_error(UsageError("no such plugin.")) == "no such plugin."


def test_pool_view_shows_the_hint_of_its_latest_detail() -> None:
    view = PoolView("p")
    apply(view, events.PoolState(pool="p", state="starting", detail="refused.", hint=Hint("trust-host-key", "gpu1")))
    assert format_detail(view) == "refused; accept it with: skyward-tui trust gpu1"
    apply(view, events.PoolState(pool="p", state="up", detail="all is well."))
    assert format_detail(view) == "all is well."


def test_secret_in_a_hint_is_redacted_in_view_and_journal() -> None:
    written: list[events.Event] = []
    view = PoolView("p")
    news: Any = SimpleNamespace(
        redactor=Redactor(["hunter2hunter2"]), _context=SimpleNamespace(view=view), _listeners=[],
        records=SimpleNamespace(add_event=written.append),
    )  # fmt: skip
    hint = Hint("trust-host-key", "hunter2hunter2@gpu1", "/home/hunter2hunter2/known")
    EventPublisher.emit(news, events.PoolState(pool="p", state="starting", detail="no", hint=hint))
    assert "gpu1" in repr(view.hint) and "hunter2" not in repr(view.hint) + repr(written)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
    return tmp_path


def test_api_errors_have_hints(home: Path) -> None:
    with pytest.raises(PoolError, match="no pool named 'never' is up") as caught:
        sky.attach("never")
    assert caught.value.hint == Hint("list")
    with closing(Ledger()) as ledger:
        ledger.record_intent("t1", "train", {}, {})
    with pytest.raises(PoolError, match=r"no pool named 'trian' is up; did you mean 'train'\?"):
        sky.attach("trian")
    with pytest.raises(UsageError, match="no run 'never' in the ledger") as missing:
        sky.results("never")
    assert missing.value.hint == Hint("list-all")
    with new_session() as session:
        for verb in (session.tear_down, session.attach, session.observe):
            with pytest.raises(PoolError, match="is up; ") as refused:
                verb("never").result(60)
            assert refused.value.hint == Hint("list")


@pytest.mark.parametrize("reason", ["stopped because the run was cancelled", "stopped because the pool is torn down"])
def test_cancelled_run_has_no_cause_when_ranks_only_lost_stopped_peers(reason: str) -> None:
    stopped = Outcome(1, 1, 1, "collateral", error=ErrorInfo("Stopped", reason))
    echoes = [raised(0, *ECHOES[0]), ABORTED]
    assert root_cause([*echoes, stopped]) is None
    assert summarize_outcomes([*echoes, stopped]) == ("cancelled", None)
    assert culprit(*echoes, stopped, KILLED) == KILLED.rank, "a failure of its own is one"
    assert culprit(*echoes, STOPPED) == ABORTED.rank, "fail-fast is no request of a user"
