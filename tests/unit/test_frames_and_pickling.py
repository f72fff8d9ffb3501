"""Validation and decoding of frames, and pickling of functions and arguments with errors that name the culprit."""

from __future__ import annotations

import contextvars
import functools
import json
import pickle
import random
import struct
import sys
import threading
import tracemalloc
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.model.errors import NotPicklableError
from skyward_core.model.function import function
from skyward_core.node.worker import result_pickler
from skyward_core.protocol import frame_schemas_and_size_limits as frame_schemas
from skyward_core.protocol import validators
from skyward_core.protocol.frame_codec import CHUNK_BYTES, MAX_INLINE_BYTES, VERSION, Decoder, WireError, encode_frame
from skyward_core.protocol.frame_schemas_and_size_limits import validate_agent_frame, validate_client_frame
from skyward_core.tasks import function_pickling
from skyward_core.tasks.function_pickling import make_task, make_tasks
from skyward_core.tasks.pickled_calls_and_blobs import Task
from skyward_core.util.content_hash import hash_bytes
from tests.protocol_page import TABLES, answers, parts_of
from tests.support.any_text import CHARACTERS
from tests.support.sample_frames import BEGAN, LOG, OUTCOME, RECORD, SUMMARY, WELCOME

ERROR = {"type": "ValueError", "message": "no", "traceback": ""}
OUTPUT = {"path": "out/a b\n.pt", "version": "1a.2b.3c"}
CALL: dict[str, Any] = {"t": "call", "run": "r", "i": 0, "fn": ["ab" * 16, 9], "args": ["cd" * 16, 9]}


def is_refused(admit: Any, header: dict[str, Any], body: int = 0) -> bool:
    try:
        admit(header, len(json.dumps(header)), body)
    except WireError:
        return True
    return False


@pytest.mark.parametrize(
    "header", [WELCOME, OUTCOME, BEGAN, LOG, {"t": "run"} | RECORD, {"t": "of another release", "f": "../x"}]
)
def test_valid_agent_frames_are_accepted(header: dict[str, Any]) -> None:
    assert not is_refused(validate_agent_frame, header)


def test_welcome_of_another_release_needs_only_its_version() -> None:
    assert not is_refused(validate_agent_frame, {"t": "welcome", "version": VERSION + 1, "runs": "in another shape"})
    assert is_refused(validate_agent_frame, {"t": "welcome"})


@pytest.mark.parametrize(
    "name",
    ["r0./../../../x", "../r000.out", "r000.out/..", "x", "", "r000", "r000.txt", "r000.out\n", "r0.out", ".", None, 3,
     "r00.out", "r000.00001.out", "r000..out", "r000.1.2.out", "x000.out", ".out", "r\u0661\u0661\u0661.out",
     "r00000000000.out", ["r000.out"]],
)  # fmt: skip
def test_frames_with_invalid_log_names_are_refused(name: Any) -> None:
    assert is_refused(validate_agent_frame, LOG | {"f": name})
    if isinstance(name, str):
        assert is_refused(validate_agent_frame, OUTCOME | {"log": {name: [0, 1]}})
        assert is_refused(validate_agent_frame, {"t": "bye", "logs": {name: 1}})
        assert is_refused(
            validate_agent_frame, WELCOME | {"runs": [RECORD | {"outcomes": [OUTCOME | {"log": {name: [0, 1]}}]}]}
        )
        assert is_refused(validate_client_frame, {"t": "tail", "cursors": {name: 1}})


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\x00b", "a" * 201, None, 7])
def test_frames_with_paths_as_file_names_are_refused(name: Any) -> None:
    assert is_refused(validate_agent_frame, OUTCOME | {"file": name})
    assert is_refused(validate_client_frame, {"t": "fetch", "id": 1, "f": name})
    assert is_refused(validate_client_frame, {"t": "drop", "id": 1, "blobs": [name]})
    assert is_refused(validate_client_frame, CALL | {"fn": [name, 1]})


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../b", "a//b", "./a", "", "a\x00b", "a" * 5000, None, 7])
def test_output_paths_outside_the_folder_are_refused(path: Any) -> None:
    file = OUTPUT | {"path": path}
    assert is_refused(validate_client_frame, {"t": "output", "id": 1} | file)
    data = {"t": "known", "id": 1, "files": [file | {"size": 1, "at": 1.5}], "more": 0, "folder": "/w", "now": 2.5}
    with pytest.raises(WireError):
        frame_schemas.validate_answer("written", data)


