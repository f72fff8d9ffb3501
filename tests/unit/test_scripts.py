"""Functions and arguments of scripts, read from the syntax tree, and working folders of scripts."""

from __future__ import annotations

import sys
from datetime import date, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.client.launch.plugin_and_provider_catalog import missing_frameworks
from skyward_core.model.errors import ScriptError, UsageError
from skyward_core.store.default_and_forbidden_working_folders import choose_workdir, working_folder
from skyward_core.tasks.argument_parsing_and_sweeps import RawArgument, convert
from skyward_core.tasks.script_functions import find_function, list_functions, parse_arguments, split_target
from tests.support.any_text import CHARACTERS


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(text: str | bytes, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize(
    "head, decorator",
    [
        ("import skyward_core as sky", "sky.function(timeout=30)"), ("import skyward_core as sky", "sky.compute"),
        ("import skyward_core", "skyward_core.function"), ("import os, skyward_core as sky", "sky.function"),
        ("from skyward_core import instance_info, function as remote", "remote(timeout=2)"),
        ("from skyward import compute", "compute"), ("from skyward_core.function import function", "function"),
        ("from skyward_core import *", "function"),
        ("try:\n    import skyward as sky\nexcept ImportError:\n    import skyward_core as sky", "sky.function"),
    ],
)  # fmt: skip
def test_functions_are_found_for_every_decorator_spelling(script: Any, head: str, decorator: str) -> None:
    functions = list_functions(script(f"{head}\n@{decorator}\ndef train(): ...\ndef other(): ...\n"))
    assert [f.name for f in functions] == ["train"]


@pytest.mark.parametrize(
    "text",
    [
        "import functools\n@functools.cache\ndef f(): ...\n",
        "import other as sky\n@sky.function\ndef f(): ...\n",
        "from .skyward_core import function\n@function\ndef f(): ...\n",
        "import skyward_core as sky\nclass C:\n    @sky.function\n    def f(self): ...\n",
        "import skyward_core as sky\ndef g():\n    @sky.function\n    def f(): ...\n",
        "import skyward_core as sky\nif __name__ == '__main__':\n    @sky.function\n    def f(): ...\n",
        "",
    ],
)
def test_functions_of_other_decorators_are_not_listed(script: Any, text: str) -> None:
    with pytest.raises(ScriptError, match=r"no function decorated with @sky\.function"):
        list_functions(script(text))


def test_function_with_further_decorators_is_found(script: Any) -> None:
    path = script(
        "import skyward_core as sky\n"
        "@sky.stdout(only='head')\n@sky.function(timeout=60 * 2)\n@sky.silent\n"
        "def train(): ...\n"
    )
    assert list_functions(path)[0].timeout == "60 * 2"


def test_listing_functions_does_not_run_the_script(script: Any, tmp_path: Path) -> None:
    path = script(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nimport skyward_core as sky, missing_module\n"
        "@sky.function\ndef f(): ...\n"
    )
    assert [f.name for f in list_functions(path)] == ["f"]
    assert not (tmp_path / "ran").exists()


def test_listed_function_has_docstring_and_parameters(script: Any) -> None:
    path = script(
        "import skyward_core as sky\n\n"
        "@sky.function\n"
        "def train(a, /, b: int, c: float = 1e-3, *rest: int, d, e: 'str' = 'x', **more):\n"
        '    """Train it.\n\n    Well.\n    """\n'
        "    inner = lambda: (yield)\n"
    )
    [info] = list_functions(path)
    assert (info.line, info.doc, info.is_generator) == (4, "Train it.\n\nWell.", False)
    assert [(p.name, p.annotation, p.default, p.required, p.kind) for p in info.params] == [
        ("a", None, None, True, "positional"),
        ("b", "int", None, True, "positional"),
        ("c", "float", "0.001", False, "positional"),
        ("rest", "int", None, False, "var_positional"),
        ("d", None, None, True, "keyword"),
        ("e", "'str'", "'x'", False, "keyword"),
        ("more", None, None, False, "var_keyword"),
    ]
    assert str(info) == "train(a, b: int, c: float = 0.001, *rest: int, d, e: 'str' = 'x', **more)"


@pytest.mark.parametrize(
    "body, streams",
    [
        ("yield 1", True),
        ("for x in y:\n        yield from x", True),
        ("z = yield", True),
        ("def g():\n        yield 1\n    return g", False),
        ("return [x for x in y]", False),
    ],
)
def test_generator_function_is_recognized_by_its_own_body(script: Any, body: str, streams: bool) -> None:
    path = script(f"import skyward_core as sky\n@sky.function\ndef f():\n    {body}\n")
    assert list_functions(path)[0].is_generator is streams


def test_last_definition_of_a_function_is_listed(script: Any) -> None:
    path = script("import skyward_core as sky\n@sky.function\ndef f(a): ...\n@sky.function\ndef f(b): ...\n")
    assert [str(f) for f in list_functions(path)] == ["f(b)"]


def test_missing_script_error_suggests_a_similar_file(script: Any, tmp_path: Path) -> None:
    script("", "train.py")
    with pytest.raises(ScriptError, match=r"script .*trian\.py does not exist. Did you mean 'train\.py'\?"):
        list_functions(tmp_path / "trian.py")
    with pytest.raises(ScriptError, match="does not exist"):
        list_functions(tmp_path / "nowhere" / "train.py")


def test_folder_as_script_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="is a folder"):
        list_functions(tmp_path)


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1\ndef f(:\n", r"train\.py, line 2 does not parse: .*\n  def f\(:"),
        ("x = 1\nreturn 3\n", r"line 2 does not parse: 'return' outside function"),
        (b"x = '\xff'\n", r"does not parse"),
        (b"\x7fELF\x00\x00", r"is not a Python script. Use python -m skyward_core for archives"),
        ("(" * 100_000, r"does not parse"),
    ],
)
def test_script_syntax_error_names_the_line(script: Any, text: str | bytes, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        list_functions(script(text))


def test_job_file_as_script_error_names_the_launch_command(script: Any) -> None:
    with pytest.raises(ScriptError, match=r"Launch a job file with `launch .*task\.yaml`"):
        list_functions(script("run: echo hi\n", "task.yaml"))


def test_declared_source_encoding_is_honored(script: Any) -> None:
    text = "# -*- coding: latin-1 -*-\nimport skyward_core as sky\n@sky.function\ndef f(a='\xe9'): ...\n"
    assert list_functions(script(text.encode("latin-1")))[0].params[0].default == "'é'"


TWO = "import skyward_core as sky\n@sky.function\ndef train(n: int): ...\n@sky.function\ndef test(): ...\n"


def test_script_with_several_functions_needs_a_function_name(script: Any) -> None:
    path = script(TWO)
    with pytest.raises(ScriptError) as caught:
        find_function(path, None)
    assert str(caught.value).splitlines() == [
        f"{path} has 2 functions. Name one, as in {path}:train",
        "  train(n: int)",
        "  test()",
    ]
    assert find_function(path, "test").name == "test"
    with pytest.raises(ScriptError, match=r"no function 'trian'. Did you mean 'train'"):
        find_function(path, "trian")
    with pytest.raises(ScriptError, match=r"no function 'zzz'. It has train, test"):
        find_function(path, "zzz")


def test_script_with_one_function_needs_no_function_name(script: Any) -> None:
    assert find_function(script("from skyward import function\n@function\ndef f(): ...\n"), None).name == "f"


def test_target_is_split_into_script_and_function(tmp_path: Path) -> None:
    odd = tmp_path / "odd:name"
    odd.touch()
    assert split_target("a/train.py:main") == (Path("a/train.py"), "main")
    assert split_target("train.py") == (Path("train.py"), None)
    assert split_target("train.py:") == (Path("train.py:"), None)
    assert split_target(str(odd)) == (odd, None)


@pytest.fixture
def typed(script: Any) -> Any:
    """Parse one argument of a function with one parameter, given as source."""

    def parse(parameter: str, *pairs: str) -> Any:
        enums = "class Mode(enum.Enum):\n    SLOW = auto()\n    FAST = 'f'\n"
        enums += "class Level(IntEnum):\n    LOW = 1\n    HIGH = 2\n"
        path = script(f"import skyward_core as sky\n{enums}@sky.function\ndef f({parameter}): ...\n")
        return parse_arguments(find_function(path, None), pairs)

    return parse


@pytest.mark.parametrize(
    "parameter, text, value",
    [
        ("x: int", "-1_000", -1000), ("x: int", "0x10", 16), ("x: int", "007", 7), ("x: float", "1e-3", 1e-3),
        ("x: float", "3", 3.0), ("x: bool", "no", False), ("x: str", "3", "3"), ("x: str", "", ""),
        ("x: 'int'", "3", 3), ("x: int | None", "None", None), ("x: str | int", "4", 4),
        ("x: str | int", "four", "four"), ("x: typing.Optional[float]", "null", None), ("x: Union[int, str]", "a", "a"),
        ("x: int = None", "None", None), ("x: Literal['adam', 'sgd']", "sgd", "sgd"), ("x: Literal[1, 2]", "2", 2),
        ("x: Annotated[int, 'steps']", "2", 2), ("x: Path", "a/b", Path("a/b")), ("x: list[int]", "1,2, 3", [1, 2, 3]),
        ("x: list[int]", "", []), ("x: list[float]", "[1, 2]", [1.0, 2.0]),
        ("x: Sequence[str]", "['a', 'b']", ["a", "b"]), ("x: tuple[int, str]", "1,a", (1, "a")),
        ("x: tuple", "(1, 'a')", (1, "a")), ("x: set[int]", "1,1", {1}),
        ("x: dict[str, float]", '{"a": 1}', {"a": 1.0}), ("x: dict", '{"a": true, "b": null}', {"a": True, "b": None}),
        ("x: list[list[int]]", "[[1], [2, 3]]", [[1], [2, 3]]), ("x=3", "0.5", 0.5), ("x=0.5", "3", 3.0),
        ("x=False", "yes", True), ("x='a'", "3", "3"), ("x=(1, 2)", "3,4", (3, 4)), ("x=None", "[1]", [1]),
        ("x", "plain text", "plain text"), ("x", "true", True), ("x: bytes", "abc", b"abc"),
        ("x: date", "2031-12-24", date(2031, 12, 24)),
        ("x: datetime.datetime", "2031-12-24T18:30", datetime(2031, 12, 24, 18, 30)), ("x: date | None", "null", None),
        ("x: str | None", "None", None), ("x: 'any words'", "5", 5), ("*x: int", "1,2", [1, 2]), ("**more", "1", 1),
        ("**more: str", "1", "1"),
    ],
)  # fmt: skip
def test_argument_text_is_converted_by_the_signature(typed: Any, parameter: str, text: str, value: Any) -> None:
    got = typed(parameter, f"x={text}")["x"]
    assert got == value
    assert type(got) is type(value)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.booleans() | st.integers() | FINITE | st.text(CHARACTERS) | st.binary()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (int, st.integers()),
        (float, st.floats(allow_nan=False)),
        (bool, st.booleans()),
        (bytes, st.binary()),
        (list[int], st.lists(st.integers())),
        (list[str], st.lists(st.text(CHARACTERS))),
        (tuple[int, ...], st.lists(st.integers()).map(tuple)),
        (dict[str, float], st.dictionaries(st.text(CHARACTERS), FINITE)),
        (Any, st.lists(PLAIN, min_size=1)),
    ],
    ids=str,
)
def test_argument_written_as_python_literal_is_converted_back(kind: Any, values: st.SearchStrategy[Any]) -> None:
    @given(values)
    def check_it(value: Any) -> None:
        assert convert(repr(value), kind) == value

    check_it()


