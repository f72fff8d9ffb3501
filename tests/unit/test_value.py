"""Frozen value classes, and guarded execution of user code."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.tasks.guarded_user_code import describe_exception, run_guarded, safe_repr
from skyward_core.util.light_dataclass import Value, value
from skyward_core.views import events


def test_event_repr_and_hash_depend_only_on_its_fields() -> None:
    event = events.NodeLink(pool="p", at=1.0, node=3, up=True)
    assert repr(event) == "NodeLink(pool='p', at=1.0, node=3, up=True, detail='')"
    assert len({event, events.NodeLink(pool="p", at=1.0, node=3, up=True)}) == 1
    assert event != events.NodeLink(pool="p", at=1.0, node=4, up=True)
    assert event != events.PoolState(pool="p", at=1.0, state="up")


def test_value_repr_contains_no_secret() -> None:
    assert "hunter2" not in repr(sky.Image(env={"TOKEN": "hunter2hunter2"}))
    assert "hunter2" not in repr(sky.Options(secrets=("hunter2hunter2",)))


def test_worker_specs_with_equal_fields_are_equal() -> None:
    assert sky.Worker(ranks_per_node=2) == sky.Worker(ranks_per_node=2) != sky.Worker()


@value
class Ours(Value):
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)


@value(kw_only=True)
class OursMore(Ours):
    kind: str
    seen: bool = False


@dataclass
class Theirs:
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class TheirsMore(Theirs):
    kind: str
    seen: bool = False


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), (("a",), {}), (("a", 1, [2]), {}), (("a",), {"parts": [7], "kind": "k"}), (("a",), {"kind": "k"}),
    (("a", 1), {"kind": "k", "seen": True}), (("a", 1, [2], "k"), {}), ((), {"name": "a", "size": 4, "kind": "k"}),
    (("a",), {"name": "b", "kind": "k"}), (("a",), {"colour": "red", "kind": "k"}),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), [(Ours, Theirs), (OursMore, TheirsMore)])
@pytest.mark.parametrize(("args", "named"), CALLS)
def test_value_constructor_behaves_as_a_dataclass(
    ours: Any, theirs: Any, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    def made(cls: Any) -> Any:
        try:
            got = cls(*args, **named)
        except TypeError as error:
            return str(error).replace(theirs.__name__, ours.__name__)
        return {each: getattr(got, each) for each in cls.__dataclass_fields__}

    assert made(ours) == made(theirs)


def test_mutable_default_of_a_value_is_not_shared() -> None:
    assert Ours("a").parts is not Ours("b").parts


def test_value_is_copied_and_pickled_before_first_use() -> None:
    @value
    class Fresh(Value):
        size: int = 3

    assert replace(Fresh(), size=4).size == 4
    one = OursMore("a", kind="k")
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)


@value(kw_only=True, frozen=True)
class OurIce(Value):
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.lower())


@dataclass(kw_only=True, frozen=True, eq=False, repr=False)
class TheirIce(Value):
    name: str
    size: int = 3
    parts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.lower())


def test_frozen_value_has_the_signature_of_a_dataclass() -> None:
    assert str(inspect.signature(OurIce)) == str(inspect.signature(TheirIce))
    assert "python: 'str | None' = None" in str(inspect.signature(sky.Image))

    class Warm(OurIce):
        def __init__(self, heat: int) -> None:
            super().__init__(name="w", size=heat)

    assert list(inspect.signature(Warm).parameters) == ["heat"] and Warm(4).size == 4


@pytest.mark.parametrize("kind", [OurIce, TheirIce])
def test_frozen_value_rejects_changes(kind: Any) -> None:
    one = kind(name="A", parts=[1])
    for name in ("name", "colour"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"^cannot assign to field '{name}'$"):
            setattr(one, name, "b")
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"^cannot delete field '{name}'$"):
            delattr(one, name)
    assert (one.name, one.size, one.parts) == ("a", 3, [1])
    assert kind.size == 3 and kind(name="a").parts is not kind(name="a").parts
    assert replace(one, size=4).size == 4 and replace(one) == one
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)

    class More(kind):  # type: ignore[misc]
        pass

    more = More(name="M")
    more.colour = "red"
    assert more.colour == "red"
    with pytest.raises(dataclasses.FrozenInstanceError):
        more.size = 4
    with pytest.raises(TypeError, match="frozen"):
        dataclass(type("Liquid", (kind,), {"__annotations__": {"heat": "int"}}))
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'colour'"):
        kind(name="a", colour="red")


# Code of values, run so that a ctrl-c of the user differs from what the value raises itself.


def raises(error: BaseException) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
def test_run_guarded_returns_raised_exceptions(kind: type[BaseException]) -> None:
    error = kind(3)
    assert run_guarded(raises(error)) == (None, error)
    assert run_guarded(lambda: 7) == (7, None)


def test_ctrl_c_is_raised_even_if_guarded_code_catches_it() -> None:
    def catches() -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return 7
        return 8

    with pytest.raises(KeyboardInterrupt):
        run_guarded(catches)
    with pytest.raises(KeyboardInterrupt):
        run_guarded(lambda: run_guarded(catches))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_run_guarded_keeps_other_signal_handlers() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        handler = signal.getsignal(signal.SIGUSR1)
        assert run_guarded(lambda: signal.raise_signal(signal.SIGUSR1)) == (None, None)
        assert seen == [signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) is handler
        run_guarded(lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN))
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_run_guarded_in_another_thread_sets_no_handlers() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run_guarded(raises(KeyboardInterrupt()))))
    thread.start()
    thread.join()
    assert type(found[0][1]) is KeyboardInterrupt


def test_exception_whose_str_or_repr_raises_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit(0)

        __repr__ = __str__

    assert describe_exception(Mute())[1] == "(its __str__ raised SystemExit)"
    assert describe_exception(KeyError("a")) == ("KeyError", "'a'")
    assert safe_repr(Mute()) == "(its __repr__ raised SystemExit)" and safe_repr("a") == "'a'"
