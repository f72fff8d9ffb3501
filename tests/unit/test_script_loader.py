"""Loading of scripts in a child process: executed code, errors and payload files."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from skyward_core.model.errors import NotPicklableError, ScriptError, ScriptFailed, UsageError
from skyward_core.plugins.built_in.huggingface import HuggingFace
from skyward_core.tasks import missing_packages
from skyward_core.tasks.argument_parsing_and_sweeps import RawArgument
from tests.support.forked import Loaded
from tests.support.loaded_calls import build_task

HEAD = "import skyward_core as sky\n"
TOKEN = "hf_" + "InNoFile" * 2


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SKYWARD_HOME for one test."""
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def build(tmp_path: Path) -> Any:
    """Write a script with a decorated ``f``, and make a task of a call of it."""

    def build(text: str, *, name: str = "train.py", **kwargs: Any) -> Any:
        path = tmp_path / name
        path.write_text(HEAD + text, encoding="utf-8")
        return build_task(path, "f", kwargs)

    return build


# What any task needs is loaded, and nothing of a script.
TASKS = Loaded(
    [sys.executable],
    "import pickle, sys\nimport cloudpickle, skyward_core.model.function\n",
    "fn, (args, kwargs) = (pickle.loads(part) for part in pickle.load(sys.stdin.buffer))\n"
    "sys.stdout.buffer.write(pickle.dumps(fn(*args, **kwargs)))\n",
)


def run(task: Any) -> Any:
    """Return the task's result in another process, where neither the script nor its folder is known."""
    blobs = pickle.dumps((task.fn.read(), task.args.read()))
    process: Popen[Any] = TASKS.start(["-c"], stdin=PIPE, stdout=PIPE, stderr=PIPE)
    with process:
        out, err = process.communicate(blobs)
    assert process.returncode == 0, err.decode()
    return pickle.loads(out)


def test_loaded_task_runs_without_the_script_and_binds_its_arguments(build: Any) -> None:
    task = build(
        "import math\nSCALE = 2\n"
        "def helper(x): return SCALE * x\n"
        "@sky.function(timeout=7)\n"
        "def f(n: int, *rest, label='x', **more):\n"
        "    return helper(n), rest, label, more, math.floor(2.5), __name__\n",
        n=4,
        rest=[1, 2],
        label="y",
        extra=(3,),
    )
    assert (task.name, task.timeout, task.stream) == ("f", 7, False)
    assert run(task) == (8, (1, 2), "y", {"extra": (3,)}, 2, "train")