@pytest.mark.parametrize(
    "parameter, text, want",
    [
        ("x: int", "", "int"), ("x: bool", "maybe", "bool"), ("x: int | float", "a", "int | float"),
        ("x: Literal['adam', 'sgd']", "lion", r"Literal\['adam', 'sgd'\]"), ("x: list[int]", "1,a", r"list\[int\]"),
        ("x: list[int]", "{'a': 1}", r"list\[int\]"), ("x: tuple[int, int]", "1,2,3", r"tuple\[int, int\]"),
        ("x: dict", "[1]", "dict"), ("x: None", "1", "None"), ("x=3", "many", r"int \| float"),
        ("x: date", "tomorrow", "a date such as 2031-12-24"), ("x: Mode", "nonsense", r"one of SLOW, FAST \(Mode\)"),
        ("x: Mode | None", "nonsense", r"one of SLOW, FAST \(Mode\) \| None"),
        ("x: list[Mode]", "FAST,nonsense", r"list\[.*Mode\]"),
        ("x: 'Level' = Level.LOW", "7", r"one of LOW, HIGH \(Level\)"),
    ],
)  # fmt: skip
def test_invalid_argument_error_names_value_and_expected_type(typed: Any, parameter: str, text: str, want: str) -> None:
    with pytest.raises(UsageError, match=rf"argument x of f must be {want}, got "):
        typed(parameter, f"x={text}")


