"""Summaries and pickles of results, descriptions of exceptions, and the journal of an agent."""

from __future__ import annotations

import copyreg
import functools
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skyward_core
from skyward_core.model.errors import NotPicklableError, RemoteError
from skyward_core.model.outcomes_states_and_alerts import ErrorInfo, Outcome, Summary
from skyward_core.node.agent import call_journal
from skyward_core.node.agent.call_journal import Journal
from skyward_core.node.agent.call_registry import Call, CallRegistry
from skyward_core.node.worker import returned_exceptions
from skyward_core.node.worker.result_pickles_and_summaries import JSON_LIMIT, MAX_TEXT, pickle_result, summarize
from skyward_core.node.worker.returned_exceptions import describe_error
from skyward_core.pool.agent_link import is_notification
from skyward_core.pool.runs.result_loading_and_run_errors import load_exception
from skyward_core.protocol.frame_codec import MAX_EXCEPTION_BYTES, MAX_INLINE_BYTES, encode_frame


class Trap:
    """User code that must not run when a result is summarized."""

    def __repr__(self) -> str:
        raise SystemExit("repr was called")

    __str__ = __len__ = __eq__ = __lt__ = __iter__ = __bool__ = __repr__  # type: ignore[assignment]
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(f"{name} was asked for")

    @property
    def shape(self) -> Any:
        raise SystemExit("shape was asked for")


class TrapList(list):  # type: ignore[type-arg]
    __repr__ = __iter__ = Trap.__repr__  # type: ignore[assignment]


class TrapDict(dict):  # type: ignore[type-arg]
    __repr__ = __iter__ = items = Trap.__repr__  # type: ignore[assignment]


class TrapInt(int):
    __repr__ = Trap.__repr__


TrapList.__name__ = "list"


def summarized(value: Any) -> Summary:
    summary = Summary(**summarize(value, 0))
    assert len(summary.text) <= MAX_TEXT
    return summary


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**63), 1.5, "grüße\n🚀", "caf\udce9", [], [1, [2, [None]]],
        {"loss": 0.5, "steps": [1, 2], "nested": {"a": "b"}},
    ],
)  # fmt: skip
def test_small_json_values_are_summarized_as_they_are(value: Any) -> None:
    summary = summarized(value)
    assert summary.is_json
    assert summary.json == value
    assert summary.type == type(value).__name__
    assert summary.text == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), [1.0, float("-inf")], {1: 2}, {"a": {2: 3}}, {"a": {1, 2}}, 2**64, b"bytes", 1j,
        "x" * (JSON_LIMIT + 1), {"k" * (JSON_LIMIT + 1): 1}, list(range(JSON_LIMIT)), [["x" * 1000] * 10] * 10,
        {str(i): i for i in range(JSON_LIMIT)}, OrderedDict(a=1), np.zeros(3), np.float64("nan"),
    ],
)  # fmt: skip
def test_results_without_a_json_form_are_described_in_words(value: Any) -> None:
    summary = summarized(value)
    assert not summary.is_json
    if isinstance(summary.json, dict):  # what is in a dictionary, one by one
        assert type(value) is dict and len(value) == len(summary.json)
    else:
        assert summary.json is None
    assert summary.text


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5), (np.float64(0.5), 0.5), (np.int64(-3), -3), (np.uint8(3), 3), (np.bool_(True), True),
        (np.array(4), 4), ({"loss": np.float32(2.0), "n": np.int32(1)}, {"loss": 2.0, "n": 1}), (np.str_("s"), "s"),
    ],
)  # fmt: skip
def test_numpy_scalars_are_summarized_as_numbers(value: Any, plain: Any) -> None:
    summary = summarized(value)
    assert summary.is_json
    assert summary.json == plain
    assert type(summary.json) is type(plain)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((2, 3), "f4"), "ndarray float32 2 × 3"), (np.longdouble(1), "longdouble"),
        (np.datetime64("2020-01-01"), "datetime64"), (np.dtype("f4"), "DType"),
        (np.random.default_rng(0), "Generator object"), (b"x" * 5000, "5,000 bytes"), (10**5000, "int of 16,610 bits"),
        ([10**5000], "list of 1: [int of 16,610 bits]"), (list(range(9000)), "list of 9,000: [0, 1, 2, 3, 4, …]"),
        ({2: "a", "b": [{3}]}, "dict of 2: {2: 'a', 'b': [{3}]}"), ({()}, "set of 1: {()}"),
        ({(1, 2): [[[[5]]]]}, "dict of 1: {tuple of 2: [[list of 1]]}"), ("y" * 99_999, "'yyyy"), (float("nan"), "nan"),
        (functools.partial(print, 1), "functools.partial object"),
    ],
    ids=lambda _: "",
)  # fmt: skip
def test_result_description_names_type_and_size(value: Any, words: str) -> None:
    assert words in summarized(value).text