@pytest.mark.parametrize(
    "wrong",
    [{"i": -1}, {"i": 1 << 40}, {"i": True}, {"i": "0"}, {"rank": 1 << 40}, {"node": None}, {"kind": "\x1b[2J"},
     {"kind": ["returned"]}, {"run": "a/b"}, {"run": "x" * 65}, {"run": 7}, {"summary": {"type": "int"}},
     {"summary": SUMMARY | {"more": 1}}, {"error": {"type": 1, "message": ""}}, {"seconds": "1"},
     {"seconds": float("nan")}, {"size": -1},
     {"log": {"r000.out": [0]}}, {"log": {"r000.out": [-1, 5]}}, {"log": [1]}, {"last": 3}, {"items": 1.5}],
)  # fmt: skip
def test_invalid_outcome_is_refused(wrong: dict[str, Any]) -> None:
    assert is_refused(validate_agent_frame, OUTCOME | wrong)


def test_peers_frame_needs_certificates_and_errors_quote_no_secret() -> None:
    asked: dict[str, Any] = {"t": "peers", "id": 1, "authority": "", "certificate": "", "key": ""}
    assert not is_refused(validate_client_frame, asked)
    for key in ("authority", "certificate", "key"):
        assert is_refused(validate_client_frame, asked | {key: None})
        assert is_refused(validate_client_frame, {name: value for name, value in asked.items() if name != key})
    env = {"t": "known", "env": {"HF_TOKEN": "hf_verysecret", "N": 1}, "secrets": ["s"], "known": True, "apps": False}
    with pytest.raises(WireError, match=r"invalid type of key .*: dict") as caught:
        frame_schemas.validate_answer("setup", env)
    assert "hf_" not in str(caught.value)


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


@pytest.mark.parametrize("value", [float("inf"), float("nan"), {"a": [float("-inf")]}, deep(900)])
def test_summary_that_is_not_json_is_refused(value: Any) -> None:
    assert is_refused(validate_agent_frame, OUTCOME | {"summary": SUMMARY | {"json": value}})
    assert not is_refused(validate_agent_frame, OUTCOME | {"summary": SUMMARY | {"json": deep(32)}})


def test_body_larger_than_its_kind_allows_is_refused() -> None:
    assert not is_refused(validate_agent_frame, LOG, CHUNK_BYTES)
    assert is_refused(validate_agent_frame, LOG, CHUNK_BYTES + 1)
    assert is_refused(validate_agent_frame, BEGAN, 1)
    assert is_refused(validate_client_frame, CALL, 2 * MAX_INLINE_BYTES + 1)
    assert is_refused(validate_agent_frame, {"t": "of another release"}, MAX_INLINE_BYTES + 1)


def test_body_of_four_gigabytes_is_refused_before_it_arrives() -> None:
    head = json.dumps(LOG).encode()
    decoder, data = Decoder(validate_agent_frame), struct.pack("!II", len(head), 2**32 - 1) + head
    assert list(decoder.feed(data[:-1])) == []
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"4,294,967,295 bytes"):
            list(decoder.feed(data[-1:] + b"x" * 100))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


FORMS = {prefix: forms for _, prefix, _, forms in TABLES}
SAMPLES: dict[validators.Check, Any] = {
    validators.is_text: "x", validators.is_signature: "ab",
    validators.is_run_id: "r", validators.is_file_name: "ab", validators.is_bool: True,
    validators.is_log_name: "r000.out", validators.is_valid_log_name: "r000.out", validators.is_plain: [1],
    validators.is_relative_subpath: "out/a b\n.pt", validators.is_number: 1.5, validators.is_integer: 1,
    validators.is_count: 1, validators.is_call_index: 0, validators.is_rank: 0, validators.is_rank_count: 2,
    validators.is_port: 7, validators.is_span: [0, 1], validators.is_metric_summary: [1.0, None, 2.0],
    validators.is_stack_frame: ["f", "a.py", 1], validators.is_blob: ["ab" * 16, 9], validators.is_rank_info: {},
    validators.is_node_place: [0, "10.0.0.1", 7], validators.is_node_text: "3", validators.is_address: ["10.0.0.1", 7],
}  # fmt: skip


def sample(check: validators.Check) -> Any:
    """Return a value that a validator accepts, with no key that may be missing."""
    match parts_of(check):
        case "optional", {"check": inner}:
            return sample(inner)
        case "list_of", {"check": inner}:
            return [sample(inner)]
        case "dict_of", {"name": name, "check": inner}:
            return {sample(name): sample(inner)}
        case "one_of", {"values": values}:
            return values[0]
        case "object_of", {"needs": needs}:
            return {key: sample(each) for key, each in needs.items()}
    return SAMPLES[check]


