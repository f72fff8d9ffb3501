"""What travels, and the words for what cannot."""

from __future__ import annotations

import contextvars
import functools
import pickle
import random
import sys
import threading
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.model.errors import NotPicklableError
from skyward_core.model.function import function
from skyward_core.node.worker import result_pickler
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES
from skyward_core.tasks import function_pickling
from skyward_core.tasks.function_pickling import make_task, make_tasks
from skyward_core.tasks.task_and_blob_values import Task, read_tasks, write_tasks
from skyward_core.util.content_hash import hash_bytes
from tests.support.any_text import CHARACTERS

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


def refused(pending: Any) -> str:
    with pytest.raises(NotPicklableError) as caught:
        make_task(pending)
    assert caught.value.__cause__ is not None
    return str(caught.value)


def local_function(body: Any) -> Any:
    """As if it were written in a script: pickled by value."""
    body.__module__ = "__main__"
    return function(body)


def test_a_call_travels(tmp_path: Path) -> None:
    def add(a: int, b: int = 0) -> int:
        return a + b

    task = make_task(function(add)(2, b=3).with_timeout(9), folder=tmp_path)
    assert (task.name, task.timeout, task.stream) == ("add", 9, False)
    assert call(task) == 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pickled", [function_pickling.dumps, result_pickler.dumps], ids=["a call", "an answer"])
def test_what_goes_by_value_keeps_its_file_whatever_cloudpickle_thinks_of_it(pickled: Any) -> None:
    def outer() -> Any:
        return lambda: 1

    fn = pickle.loads(pickled(outer))
    assert fn.__code__ == outer.__code__ and fn is not outer
    assert [fn.__code__.co_filename, fn().__code__.co_filename] == [__file__, __file__]


def test_a_variable_of_contexts_goes_with_its_default_and_is_one_for_all_that_is_sent_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_a_generator_function_is_marked() -> None:
    def count(n: int):  # type: ignore[no-untyped-def]
        yield from range(n)

    assert make_task(function(count)(3)).stream
    assert [task.stream for task in make_tasks((function(count)(3), train()), (), None)] == [True, False]


def test_blobs_are_named_by_their_content(tmp_path: Path) -> None:
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


def test_a_large_argument_is_not_held_in_memory(tmp_path: Path) -> None:
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


def test_what_was_written_of_an_argument_that_cannot_travel_is_removed(tmp_path: Path) -> None:
    with pytest.raises(NotPicklableError):
        make_task(train([bytes(4 * MAX_INLINE_BYTES), LOCK]), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_large_argument_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotPicklableError, match=r"arguments of train.* No such file or directory"):
        make_task(train(bytes(4 * MAX_INLINE_BYTES)), folder=tmp_path / "gone")


class Counted:
    """Counts how often it is pickled."""

    count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        type(self).count += 1
        return (int, ())


def test_a_function_is_pickled_once_for_a_group() -> None:
    seen = Counted()
    task = local_function(lambda x: (seen, x))
    other = local_function(lambda x: x)
    Counted.count = 0
    tasks = list(make_tasks((*(task(i) for i in range(50)), other(1), task(99)), (), None))
    assert Counted.count == 1
    assert len({t.fn.hash for t in tasks}) == 2
    assert tasks[0].fn is tasks[51].fn
    assert [pickle.loads(t.args.read())[0][0] for t in tasks] == [*range(50), 1, 99]


@pytest.mark.parametrize("size", [10, 4 * MAX_INLINE_BYTES])
def test_a_task_passes_through_a_folder(size: int, tmp_path: Path) -> None:
    made, target = tmp_path / "made", tmp_path / "task"
    made.mkdir()
    target.mkdir()
    task = make_task(train(bytes(size), lr=0.5).with_timeout(3.5), folder=made)
    write_tasks([task], target)
    (again,) = read_tasks(target)
    assert (again.name, again.timeout, again.stream) == ("train", 3.5, False)
    assert [(b.hash, b.size) for b in (again.fn, again.args)] == [(b.hash, b.size) for b in (task.fn, task.args)]
    assert (again.args.data is None) == (size > MAX_INLINE_BYTES)
    assert pickle.loads(again.args.read()) == ((bytes(size),), {"lr": 0.5})


class Tag:
    """A plugin that notes its name in what the function returns."""

    def __init__(self, name: str) -> None:
        self.name = name

    def decorate(self, fn: Any) -> Any:
        name = self.name

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> list[Any]:
            return [name, *fn(*args, **kwargs)]

        return wrapped


def test_plugins_decorate_the_first_outermost() -> None:
    task = local_function(lambda: ["body"])
    assert call(make_task(task(), [Tag("a"), Tag("b")])) == ["a", "b", "body"]
    (grouped,) = make_tasks((task(),), [Tag("a"), Tag("b")], None)
    assert call(grouped) == ["a", "b", "body"]


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
def test_the_message_names_the_argument_and_the_place_in_it(pending: Any, argument: str, place: str) -> None:
    said = refused(pending)
    assert said.startswith(f"argument '{argument}' of {pending.name}() cannot travel to the nodes: lock object")
    assert f"{place} (cannot pickle '_thread.lock' object)" in said