def test_tensors_of_other_libraries_are_described_as_arrays() -> None:
    class Tensor:
        shape, dtype = (2, 3), "torch.float32"

    class Linear:  # a module of torch has no shape
        pass

    Tensor.__module__, Linear.__module__ = "torch", "torch.nn.modules.linear"
    Linear.__qualname__ = "Linear"
    assert summarized(Tensor()).text == "Tensor torch.float32 2 × 3"
    assert summarized([Tensor()]).text == "list of 1: [Tensor torch.float32 2 × 3]"
    assert summarized(Linear()).text == "torch.nn.modules.linear.Linear object"


@pytest.mark.parametrize(
    "value",
    [
        Trap(), [Trap()], (Trap(), 1), {"a": Trap()}, {Trap(): 1, Trap(): 2}, {Trap(), Trap()}, TrapList([1]),
        [TrapList([1])], TrapDict(a=1), {"a": TrapDict()}, TrapInt(3), [TrapInt(3)],
    ],
    ids=lambda _: "",
)  # fmt: skip
def test_summary_runs_no_code_of_the_value(value: Any) -> None:
    assert not summarized(value).is_json


def test_recursive_value_is_summarized() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert summarized(loop).text.startswith("list of 2: [1, [1, [1, list of 2")
    ring: dict[str, Any] = {}
    ring["self"] = ring
    assert not summarized(ring).is_json


# -- pickles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [{"a": 1}, None])
def test_small_result_stays_in_memory(tmp_path: Path, value: Any) -> None:
    made = pickle_result(value, "f()", str(tmp_path / "x.result"))
    assert pickle.loads(made.data) == value
    assert made.header() == {"summary": summarize(value, len(made.data)), "size": len(made.data)}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", [random.Random(1).randbytes(5 * MAX_INLINE_BYTES), np.arange(MAX_INLINE_BYTES)], ids=["bytes", "array"]
)
def test_large_result_is_written_to_a_file(tmp_path: Path, value: Any) -> None:
    made = pickle_result(value, "f()", str(tmp_path / "x.result"))
    header = made.header()
    assert header["file"] == "x.result"
    data = (tmp_path / "x.result").read_bytes()
    assert header["size"] == made.size == len(data)
    assert made.data == b""
    assert np.array_equal(pickle.loads(data), value)


def test_unpicklable_result_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    value = {"model": [bytes(5 * MAX_INLINE_BYTES), np.arange(MAX_INLINE_BYTES), threading.Lock()]}
    with pytest.raises(NotPicklableError) as caught:
        pickle_result(value, "train()", str(tmp_path / "x.result"))
    assert str(caught.value) == (
        "the result of train() cannot be sent back: lock object at result['model'][2] "
        "(cannot pickle '_thread.lock' object)"
    )
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotPicklableError, match=r"result of train\(\) cannot be sent back: lock object \(cannot"):
        pickle_result(threading.Lock(), "train()", str(tmp_path / "x.result"))