NONSENSE: list[Any] = [{"\x1b[2J": [-7.5]}, [{"../x": None}], -7.5]


@pytest.mark.parametrize(("who", "kind"), [(who, kind) for who, forms in FORMS.items() for kind in sorted(forms)])
def test_every_key_of_a_frame_is_validated(who: str, kind: str) -> None:
    form = FORMS[who][kind]
    good = {key: sample(check) for key, check in form.needs.items()} | {"t": kind}
    admit = partial(frame_schemas.validate_header, FORMS[who])
    assert not is_refused(admit, good, form.body)
    assert not is_refused(admit, good | {key: sample(check) for key, check in form.may.items()}, form.body)
    assert is_refused(admit, good, form.body + 1)
    assert all(is_refused(admit, {k: v for k, v in good.items() if k != key}) for key in form.needs)
    passed = [key for key in form.checks if not any(is_refused(admit, good | {key: value}) for value in NONSENSE)]
    assert passed == []


@pytest.mark.parametrize("asked", sorted(answers()))
def test_every_key_of_an_answer_is_validated(asked: str) -> None:
    good = {key: sample(check) for key, check in answers()[asked].items()} | {"t": "known", "id": 1}
    frame_schemas.validate_answer(asked, good)
    for key in answers()[asked]:
        for value in NONSENSE:
            with pytest.raises(WireError, match=key):
                frame_schemas.validate_answer(asked, good | {key: value})


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(CHARACTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
def test_invalid_frames_raise_only_wire_errors(data: st.DataObject) -> None:
    forms = FORMS[data.draw(st.sampled_from(sorted(FORMS)))]
    kind = data.draw(st.sampled_from(sorted(forms)) | st.text(CHARACTERS, max_size=5))
    form = forms.get(kind)
    keys = sorted({*form.needs, *form.may}) if form else ["x"]
    known = st.sampled_from(
        [None, 0, 1, "r", "r000.out", OUTCOME, RECORD, SUMMARY, ERROR, [0, 1], {"r000.out": [0, 1]}]
    )
    header = data.draw(st.dictionaries(st.sampled_from(keys or ["x"]), known | values)) | {"t": kind}
    decoder = Decoder(lambda *frame: frame_schemas.validate_header(forms, *frame))
    try:
        list(decoder.feed(encode_frame(header, b"body")))
    except WireError:
        return
    assert form is None or (form.body and form.needs.keys() <= header.keys())


# Frames, however the bytes of a stream happen to be cut.

FRAMES: list[tuple[dict[str, Any], bytes]] = [
    ({"t": "hello"}, b""),
    ({"t": "log", "f": "r000.out", "at": 7}, b"some\nlines\n"),
    ({"t": "call", "run": "x", "i": 0, "args": ["ab", 3]}, bytes(range(256)) * 3),
    ({"t": "outcome", "summary": {"json": {"a": None, "b": [True, 1.5]}}}, b"\0"),
    ({"t": "words", "text": "grüße 🚀 \u2028 \x00"}, b""),
]
STREAM = b"".join(encode_frame(header, body) for header, body in FRAMES)


def decode(*chunks: bytes) -> list[tuple[dict, bytes]]:
    decoder = Decoder()
    return [found for chunk in chunks for found in decoder.feed(chunk)]


def test_frame_is_yielded_as_soon_as_it_is_complete() -> None:
    decoder = Decoder()
    whole = encode_frame({"t": "a"}, b"body")
    assert list(decoder.feed(whole[:-1])) == []
    assert list(decoder.feed(whole[-1:] + whole[:3])) == [({"t": "a"}, b"body")]
    assert list(decoder.feed(whole[3:])) == [({"t": "a"}, b"body")]


def test_large_body_takes_memory_of_about_its_size() -> None:
    body = random.Random(1).randbytes(8 * CHUNK_BYTES)
    data = encode_frame({"t": "data"}, body)
    pieces = [data[i : i + MAX_INLINE_BYTES] for i in range(0, len(data), MAX_INLINE_BYTES)]
    tracemalloc.start()
    try:
        assert decode(*pieces)[0][1] == body
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body)


def test_decoder_continues_after_an_interrupted_iteration() -> None:
    decoder = Decoder()
    for header, _ in decoder.feed(STREAM):
        if header["t"] == "log":
            break
    assert [header["t"] for header, _ in decoder.feed(b"")] == ["call", "outcome", "words"]


