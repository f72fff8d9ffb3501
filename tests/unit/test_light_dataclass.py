"""Frozen value classes, compared with dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.util.light_dataclass import Value, value


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