@pytest.mark.parametrize(
    "parameter, text",
    [
        ("x: torch.device", "cuda:0"), ("x=DEFAULT", "4"), ("x: Mode", "FAST"), ("x: Mode", "f"),
        ("x: Mode", "fast"), ("x: Level | None", "2"), ("x: Literal[Mode.FAST]", "anything"),
        ("*x: Mode", "FAST,SLOW"),
    ],
)  # fmt: skip
def test_arguments_of_script_types_stay_raw_text(typed: Any, parameter: str, text: str) -> None:
    assert type(typed(parameter, f"x={text}")["x"]) is RawArgument


@pytest.mark.parametrize(
    "parameters, pairs, message",
    [
        ("epochs: int", ["epoch=3"], "f has no argument 'epoch'. Did you mean 'epochs'"),
        ("epochs: int", ["z=3"], "f has no argument 'z'. It has epochs"),
        ("", ["z=3"], "f has no argument 'z'$"),
        ("a, b, *, c, d=1", ["b=3"], r"f needs a, c. Its signature is f\(a, b, c, d=1\)"),
        ("a", ["a=1", "a=2"], "argument a of f is repeated"),
        ("a", ["a"], "invalid argument 'a'. Write name=value"),
        ("a", ["=1"], "invalid argument '=1'. Write name=value"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_rejected(
    typed: Any, parameters: str, pairs: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        typed(parameters, *pairs)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home with a project, and a current folder elsewhere."""
    for name in ("me/project/below", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_working_folder_of_ranks_is_the_project_of_a_distant_script(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = folders / "me" / "project"
    assert choose_workdir(project / "train.py") == str(project)
    monkeypatch.chdir(project)
    assert choose_workdir(Path("train.py")) is None
    assert choose_workdir(Path("below/train.py")) is None
    monkeypatch.chdir(folders / "me")  # a home does not travel, and a folder in it does
    assert choose_workdir(Path("project/train.py")) == str(project)
    assert choose_workdir(Path("train.py")) is None
    monkeypatch.chdir(folders / "elsewhere")
    assert choose_workdir(folders / "me" / "train.py") is None


def test_working_folder_is_that_of_the_running_script(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, here, project = ModuleType("__main__"), folders / "elsewhere", folders / "me" / "project"
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert working_folder() == str(here)  # a prompt
    main.__file__ = str(project / "train.py")
    assert working_folder() == str(project)
    main.__spec__ = ModuleSpec("project.train", None)
    assert working_folder() == str(here)  # python -m project.train
    main.__spec__ = None
    for program in (Path(sys.prefix) / "bin" / "pytest", Path(sys.prefix) / "lib" / "tool" / "run.py"):
        main.__file__ = str(program)
        assert working_folder() == str(here)


def test_only_imports_at_load_time_count_as_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyward_core.tasks.missing_packages.is_missing", lambda name: True)
    path = tmp_path / "train.py"
    path.write_text("""
try:
    import torch.nn
except ImportError:
    pass

class Model:
    from jax import numpy

def train():
    import keras

async def later():
    from transformers import Trainer
""")
    assert set(missing_frameworks(path)) == {"torch", "jax"}