def test_full_spool_is_an_os_error_and_leaves_no_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MAX_INLINE_BYTES, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            pickle_result(bytes(5 * MAX_INLINE_BYTES), "f()", str(tmp_path / "x.result"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        pickle_result(bytes(5 * MAX_INLINE_BYTES), "f()", str(tmp_path / "gone" / "x.result"))


# -- exceptions --------------------------------------------------------------------------------------------------


class Coded(Exception):
    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class MadeUp(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class KeywordOnly(Exception):
    def __init__(self, *, where: str) -> None:
        super().__init__(f"at {where}")
        self.where = where


class NoArgs(Exception):
    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__()

    def __str__(self) -> str:
        return f"bad {self.path}"


class Holding(Exception):
    """Object with an attribute that cannot be pickled."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.lock = threading.Lock()
        self.step = 7


class Detail:
    """Object without ``__eq__``."""

    def __init__(self, x: int) -> None:
        self.x = x


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Choosy(Exception):
    """Exception that cannot be recreated in any way."""

    def __new__(cls, *args: Any) -> Choosy:
        if args and args[0] != "the password":
            raise TypeError("no entry")
        return super().__new__(cls, *args)

    def __init__(self, *args: Any) -> None:
        super().__init__("something else")
        self.step = 3


def caught(error: BaseException) -> tuple[Any, BaseException]:
    """Raise and describe an exception, and return the loaded copy."""
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001
        header, data = describe_error(raised)
    back = pickle.loads(data)
    assert isinstance(back, BaseException)
    return header, back


@pytest.mark.parametrize("depth", [400, 490, 600, 3000])
def test_exception_groups_of_any_depth_are_described(depth: int) -> None:
    error: Exception = ValueError("at the bottom")
    for _ in range(depth):
        error = ExceptionGroup("deep", [error])
    answer = None
    with suppress(RecursionError):  # pytest could not tell of it
        answer = caught(error)
    assert answer is not None
    header, back = answer
    assert (header["type"], header["message"]) == ("ExceptionGroup", "deep (1 sub-exception)")
    assert "deep (1 sub-exception)" in str(back)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"), ValueError(), KeyError("loss"), FileNotFoundError(2, "No such file", "/data/x"),
        ConnectionResetError(104, "Connection reset by peer"),
        UnicodeDecodeError("utf-8", b"\xff\xfe", 0, 1, "invalid start byte"), StopIteration(5),
        SyntaxError("bad", ("f.py", 1, 2, "x ==")), KeyboardInterrupt(), Coded(42, "no luck"), MadeUp(5),
        KeywordOnly(where="here"), NoArgs("/tmp"), ExceptionGroup("several", [ValueError("a"), Coded(1, "b")]),
        subprocess.CalledProcessError(3, ["make"], b"out"), ModuleNotFoundError("No module named 'x'", name="x"),
        ValueError("bad array", np.array([1, 2, 3])), TypeError(Detail(3)),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_exception_keeps_type_message_and_attributes(error: BaseException) -> None:
    header, back = caught(error)
    assert type(back) is type(error)
    if any(isinstance(arg, Detail) for arg in error.args):
        assert back.args[0].x == 3
    else:
        assert str(back) == str(error) == header["message"]
        assert repr(back.args) == repr(error.args)
    assert {key: part for key, part in vars(back).items() if key != "exceptions"} == vars(error)
    if isinstance(error, OSError):
        assert isinstance(back, OSError)
        assert (back.errno, back.filename) == (error.errno, error.filename)
    if isinstance(error, ExceptionGroup):
        assert isinstance(back, ExceptionGroup)
        assert [str(e) for e in back.exceptions] == ["a", "b"]
        assert vars(back.exceptions[1])["code"] == 1


def test_unpicklable_attributes_of_an_exception_are_omitted() -> None:
    _, back = caught(Holding("stuck"))
    assert type(back) is Holding
    assert str(back) == "stuck"
    assert vars(back) == {"step": 7}


def test_exception_with_unpicklable_arguments_keeps_type_and_message() -> None:
    error = RuntimeError("stuck on", threading.Lock())
    _, back = caught(error)
    assert type(back) is RuntimeError
    assert str(back) == str(error)


def test_exception_that_cannot_be_rebuilt_becomes_a_remote_error() -> None:
    header, back = caught(Choosy("the password"))
    assert isinstance(back, RemoteError)
    assert back.type_name == header["type"]
    assert back.type_name.endswith("Choosy")
    assert str(back) == f"{back.type_name}: something else"
    assert back.attributes == {"step": 3}


def test_exception_whose_str_raises_is_described() -> None:
    header, back = caught(Mute())
    assert header["message"] == "(its __str__ raised ValueError)"
    assert type(back) is Mute
    assert "Mute" in header["traceback"]


def test_long_exception_messages_are_cut() -> None:
    header, _ = caught(ValueError("x" * 1_000_000 + " at its end"))
    assert len(header["message"]) <= 8192
    assert len(header["traceback"]) <= 65536
    assert "in caught" in header["traceback"], "where it was raised stands before a message of any length"
    assert header["traceback"].endswith("x at its end\n") and " characters omitted " in header["traceback"]


def test_library_frames_below_user_code_are_kept() -> None:
    from skyward_core.runtime.sharding import shard

    try:
        shard([1, 2], [1])
    except ValueError as error:
        header, _ = describe_error(error)
    assert __file__ in header["traceback"]
    assert "sharding.py" in header["traceback"]


def test_folder_named_like_the_package_is_user_code() -> None:
    ours = str(Path(skyward_core.__file__).parent)
    code = compile("def f():\n    raise ValueError('x')", f"{ours}_mine/script.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    try:
        space["f"]()
    except ValueError as error:
        assert error.__traceback__ is not None
        header, _ = describe_error(error.with_traceback(error.__traceback__.tb_next))
    assert "_mine/script.py" in header["traceback"]


def test_traceback_has_causes_and_notes() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            outer = ValueError("outer")
            outer.add_note("seen at step 3")
            raise outer from inner
    except ValueError as error:
        header, data = describe_error(error)
    assert "KeyError: 'inner'" in header["traceback"]
    assert "seen at step 3" in header["traceback"]
    assert pickle.loads(data).__notes__ == ["seen at step 3"]


def test_exception_class_of_a_script_is_pickled_by_value() -> None:
    source = "class Own(Exception):\n    def __init__(self, a, b):\n        super().__init__(a)\n        self.b = b\n"
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(source, space)
    header, data = describe_error(space["Own"]("words", 5))
    assert header["type"] == "Own"
    check = "import pickle, sys; e = pickle.loads(sys.stdin.buffer.read()); print(type(e).__name__, e, e.b)"
    done = subprocess.run([sys.executable, "-c", check], input=data, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "Own words 5"


def test_exception_without_a_pickle_is_no_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that gets a notification waits for the value, for example if ``types.py`` of the user hides modules."""

    def fail(*_: Any) -> bytes:
        raise AttributeError("module 'types' has no attribute 'ModuleType'")

    monkeypatch.setattr(returned_exceptions, "_pickle_error", fail)
    header, data = describe_error(LookupError("no data"))
    outcome: Any = {"t": "outcome", "run": "r", "i": 0, "kind": "raised"}
    assert not is_notification(outcome, data)
    loaded = load_exception(Outcome(0, 0, 0, "raised", error=ErrorInfo(header["type"], header["message"])), data)
    assert (type(loaded), str(loaded)) == (RemoteError, "LookupError: no data")


def test_missing_package_error_says_how_to_install_it() -> None:
    try:
        import no_such_framework.nn  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        header, _ = describe_error(error)
    assert header["message"] == "No module named 'no_such_framework'"
    assert f"not installed for {sys.executable} on this node" in header["traceback"]
    assert 'Image(pip=["no_such_framework"])' in header["traceback"]
    assert "Your own modules must be beside the script or in the working folder." in header["traceback"]


@pytest.mark.parametrize(("module", "package"), [("no_such_yaml", "no_such_yaml"), ("sklearn.svm", "scikit-learn")])
def test_missing_module_names_the_package_that_provides_it(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    header, _ = describe_error(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert f'Image(pip=["{package}"])' in header["traceback"]


def test_too_large_exception_is_replaced() -> None:
    error = ValueError("too much")
    error.one, error.two = b"x" * (MAX_EXCEPTION_BYTES // 2), b"y" * (MAX_EXCEPTION_BYTES // 2)  # type: ignore[attr-defined]
    message, data = describe_error(error)
    assert message["type"] == "ValueError" and len(data) <= MAX_EXCEPTION_BYTES
    assert "too much" in str(pickle.loads(data))


@pytest.mark.parametrize(
    "error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), SyntaxError("bad", ("f.py", 1, 1, "x"))]
)
def test_exception_survives_pickling_hooks_of_other_libraries(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arguments_alone(value: BaseException) -> tuple[object, ...]:
        return bare, (type(value), value.args)

    arguments_alone.__module__ = "tblib.pickling_support"
    monkeypatch.setitem(copyreg.dispatch_table, type(error), arguments_alone)  # type: ignore[arg-type]
    header, back = caught(error)
    assert str(back) == str(error) == header["message"]


def bare(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    made = kind.__new__(kind)
    made.args = args
    return made


# The agent's journal: what the next agent reads, and how large it may grow.


class Node:
    """Journal of an agent during one long call and many short ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.registry = CallRegistry()
        self.journal = Journal(path, self.registry.unacknowledged)

    def add_item(self, run: str) -> Call:
        asked: Any = {"run": run, "i": 0, "kind": "single", "name": "f"}
        call = Call(run, 0, asked, b"", None, rank=1)
        call.started_at, call.slot = 1.0, 2
        self.registry.add(call)
        self.journal.write(call.given_frame())
        return call

    def end(self, call: Call, result: bytes) -> None:
        header: Any = {"t": "outcome", "run": call.run, "i": 0, "kind": "returned"}
        call.result = result
        self.registry.record_outcome(call, header)
        self.journal.write(encode_frame(header, result))

    def read(self) -> list[tuple[str, str, bytes]]:
        """Read the journal as the next agent does."""
        read: Any = Journal(self.path, lambda: ()).read()
        return [(h["t"], h.get("call", h)["run"], body) for h, body in read]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(call_journal, "LEAST_JOURNAL_BYTES", 20_000)
    return Node(tmp_path / "journal")


def test_journal_stays_small_beside_a_long_call(node: Node) -> None:
    node.add_item("long")
    waiting: list[tuple[str, str, bytes]] = [("given", "long", b"")]
    for number in range(300):
        call = node.add_item(f"r{number}")
        node.end(call, b"%d" % number * 400)
        if number % 50 == 49:  # nobody fetched it yet
            waiting += [("given", call.run, b""), ("outcome", call.run, call.result)]
        else:
            node.registry.drop(call)
        assert node.path.stat().st_size < 50_000
        # Killed now, the next agent learns of all that nobody has acknowledged, and has the place of each.
        assert set(node.read()) >= set(waiting)
    assert len(waiting) == 13
    given = [header for header, _ in Journal(node.path, lambda: ()).read() if header["t"] == "given"]
    assert {(header["slot"], header["rank"]) for header in given} == {(2, 1)}


def test_journal_keeps_the_outcome_that_exceeds_its_limit(node: Node) -> None:
    node.end(node.add_item("large"), b"x" * 30_000)
    assert node.read() == [("given", "large", b""), ("outcome", "large", b"x" * 30_000)]


def test_journal_continues_if_it_cannot_be_compacted(node: Node) -> None:
    node.path.with_suffix(".new").mkdir()  # in its way
    node.end(node.add_item("large"), b"x" * 30_000)
    node.add_item("next")
    assert [run for _, run, _ in node.read()] == ["large", "large", "next"]


def test_incomplete_journal_frame_hides_no_later_frame(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add_item("first")
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    node.add_item("cut short")
    monkeypatch.undo()
    node.add_item("last")
    assert [run for _, run, _ in node.read()] == ["first", "last"]