def test_a_closure_is_named() -> None:
    guard = Config({"lock": LOCK})
    assert refused(local_function(lambda: guard)()) == (
        "function <lambda> cannot travel to the nodes: lock object at guard.parts['lock'] "
        "(cannot pickle '_thread.lock' object)"
    )


def test_a_global_of_the_function_is_named() -> None:
    assert " lock object at LOCK (" in refused(local_function(lambda: (fine, LOCK))())


def test_a_global_used_in_an_inner_function_is_named() -> None:
    def outer() -> Any:
        def inner() -> Any:
            return [LOCK for _ in range(2)]

        return inner()

    assert " lock object at LOCK (" in refused(local_function(outer)())


def test_an_attribute_that_is_named_like_a_global_is_not_blamed() -> None:
    guard = [threading.Condition()]
    said = refused(local_function(lambda x: (x.LOCK, guard))(1))
    assert " at guard[0]" in said
    assert "LOCK (" not in said


def test_a_default_value_is_named() -> None:
    def body(a: int, lock: Any = LOCK, *, other: int = 1) -> None:
        return None

    assert " lock object at lock (" in refused(local_function(body)(1))


def test_a_function_behind_a_plugins_wrapper_is_looked_into() -> None:
    guard = [LOCK]
    with pytest.raises(NotPicklableError, match=r"lock object at guard\[0\]"):
        make_task(local_function(lambda: guard)(), [Tag("a")])


def test_a_class_of_the_script_is_looked_into() -> None:
    class Model:
        shared = LOCK

    Model.__module__ = "__main__"
    Model.__qualname__ = "Model"
    assert "lock object at Model.shared" in refused(train(Model()))


def test_an_object_that_refuses_is_named_with_what_it_said() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("I stay here")

    said = refused(train([Stubborn()]))
    assert said.endswith("Stubborn object at config[0] (I stay here)")


def test_two_arguments_that_only_fail_together_are_still_an_error() -> None:
    class Once:
        def __init__(self) -> None:
            self.count = 0

        def __reduce__(self) -> Any:
            self.count += 1
            if self.count == 1:
                raise RuntimeError("not the first time")
            return (int, ())

    said = "the arguments of train() cannot travel to the nodes: RuntimeError: not the first time"
    assert refused(train(Once())) == said


def test_endless_nesting_is_an_error_not_a_crash() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert "argument 'config' of train() cannot travel" in refused(train(deep))
    while deep:  # taken apart by hand: its own end would recurse as deep
        deep = deep.pop()


@pytest.mark.parametrize(
    "args, kwargs, why",
    [
        ((), {"a": 1, "b": 2, "d": 3}, "got an unexpected keyword argument 'd'"),
        ((1,), {}, "missing a required argument: 'b'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"a": 1, "b": 2}, "multiple values for argument 'a'"),
    ],
)
def test_a_call_that_the_function_does_not_take_goes_nowhere(args: Any, kwargs: Any, why: str) -> None:
    @function
    def add(a: int, b: int, *, c: int = 0) -> int:
        return a + b + c

    for make in (make_task, lambda pending: list(make_tasks((add(1, 2), pending), (), None))):
        with pytest.raises(TypeError, match=rf"add\(a.*c: 'int' = 0\).* cannot be called so: {why}"):
            make(add(*args, **kwargs))
    assert call(make_task(add(1, 2, c=3))) == 6


def test_a_decorator_may_give_the_function_what_its_caller_does_not() -> None:
    def inject(fn: Any) -> Any:
        return functools.wraps(fn)(lambda *args: fn(*args, rank=7))

    @function
    @inject
    def place(x: int, rank: int) -> tuple[int, int]:
        return x, rank

    assert call(make_task(place(1))) == (1, 7)  # type: ignore[call-arg]
    assert call(make_task(function(max)(1, 2))) == 2


@given(
    takes=st.sampled_from(
        ["", "a", "a, b", "a, b=1", "a=0, b=1", "a, /, b=2", "*a", "a, *b", "a, *, c=1", "a, *, c", "**k"]
    ),
    args=st.lists(st.integers(), max_size=4),
    kwargs=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(), max_size=2),
)
def test_a_call_is_refused_where_python_would_refuse_it(takes: str, args: list[int], kwargs: dict[str, int]) -> None:
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
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS) | st.binary(),
        max_size=10,
    )
)
def test_plain_arguments_arrive_as_they_are(values: list[Any]) -> None:
    blob = make_task(function(lambda *given: None)(*values)).args
    args, kwargs = pickle.loads(blob.read())
    assert (repr(args), kwargs) == (repr(tuple(values)), {})
    assert [type(value) for value in args] == [type(value) for value in values]
    assert blob.size == len(blob.read())
