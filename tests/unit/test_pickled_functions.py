"""A function's pickle is made once, as long as the same would be made of it again."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from skyward_core.tasks.function_pickling import PickleCache

SCRIPT = """
import json
import math

scale = 2
unused = []

def work(x, y=3):
    "What it does."
    inner = lambda z: z * scale
    return math.floor(x) + inner(y)

def plain(x, y=3):
    inner = lambda z: z * scale
    return x + inner(y)

def made(factor):
    def inside(x):
        return x * factor
    return inside
"""


@pytest.fixture
def script() -> dict[str, Any]:
    """The globals of a script that has run."""
    space: dict[str, Any] = {"__name__": "__main__", "__file__": "/script.py"}
    exec(SCRIPT, space)
    return space


class Pickles:
    """Counts how often a pickle is really made."""

    def __init__(self, keeps: Callable[[bytes], bool] = lambda made: True) -> None:
        self.made = 0
        self._functions = PickleCache[bytes](keeps)

    def of(self, fn: Callable[..., Any]) -> bytes:
        def make() -> bytes:
            self.made += 1
            return cloudpickle.dumps(fn, protocol=5)

        return self._functions.get(fn, make)


def test_a_function_that_stays_as_it_is_is_pickled_once(script: dict[str, Any]) -> None:
    pickles = Pickles()
    first = pickles.of(script["plain"])
    assert pickles.of(script["plain"]) is first
    assert pickles.made == 1
    assert pickle.loads(first)(2) == 2 + 3 * 2


def test_one_that_names_modules_is_pickled_once_for_the_modules_that_are_loaded(
    script: dict[str, Any],
) -> None:
    pickles = Pickles()
    pickles.of(script["work"])  # pickling, or another thread, may load one
    made = [pickles.of(script["work"]) for _ in range(100)]
    assert made[-1] is made[-2]
    assert pickle.loads(made[-1])(2.5) == 2 + 3 * 2


def test_what_a_function_does_not_use_may_change(script: dict[str, Any]) -> None:
    pickles = Pickles()
    pickles.of(script["plain"])
    script["unused"].append(1)
    script["more"] = 1
    pickles.of(script["plain"])
    assert pickles.made == 1


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a number that it uses": lambda s: s.update(scale=7),
    "a number that is equal, and another": lambda s: s.update(scale=2.0),
    "a global that goes": lambda s: s.pop("scale"),
    "a global that is a list now": lambda s: s.update(scale=[1]),
    "a module in the place of another": lambda s: s.update(math=json),
    "its code": lambda s: setattr(s["work"], "__code__", (lambda x, y=3: "other").__code__),
    "its defaults": lambda s: setattr(s["work"], "__defaults__", (4,)),
    "its keywords' defaults": lambda s: setattr(s["work"], "__kwdefaults__", {"y": 4}),
    "its docstring": lambda s: setattr(s["work"], "__doc__", "Other."),
    "its name": lambda s: setattr(s["work"], "__name__", "other"),
    "its longer name": lambda s: setattr(s["work"], "__qualname__", "other"),
    "an attribute": lambda s: setattr(s["work"], "note", 1),
    "its annotations": lambda s: s["work"].__annotations__.update(x=int),
    "the script's file": lambda s: s.update(__file__="/other.py"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_it_is_pickled_anew_when_anything_of_it_has_changed(
    script: dict[str, Any], change: Callable[[dict[str, Any]], object]
) -> None:
    pickles = Pickles()
    before = pickles.of(script["work"])
    change(script)
    after = pickles.of(script["work"])
    assert pickles.made == 2
    assert after == cloudpickle.dumps(script["work"], protocol=5)
    assert after != before  # else the change was none


def test_it_is_pickled_again_when_the_command_line_has_changed(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pickles = Pickles()
    for words in (["a"], ["a"], ["a", "b"], ["c"]):
        monkeypatch.setattr(sys, "argv", [*words])
        pickles.of(script["plain"])
    assert pickles.made == 3


def test_what_it_encloses_counts(script: dict[str, Any]) -> None:
    pickles = Pickles()
    double, halves = script["made"](2), script["made"]([0.5])
    pickles.of(double)
    pickles.of(double)
    assert pickles.made == 1
    double.__closure__[0].cell_contents = 3
    assert pickle.loads(pickles.of(double))(2) == 6
    pickles.of(halves)
    halves.__closure__[0].cell_contents[0] = 4
    assert pickle.loads(pickles.of(halves))(1) == [4]


def test_a_cell_that_is_empty_yet(script: dict[str, Any]) -> None:
    pickles = Pickles()
    inside = script["made"](2)
    del inside.__closure__[0].cell_contents
    pickles.of(inside)
    inside.__closure__[0].cell_contents = 5
    assert pickle.loads(pickles.of(inside))(2) == 10


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, {1}, lambda: 1, int, types.SimpleNamespace(a=1), types.ModuleType("made_up")]
)
def test_a_value_that_may_change_unseen_is_pickled_every_time(script: dict[str, Any], value: object) -> None:
    script["scale"] = value
    pickles = Pickles()
    pickles.of(script["work"])
    pickles.of(script["work"])
    assert pickles.made == 2


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    (tmp_path / "package_of_two").mkdir()
    (tmp_path / "package_of_two" / "__init__.py").write_text("")
    (tmp_path / "package_of_two" / "part.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("package_of_two")
    for name in [name for name in sys.modules if name.startswith("package_of_two")]:
        del sys.modules[name]


def test_a_submodule_that_is_loaded_later_goes_with_it(script: dict[str, Any], package: types.ModuleType) -> None:
    exec("def reaches():\n    return package.part.value", script)
    script["package"] = package
    pickles = Pickles()
    pickles.of(script["reaches"])
    importlib.import_module("package_of_two.part")
    after = pickles.of(script["reaches"])
    assert b"package_of_two.part" in after
    assert after == cloudpickle.dumps(script["reaches"], protocol=5)


def test_a_module_that_is_to_travel_by_value(script: dict[str, Any], package: types.ModuleType) -> None:
    script["math"] = package
    pickles = Pickles()
    pickles.of(script["work"])
    cloudpickle.register_pickle_by_value(package)
    try:
        package.floor = 1  # type: ignore[attr-defined]
        pickles.of(script["work"])
        package.floor = 2  # type: ignore[attr-defined]
        after = pickles.of(script["work"])
        assert pickles.made == 3
        assert after == cloudpickle.dumps(script["work"], protocol=5)
    finally:
        cloudpickle.unregister_pickle_by_value(package)


def test_other_modules_that_travel_by_value_do_not_matter(script: dict[str, Any], package: types.ModuleType) -> None:
    cloudpickle.register_pickle_by_value(package)
    try:
        pickles = Pickles()
        made = [pickles.of(script["work"]) for _ in range(100)]
        assert made[-1] is made[-2]
    finally:
        cloudpickle.unregister_pickle_by_value(package)


def test_a_thread_that_imports_at_this_moment_spoils_no_call(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changing(dict[str, Any]):
        def __reversed__(self) -> Any:
            raise RuntimeError("dictionary changed size during iteration")

    pickles = Pickles()
    fake = types.SimpleNamespace(modules=Changing(sys.modules), argv=[""])
    monkeypatch.setattr("skyward_core.tasks.function_pickling.sys", fake)
    assert pickle.loads(pickles.of(script["work"]))(2.5) == 2 + 3 * 2


def test_others_than_functions_of_a_script() -> None:
    pickles = Pickles()
    for thing in (math.floor, json.dumps, Pickles.of, len):
        pickles.of(thing)
        pickles.of(thing)
    assert pickles.made == 8


def test_what_is_large_is_not_kept(script: dict[str, Any]) -> None:
    pickles = Pickles(keeps=lambda made: False)
    pickles.of(script["work"])
    pickles.of(script["work"])
    assert pickles.made == 2