def test_surrogate_escaped_text_survives() -> None:
    name = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    assert decode(encode_frame({"t": "x", "name": name})) == [({"t": "x", "name": name}, b"")]


def lengths(head: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!II", len(head), len(body)) + head + body


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"\x80\x04\x95" + b"\xff" * 20, lengths(b"{"),
        lengths(b"not json"), lengths(b"\xff\xfe{}"), lengths(b""), lengths(b"[1, 2]"), lengths(b"null"),
        lengths(b'"t"'), lengths(b'{"kind": "no t"}'), lengths(b"[" * 100_000),
    ],
)  # fmt: skip
def test_invalid_bytes_are_a_wire_error(garbage: bytes) -> None:
    with pytest.raises(WireError):
        decode(garbage)
    with pytest.raises(WireError):
        decode(STREAM + garbage)


# What travels, and the words for what cannot.

LOCK = threading.Lock()
HELD = contextvars.ContextVar[int]("HELD")  # of a module that ranks have
fine = 1  # as a global of the test functions below


@function
def train(config: Any = None, *rest: Any, lr: float = 0.1, **more: Any) -> Any:
    return config


def call(task: Task) -> Any:
    fn = pickle.loads(task.fn.read())
    args, kwargs = pickle.loads(task.args.read())
    return fn(*args, **kwargs)


def payload_refused(pending: Any) -> str:
    with pytest.raises(NotPicklableError) as caught:
        make_task(pending)
    assert caught.value.__cause__ is not None
    return str(caught.value)


def local_function(body: Any) -> Any:
    """Return a function as if it were defined in a script, so that it is pickled by value."""
    body.__module__ = "__main__"
    return function(body)


def test_task_is_pickled_and_called(tmp_path: Path) -> None:
    def add(a: int, b: int = 0) -> int:
        return a + b

    task = make_task(function(add)(2, b=3).with_timeout(9), folder=tmp_path)
    assert (task.name, task.timeout, task.stream) == ("add", 9, False)
    assert call(task) == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pickled", [function_pickling.dumps, result_pickler.dumps], ids=["call", "result"])
def test_function_pickled_by_value_keeps_its_file_name(pickled: Any) -> None:
    def outer() -> Any:
        return lambda: 1

    fn = pickle.loads(pickled(outer))
    assert fn.__code__ == outer.__code__ and fn is not outer
    assert [fn.__code__.co_filename, fn().__code__.co_filename] == [__file__, __file__]


def test_context_variable_keeps_its_default_and_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = contextvars.ContextVar[Any]("mine", default=1)
    bare = contextvars.ContextVar[int]("bare")
    of_module = HELD
    of_script = contextvars.ContextVar[int]("of_script")
    monkeypatch.setattr(sys.modules["__main__"], "of_script", of_script, raising=False)
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])  # as multiprocessing has it

    def inner() -> Any:
        return mine.get()

    def outer(value: Any) -> Any:
        before = mine.get(), bare.get(7)
        with pytest.raises(LookupError):
            bare.get()
        token = mine.set(value)
        found = inner()
        mine.reset(token)
        return before, found, of_module, of_script

    mine.set("the client's own")
    before, found, there, own = call(make_task(local_function(outer)("set there")))
    assert (before, found) == ((1, 7), "set there") and there is HELD
    assert own.name == "of_script" and own is not of_script, "a node has no such script"


def test_blobs_are_named_by_content(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 * MAX_INLINE_BYTES)
    first, second = (make_task(train(data), folder=tmp_path) for _ in range(2))
    for blob in (first.fn, first.args):
        assert blob.hash == hash_bytes(blob.read())
        assert blob.size == len(blob.read())
    assert first.args.data is None
    assert first.args.path is not None
    assert first.args.path.parent == tmp_path
    assert first.fn.data is not None
    assert first.args.hash == second.args.hash != make_task(train(data + b"!"), folder=tmp_path).args.hash
    assert make_task(train()).args.hash == make_task(function(lambda: 0)()).args.hash