def test_script_is_loaded_under_its_own_name_with_its_folder(build: Any, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'next door'\n")
    task = build(
        "import os, sys, neighbour\n"
        "SEEN = (__name__, __file__, sys.argv, neighbour.WORD, os.getcwd())\n"
        "if __name__ == '__main__':\n    raise RuntimeError\n"
        "@sky.function\ndef f(): return SEEN\n"
    )
    file = str(tmp_path / "train.py")
    assert run(task) == ("train", file, [file], "next door", str(Path.cwd()))


def test_script_named_like_a_standard_module_is_renamed(build: Any) -> None:
    text = "@sky.function\ndef f():\n    return __name__\n"
    assert run(build(text, name="json.py")) == "json_script"
    assert run(build(text, name="my-train.py")) == "my-train"


def test_pool_at_module_level_is_not_started_while_loading(build: Any) -> None:
    task = build(
        "NUMBERS = [1]\n"
        "@sky.function\ndef f(): return NUMBERS, late(), Late.__name__, os.sep\n"
        "with sky.Compute(provider=sky.Local(), nodes=2) as compute:\n"
        "    results = f() @ compute\n"
        "NUMBERS.append(results)\n"
        "import os\n"
        "def late(): return 5\n"
        "class Late: pass\n"
    )
    assert run(task) == ([1], 5, "Late", "/")


def test_output_of_a_loaded_script_is_not_printed_to_stdout(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text(
        "import os, subprocess, sys\nprint('one')\nos.write(1, b'two\\n')\n"
        "subprocess.run(['echo', 'three'])\nprint('four', file=sys.stderr)\n"
        f"{HEAD}@sky.function\ndef f(): ...\n"
    )
    code = (
        "import sys; from pathlib import Path; from skyward_core.tasks.script_loader_parent import build_tasks\n"
        f"build_tasks(Path({str(path)!r}), 'f', [{{}}], echo=sys.argv[1] == 'echo')\n"
    )
    for mode, lines in (("echo", {"one", "two", "three", "four"}), ("quiet", set())):
        done = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=True)
        assert done.stdout == ""
        assert set(done.stderr.split()) == lines


def test_script_exception_has_its_traceback_and_output(build: Any, tmp_path: Path) -> None:
    with pytest.raises(ScriptFailed) as caught:
        build("print('so far')\ndef inner():\n    return 1 / 0\ninner()\n@sky.function\ndef f(): ...\n")
    first, *rest = str(caught.value).splitlines()
    assert first == f"{tmp_path / 'train.py'} failed at line 5: ZeroDivisionError: division by zero"
    assert rest[0] == "Traceback (most recent call last):"
    assert "    return 1 / 0" in rest
    assert "loader.py" not in str(caught.value)
    assert rest[-2:] == ["output of the script:", "so far"]


@pytest.mark.parametrize(
    "prefix, command",
    [
        ("/home/me/.local/share/uv/tools/skyward-tui", "uv tool install skyward-tui --with scikit-learn"),
        ("/home/me/.local/pipx/venvs/skyward-tui", "pipx inject skyward-tui scikit-learn"),
        ("/home/me/project/.venv", f"{sys.executable} -m pip install scikit-learn"),
    ],
)
def test_install_advice_matches_how_the_tool_was_installed(
    prefix: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(missing_packages, "is_missing", lambda module: False)
    assert missing_packages.install_advice("sklearn").endswith(command)


def test_threads_and_exit_handlers_of_a_script_do_not_block_loading(build: Any) -> None:
    task = build(
        "import atexit, threading\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "atexit.register(threading.Event().wait)\n"
        "@sky.function\ndef f(): return 1\n"
    )
    assert run(task) == 1


TYPES = """
import enum, dataclasses, datetime, uuid
from typing import Literal, TYPE_CHECKING
if TYPE_CHECKING:
    from nowhere import Thing
class Mode(enum.Enum):
    FAST = "f"
    SLOW = 1
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2
class Perm(enum.Flag):
    R = 1
    W = 2
@dataclasses.dataclass
class Deep:
    level: Level = Level.LOW
@dataclasses.dataclass
class Config:
    lr: float
    mode: "Mode" = Mode.FAST
    deep: Deep | None = None
    def __post_init__(self):
        if self.lr < 0: raise RuntimeError("lr below zero")
class Device:
    def __init__(self, name):
        if ":" not in name: raise RuntimeError(f"odd device {name}")
        self.name = name
def shown(x): return x.name if isinstance(x, Device) else repr(x)
"""


@pytest.mark.parametrize(
    "parameter, text, shown",
    [
        ("x: Mode", "f", "<Mode.FAST: 'f'>"),
        ("x: Mode", "slow", "<Mode.SLOW: 1>"),
        ("x: Mode | None", "None", "None"),
        ("x=Mode.FAST", "SLOW", "<Mode.SLOW: 1>"),
        ("x: list[Level]", "LOW,2", "[<Level.LOW: 1>, <Level.HIGH: 2>]"),
        ("*x: Level", "1,2", "(<Level.LOW: 1>, <Level.HIGH: 2>)"),
        ("x: Perm", "R|W", "<Perm.R|W: 3>"),
        ("x: Literal[Mode.FAST, 3]", "FAST", "<Mode.FAST: 'f'>"),
        ("x=datetime.date(2030, 1, 1)", "2031-12-24", "datetime.date(2031, 12, 24)"),
        ("x: uuid.UUID", "00000000-0000-0000-0000-000000000001", "UUID('00000000-0000-0000-0000-000000000001')"),
        (
            "x: Config",
            '{"lr": 1, "mode": "SLOW", "deep": {"level": "HIGH"}}',
            "Config(lr=1.0, mode=<Mode.SLOW: 1>, deep=Deep(level=<Level.HIGH: 2>))",
        ),
        ("x: Device", "cuda:0", "cuda:0"),
        ("**x: Level", "1", "{'y': <Level.LOW: 1>}"),
    ],
)
def test_argument_text_is_converted_to_types_of_the_script(build: Any, parameter: str, text: str, shown: str) -> None:
    name = "y" if parameter.startswith("**") else "x"
    script = f"{TYPES}@sky.function\ndef f({parameter}): return shown(x)\n"
    assert run(build(script, **{name: RawArgument(text)})) == shown


@pytest.mark.parametrize(
    "parameter, text, why",
    [
        ("x: Mode", "nonsense", r"must be one of FAST, SLOW \(Mode\), got 'nonsense'$"),
        ("x=Level.LOW", "3", r"must be one of LOW, HIGH \(Level\), got '3'"),
        ("x: Config | None", "{'lr': 1, 'rate': 2}", "Config has no field rate. Its fields: lr, mode, deep"),
        ("x: Config", '{"lr": "much"}', "Config.lr must be float, got 'much'"),
        ("x: Config", '{"lr": -1}', "RuntimeError: lr below zero"),
        ("x: Device", "gpu", "RuntimeError: odd device gpu"),
    ],
)
def test_invalid_text_for_a_script_type_is_rejected(build: Any, parameter: str, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        build(f"{TYPES}@sky.function\ndef f({parameter}): ...\n", x=RawArgument(text))


F = "@sky.function\ndef f(): ...\n"


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        (f"from .models import Net\n{F}", ScriptFailed, "The script is part of a package: import by "),
        (f"import sys\nsys.exit(3)\n{F}", ScriptFailed, r"calls sys.exit\(3\) at line 3 while loading. Put the call"),
        (f"import os\nos._exit(4)\n{F}", ScriptFailed, r"ended the process that loads it \(exit status 4\)"),
        (f"def hide(fn): return lambda: 3\n@hide\n{F}", ScriptError, "f returned int, not a pending call. Make"),
        ("import threading\nLOCK = threading.Lock()\n@sky.function\ndef f(): return LOCK\n", NotPicklableError, "LOCK"),
        ("@sky.function\ndef f(a): ...\n", ScriptError, r"f cannot be called with these arguments: .*'a'"),
    ],
)
def test_script_that_cannot_be_loaded_is_an_error(build: Any, text: str, kind: type[Exception], why: str) -> None:
    with pytest.raises(kind, match=why):
        build(text)


def test_unpicklable_argument_is_rejected_before_loading(build: Any, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with pytest.raises(NotPicklableError, match=r"argument of f cannot be pickled: .*lock"):
        build(f"open({str(ran)!r}, 'w')\n@sky.function\ndef f(a): ...\n", a=threading.Lock())
    assert not ran.exists()


def test_large_script_payload_files_are_removed_at_exit(tmp_path: Path) -> None:
    path = tmp_path / "big.py"
    path.write_text(f"{HEAD}DATA = bytes(5_000_000)\n@sky.function\ndef f(): return len(DATA)\n")
    code = (
        "from pathlib import Path; from skyward_core.tasks.script_loader_parent import build_tasks\n"
        f"task = build_tasks(Path({str(path)!r}), 'f', [{{}}])[0]\n"
        "print(task.fn.path, task.fn.path.stat().st_size > 5_000_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, right = done.stdout.split()
    assert right == "True"
    assert not Path(name).parent.exists()


def test_plugin_secrets_are_in_no_file_while_a_script_is_loaded(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    path, found = tmp_path / "looks.py", tmp_path / "found"
    path.write_text(
        f"{HEAD}from pathlib import Path\n"
        f"files = [p for p in Path({str(home)!r}).rglob('*') if p.is_file()]\n"
        f"held = [p.name for p in files if {TOKEN[:12]!r}.encode() in p.read_bytes()]\n"
        f"Path({str(found)!r}).write_text(f'{{len(files) > 0}} {{held}}')\n"
        "@sky.function\ndef f(): return 7\n"
    )
    assert run(build_task(path, "f", {}, plugins=[HuggingFace(token=TOKEN)])) == 7
    assert found.read_text() == "True []"
    assert not list((home / "tasks").iterdir()), "a small task is no file"


def test_script_argument_larger_than_a_pipe_buffer_arrives(build: Any) -> None:
    assert run(build("@sky.function\ndef f(a): return len(a)\n", a="x" * 1_000_000)) == 1_000_000


def test_script_loader_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    path = tmp_path / "hang.py"
    path.write_text(
        f"import threading\nheld = open({str(fifo)!r}, 'w')\nprint('here', file=held, flush=True)\n"
        f"threading.Event().wait()\n{HEAD}@sky.function\ndef f(): ...\n"
    )
    code = (
        "from pathlib import Path; from skyward_core.tasks.script_loader_parent import build_tasks\n"
        f"build_tasks(Path({str(path)!r}), 'f', [{{}}])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent, fifo.open() as alive:
        assert alive.readline() == "here\n"
        parent.send_signal(signal.SIGKILL)
        assert alive.read() == ""  # the pipe ends when its only writer, the loader, is gone


def test_task_folder_of_a_dead_client_is_removed_by_the_next(home: Path, build: Any) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    base = home / "tasks"
    left, ours = base / f"{dead.pid}-left", base / f"{os.getpid()}-here"
    for folder in (left, ours):
        folder.mkdir(parents=True)
        (folder / "args").write_bytes(bytes(10))
    build("@sky.function\ndef f(): return 1\n")
    assert [path.name for path in base.iterdir()] == [ours.name]