def test_large_argument_is_not_held_in_memory(tmp_path: Path) -> None:
    data = bytes(32 << 20)
    pending = train({"weights": data})
    tracemalloc.start()
    try:
        task = make_task(pending, folder=tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert task.args.size > len(data)
    assert peak < len(data) // 4


def test_file_of_an_unpicklable_argument_is_removed(tmp_path: Path) -> None:
    with pytest.raises(NotPicklableError):
        make_task(train([bytes(4 * MAX_INLINE_BYTES), LOCK]), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_error_names_large_argument_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(NotPicklableError, match=r"arguments of train.* No such file or directory"):
        make_task(train(bytes(4 * MAX_INLINE_BYTES)), folder=tmp_path / "gone")


class Counted:
    """Object that counts how often it is pickled."""

    count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        type(self).count += 1
        return (int, ())


def test_function_is_pickled_once_per_group() -> None:
    seen = Counted()
    task = local_function(lambda x: (seen, x))
    other = local_function(lambda x: x)
    Counted.count = 0
    tasks = list(make_tasks((*(task(i) for i in range(50)), other(1), task(99)), (), None))
    assert Counted.count == 1
    assert len({t.fn.hash for t in tasks}) == 2
    assert tasks[0].fn is tasks[51].fn
    assert [pickle.loads(t.args.read())[0][0] for t in tasks] == [*range(50), 1, 99]


# -- what cannot travel ------------------------------------------------------------------------------------------


@dataclass
class Config:
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Slotted:
    inner: Any


class Method:
    def __init__(self) -> None:
        self.lock = LOCK

    def go(self) -> None:
        return None


@pytest.mark.parametrize(
    ("pending", "argument", "place"),
    [
        (train(LOCK), "config", ""),
        (train(1, 2, LOCK), "rest[1]", ""),
        (function(max)(1, LOCK), "#1", ""),  # type: ignore[type-var]
        (train(lr=LOCK), "lr", ""),  # type: ignore[call-overload]
        (train(extra=LOCK), "extra", ""),
        (train({"db": [1, LOCK]}), "config", " at config['db'][1]"),
        (train(Config({"a": {"b": (0, LOCK)}})), "config", " at config.parts['a']['b'][1]"),
        (train(Slotted(Slotted([LOCK]))), "config", " at config.inner.inner[0]"),
        (train(functools.partial(print, sep=LOCK)), "config", " at config.sep"),
        (train(Method().go), "config", " at config.lock"),
        (train({LOCK}), "config", ""),
    ],
)
def test_error_names_the_unpicklable_argument_and_its_place(pending: Any, argument: str, place: str) -> None:
    message = payload_refused(pending)
    assert message.startswith(f"argument '{argument}' of {pending.name}() cannot be pickled: lock object")
    assert f"{place} (cannot pickle '_thread.lock' object)" in message


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (lambda x: (fine, LOCK), "LOCK"),  # a global
        (lambda x: (lambda: [LOCK for _ in range(2)])(), "LOCK"),  # a global that only an inner function uses
        (lambda x, lock=LOCK, *, other=1: None, "lock"),  # a default value
    ],
)
def test_unpicklable_part_of_a_function_is_named(body: Any, place: str) -> None:
    assert f" lock object at {place} (" in payload_refused(local_function(body)(1))


def test_error_names_attribute_of_a_script_class() -> None:
    class Model:
        shared = LOCK

    Model.__module__ = "__main__"
    Model.__qualname__ = "Model"
    assert "lock object at Model.shared" in payload_refused(train(Model()))


def test_extreme_nesting_is_an_error_not_a_crash() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "argument 'config' of train() cannot be pickled" in payload_refused(train(deep))
    while deep:  # taken apart by hand: its own end would recurse as deep
        deep = deep.pop()


@given(
    takes=st.sampled_from(
        ["", "a", "a, b", "a, b=1", "a=0, b=1", "a, /, b=2", "*a", "a, *b", "a, *, c=1", "a, *, c", "**k"]
    ),
    args=st.lists(st.integers(), max_size=4),
    kwargs=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(), max_size=2),
)
def test_call_is_refused_exactly_if_python_refuses_it(takes: str, args: list[int], kwargs: dict[str, int]) -> None:
    names: dict[str, Any] = {}
    exec(f"def fn({takes}): pass", names)
    fn = names["fn"]
    try:
        fn(*args, **kwargs)
        taken = True
    except TypeError:
        taken = False
    try:
        make_task(function(fn)(*args, **kwargs))
    except TypeError:
        assert not taken
    else:
        assert taken


@given(
    values=st.lists(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS) | st.binary(), max_size=10
    )
)
def test_pickled_plain_arguments_round_trip(values: list[Any]) -> None:
    blob = make_task(function(lambda *given: None)(*values)).args
    args, kwargs = pickle.loads(blob.read())
    assert (repr(args), kwargs) == (repr(tuple(values)), {})
    assert [type(value) for value in args] == [type(value) for value in values]
    assert blob.size == len(blob.read())
