"""Whole scripts, their modules, children and folders, run by Python and by the command line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.child import Child
from tests.support.cli import EXAMPLES, PATIENCE, Cli
from tests.support.sshd import Host

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in

STUCK = """
import os, signal, time
import skyward_core as sky

with sky.Compute(nodes=1, name="stuck") as compute:
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, b".")  # Python drops signals that arrive during the fork
        time.sleep(600)
    os.read(reader, 1)
    os.kill(child, signal.SIGTERM)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"up; a forked child ended with {ended}", flush=True)
    signal.pause()
"""


class TestModule:
    """``python -m skyward_core``."""

    @staticmethod
    def run(cli: Cli, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "skyward_core", *map(str, arguments)],
            cwd=cli.folder, env=cli.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip

    def test_whole_script_runs_with_its_pools(self, cli: Cli) -> None:
        cli.write("older.py", "import skyward as sky\ndef rank(): return sky.instance_info().rank\n")
        cli.write(
            "whole.py",
            "import sys\nimport skyward as sky\nimport neighbour, older\n"
            "@sky.function\ndef f(x):\n"
            "    import skyward.errors\n"
            "    return older.rank(), neighbour.WORD, x\n"
            "if __name__ == '__main__':\n"
            "    with sky.Compute(provider=None, nodes=2) as compute:\n"
            "        print(f(sys.argv[1:]) @ compute)\n",
        )
        done = self.run(cli, "--provider", "local", "whole.py", "--lr", "3")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{[(rank, 'next door', ['--lr', '3']) for rank in range(2)]}\n"
        assert cli.pools() == {}

    @pytest.mark.proof("1 s of a processor", after=1)
    @pytest.mark.parametrize("options", [(), ("-m", "skyward_core")], ids=["python", "skyward_core"])
    def test_ranks_of_a_script_in_another_folder_work_in_that_folder(self, cli: Cli, options: tuple[str, ...]) -> None:
        script = cli.write(
            "where.py",
            "import os\nimport skyward_core as sky\n@sky.function\ndef f(): return os.getcwd()\n"
            "with sky.Compute(provider=sky.Local(), nodes=1) as compute:\n    print(f() >> compute)\n",
        )
        (elsewhere := cli.folder / "elsewhere").mkdir()
        for folder, expected in ((elsewhere, cli.folder), (cli.folder.parent, cli.folder.parent)):
            done = subprocess.run(
                [sys.executable, *options, str(script)],
                cwd=folder, env=cli.env, capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
            assert done.stdout == f"{expected}\n", done.stderr

    @pytest.mark.proof("1 s of a processor", after=1)
    @pytest.mark.parametrize("body, status", [("raise ValueError('x')", 1), ("import sys; sys.exit(7)", 7)])
    def test_script_whose_run_fails_exits_with_the_run_status(self, cli: Cli, body: str, status: int) -> None:
        cli.write(
            "fails.py",
            f"import skyward_core as sky\n@sky.function\ndef f():\n    {body}\n"
            "with sky.Compute() as compute:\n    f() >> compute\n",
        )
        done = self.run(cli, "fails.py")
        assert done.returncode == status
        assert "RunError: f failed" in done.stderr
        assert "__main__.py" not in done.stderr
        assert cli.pools() == {}

    @pytest.mark.proof("1 s of a processor")
    def test_script_errors_and_exits_are_those_of_python(self, cli: Cli) -> None:
        cli.write("own.py", "import sys\nif sys.argv[1:]: sys.exit(int(sys.argv[1]))\n1 / 0\n")
        assert self.run(cli, "own.py", 5).returncode == 5
        failed = self.run(cli, "own.py")
        assert failed.returncode == 1
        assert failed.stderr.splitlines()[0] == "Traceback (most recent call last):"
        assert 'File "own.py", line 3' in failed.stderr.splitlines()[1]
        missing = self.run(cli, "missing.py")
        assert (missing.returncode, missing.stderr) == (2, "error: script missing.py does not exist\n")
        assert self.run(cli, "--provider", "locl", "own.py").returncode == 2

    @pytest.mark.proof("1 s of a processor", after=1)
    @pytest.mark.parametrize("options", [(), ("-m", "skyward_core")], ids=["python", "skyward_core"])
    def test_terminated_script_tears_its_pool_down(self, cli: Cli, options: tuple[str, ...]) -> None:
        cli.write("stuck.py", STUCK)
        command = [sys.executable, *options, "stuck.py"]
        with Child(command, cwd=cli.folder, env=cli.env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up; a forked child ended with -15\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 143
        assert cli.pools() == {}

    @pytest.mark.proof("1 s of a processor")
    def test_script_under_nohup_continues_when_its_terminal_closes(self, cli: Cli) -> None:
        cli.write(
            "long.py",
            "import sys\nimport skyward_core as sky\n"
            "with sky.Compute() as compute:\n    print('up', flush=True)\n    print(sys.stdin.readline())\n",
        )
        command = ["nohup", sys.executable, "-m", "skyward_core", "long.py"]
        pipe = subprocess.PIPE
        with Child(command, cwd=cli.folder, env=cli.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGHUP)
            assert process.communicate("went on\n", timeout=PATIENCE)[0].strip() == "went on"
            assert process.returncode == 0


class TestExamples:
    """The packaged examples, launched as a first-time user would."""

    @pytest.mark.proof("3 s of a processor")
    def test_ddp_example_trains_one_model_on_all_ranks(self, cli: Cli) -> None:
        options = ("--nodes", 2, "--plugin", "torch", "--arg", "epochs=3", "--arg", "samples=2048")
        done = cli("run", EXAMPLES / "ddp.py", *options, "--json")
        found = json.loads(done.stdout)
        values = [rank["value"] for rank in found["ranks"]]
        assert [value["rank"] for value in values] == [0, 1]
        assert values[0]["weights"] == values[1]["weights"]
        assert found["aggregate"]["loss"]["std"] == 0
        losses = [float(x) for x in re.findall(r"^r000\| epoch \d/3 loss=([\d.]+)", done.stderr, re.MULTILINE)]
        assert len(losses) == 3
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]
        assert losses[-1] == pytest.approx(values[0]["loss"], abs=1e-4)

    @pytest.mark.proof("1 s of a processor", after=1)
    @pytest.mark.parametrize("first, rank, status", [("raised", 1, 1), ("killed", 2, 137)])
    def test_broken_example_names_the_root_cause(self, cli: Cli, first: str, rank: int, status: int) -> None:
        options = ("--nodes", 4, "--arg", f"first={first}", "--arg", "after=3.0")
        found = cli.json("run", EXAMPLES / "broken.py", *options, status=status)
        assert found["root_cause"]["rank"] == rank
        outcomes = [each["outcome"] for each in found["ranks"]]
        expected = ["returned", *["collateral"] * 3]
        expected[rank] = "raised" if first == "raised" else "exited"
        assert outcomes == expected
        assert found["ranks"][0]["value"] == "returned before the failures"

    @pytest.mark.proof("1 s of a processor")
    @pytest.mark.parametrize("name, says", [("hello", "= 499999500000"), ("broken", "root cause: rank 1, loss is nan")])
    def test_examples_run_as_plain_scripts(self, cli: Cli, name: str, says: str) -> None:
        done = TestModule.run(cli, EXAMPLES / f"{name}.py")
        assert done.returncode == 0, done.stderr
        assert says in done.stdout


# An installed package, as the tests run by it, has the name of the module beside the script.
PRINT_SURROUNDINGS = """
import json, sys
import skyward_core as sky

@sky.function
def look():
    import argparse, pluggy
    try:
        import stray
    except ModuleNotFoundError:
        stray = None
    given = argparse.ArgumentParser().parse_args()
    return [pluggy.__file__, stray and stray.__file__, sys.argv, vars(given), "" in sys.path]
"""
MAIN = """
if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False)) as compute:
        print(json.dumps(look() >> compute))
"""


def run_with_python(script: Path, cwd: Path) -> Any:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Script in a folder below the working folder; both folders contain modules."""
    (code := tmp_path / "work" / "code").mkdir(parents=True)
    for name in ("pluggy", "stray"):
        (tmp_path / "work" / f"{name}.py").write_text("")
    (code / "script.py").write_text(PRINT_SURROUNDINGS + MAIN)
    return code / "script.py"


@pytest.mark.proof("1 s of a processor")
def test_script_folder_precedes_installed_packages_with_run_command(script: Path, cli: Cli) -> None:
    (beside := script.parent / "pluggy.py").write_text("")
    cli.folder = script.parent
    found = cli.json("run", "script.py")["ranks"][0]["value"]
    assert found[0] == str(beside)
    assert found[2:] == [["script.py"], {}, False]


@pytest.mark.proof("1 s of a processor")
def test_installed_packages_precede_the_working_folder(script: Path, home: Path) -> None:
    assert sys.modules["pluggy"].__file__ is not None
    found = run_with_python(script, script.parents[1])
    assert Path(found[0]) == Path(sys.modules["pluggy"].__file__)
    assert found[1] == str(script.parents[1] / "stray.py")


def test_working_folder_writable_by_others_is_not_importable(script: Path, home: Path) -> None:
    script.parents[1].chmod(0o777)
    assert run_with_python(script, script.parents[1])[1] is None


@pytest.mark.proof("1 s of a processor")
def test_file_named_skyward_core_beside_the_script_is_not_imported(script: Path, cli: Cli) -> None:
    (script.parent / "skyward_core.py").write_text("raise ImportError('not us')")
    script.write_text(
        "import multiprocessing as mp, skyward_core as sky\n"
        "def double(x): return 2 * x\n"
        "@sky.function\ndef work():\n"
        "    from skyward_core.runtime import sharding as shard\n"
        "    with mp.get_context('spawn').Pool(1) as pool: return pool.map(double, [sky.instance_info().world_size])\n"
    )
    cli.folder = script.parents[1]
    assert cli.json("run", "code/script.py")["ranks"][0]["value"] == [2]


SHADOWS = """
import hashlib, numbers
import skyward_core as sky

def marks():
    import json, logging.handlers
    return [hashlib.MARK, numbers.MARK, json.MARK, logging.MARK]

FOUND = marks()
"""


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("ending", ["@sky.function\ndef f(): return FOUND + marks()\n", "print(FOUND)\n"])
def test_script_modules_shadow_standard_ones_only_in_script_code(cli: Cli, ending: str) -> None:
    for name in ("hashlib", "numbers"):
        (cli.folder / f"{name}.py").write_text(f"MARK = {name!r}\n")
    for name, inner in (("json", "none"), ("logging", "handlers")):
        (package := cli.folder / name).mkdir()
        (package / "__init__.py").write_text(f"MARK = {name!r}\n")
        (package / f"{inner}.py").write_text("")
    marks = ["hashlib", "numbers", "json", "logging"]
    cli.write("script.py", SHADOWS + ending)
    if "sky.function" in ending:
        assert cli.json("run", "script.py")["ranks"][0]["value"] == marks * 2
    else:
        done = cli("run", "script.py")
        assert done.returncode == 0, done.stderr
        assert str(marks) in done.stdout


PRINTS_PLACES = """
import json, os, sys
import beside
import skyward_core as sky

@sky.function
def look():
    import beside_late
    files = [beside.__file__, beside_late.__file__, __file__, sys.argv[0], "data.txt"]
    assert sys.path[0] == os.getcwd(), sys.path
    there = [os.path.exists(each) for each in files]
    return [[os.path.relpath(each) for each in files], there, os.fsencode(os.getcwd())]

if __name__ == "__main__":
    place = json.loads(sys.argv[1])
    provider = sky.SSH(**place) if place else sky.Local()
    with sky.Compute(provider=provider, nodes=1, options=sky.Options(console=False)) as compute:
        found = look() >> compute
        sky.script("whole.py", [found[2]]) >> compute
    print(json.dumps([*found[:2], found[2].hex()]))
"""
ALL = "-x a:b:{a!r}'\"`$\\;*%s~&|<>?!#\n\t" + os.fsdecode(b"\xff")


def project(below: Path, name: str) -> Path:
    folder = below / name
    folder.mkdir(parents=True)
    (folder / "r.py").write_text(PRINTS_PLACES)
    (folder / "whole.py").write_text("import beside, os, sys\nassert str(os.fsencode(os.getcwd())) == sys.argv[1]\n")
    for file in ("beside.py", "beside_late.py", "data.txt"):
        (folder / file).touch()
    return folder


def rank_folder(folder: Path, place: object = None) -> bytes:
    """Run the script in a folder, and return the current folder of its rank."""
    done = subprocess.run(
        [sys.executable, "r.py", json.dumps(place)], cwd=folder, capture_output=True, timeout=PATIENCE, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    files, there, current = json.loads(done.stdout)
    assert files == ["beside.py", "beside_late.py", "r.py", "r.py", "data.txt"]
    assert all(there)
    return bytes.fromhex(current)


def test_local_rank_imports_modules_beside_a_script_in_any_folder(home: Path, tmp_path: Path) -> None:
    folder = project(tmp_path, ALL)
    assert rank_folder(folder) == os.fsencode(folder)


@pytest.mark.proof("1.5 s of a processor")
async def test_ssh_rank_imports_modules_beside_a_script_in_any_folder(
    home: Path, tmp_path: Path, host: Host, known_hosts_file: Path
) -> None:
    folder = project(tmp_path, ALL)
    place = {
        "hosts": [f"127.0.0.1:{host.port}"],
        "keys": str(host.client_key),
        "known_hosts": str(known_hosts_file),
        "python": sys.executable,
        "config": False,
    }
    assert (await asyncio.to_thread(rank_folder, folder, place)).startswith(os.fsencode(host.home))


@pytest.mark.proof("4 s of a processor")
def test_run_command_accepts_scripts_in_any_folder_name(home: Path, tmp_path: Path) -> None:
    folder = project(tmp_path, ALL)
    for words in (["r.py:look"], ["whole.py", "--", str(os.fsencode(folder))]):
        command = [sys.executable, "-m", "skyward_tui", "run", *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr.decode()
    target = "14:55/r.py:nothing"
    project(tmp_path, "14:55")
    command = [sys.executable, "-m", "skyward_tui", "run", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE, check=False)
    assert b"14:55/r.py" in done.stderr and b"nothing" in done.stderr


METHODS = ("fork", "spawn", "forkserver")

# No main guard: a child that ran the script would start pools without end.
SPAWNS = """
import dataclasses, enum, functools, multiprocessing as mp, os, sys
from concurrent.futures import ProcessPoolExecutor
import skyward_core as sky

class Wrong(Exception): pass

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Pair:
    a: int
    def sum(self): return self.a + OFFSET

OFFSET = 10
STATE = None

def loud(fn):
    @functools.wraps(fn)
    def inner(x): return fn(x)
    return inner

def square(x): return x * x + OFFSET

@loud
def decorated(x): return -x

@functools.lru_cache
def cached(x): return square(x) + 1

def fails(x): raise Wrong(x)

def begin(value):
    global STATE
    STATE = value

def state(x): return STATE, os.getpid()

def answer(queue, pair): queue.put(Pair(pair.sum()))

@sky.function
def work(method: str):
    context = mp.get_context(method)
    with context.Pool(2, begin, ("begun",)) as pool:
        found = [pool.map(square, range(3)), pool.map(decorated, [1]) + pool.map(cached, [1, 1])]
        found.append(pool.map(state, [0])[0][0])
        found.append(pool.apply_async(Pair.sum, (Pair(1),)).get())
        found.append(pool.map(type, [Colour.RED])[0] is Colour)
        try:
            pool.map(fails, [7])
        except Wrong as error:
            found.append(error.args)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        found.append(pool.submit(square, 5).result())
    queue = context.Queue()
    process = context.Process(target=answer, args=(queue, Pair(2)))
    process.start()
    found.append(queue.get().a)
    process.join()
    with context.Manager() as manager:
        shared = manager.list()
        process = context.Process(target=shared.append, args=(Pair(3),))
        process.start(); process.join()
        found.append(shared[0].sum())
    return found
"""
POOL = """
with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False)) as compute:
    for method in sys.argv[1:]:
        print(work(method) >> compute)
"""
FOUND = [[10, 11, 14], [-1, 12, 12], "begun", 11, True, [7], 35, 12, 13]


def python(script: Path, *arguments: str, **options: Any) -> list[str]:
    done = subprocess.run(
        [sys.executable, *map(str, (script, *arguments))],
        capture_output=True, text=True, timeout=PATIENCE, check=False, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_children_work_in_a_script_run_by_the_command(cli: Cli, method: str) -> None:
    cli.write("mp1.py", (SPAWNS + POOL).replace("skyward_core as", "skyward as"))
    assert cli.json("run", "mp1.py", "--arg", f"method={method}")["ranks"][0]["value"] == FOUND


@pytest.mark.proof("1 s of a processor")
def test_multiprocessing_children_work_in_a_script_from_stdin(tmp_path: Path, home: Path) -> None:
    expected = str([tuple(each) if each == [7] else each for each in FOUND])
    assert python(Path("-"), *METHODS, input=SPAWNS + POOL) == [expected] * len(METHODS)


VERSIONS = """
import multiprocessing as mp
import skyward_core as sky

class Item:
    def __init__(self, x): self.x = x

def size(item): return item.x

def double(x): return 2 * x

def run(method, fn, values):
    with mp.get_context(method).Pool(1) as pool:
        return pool.map(fn, values)

@sky.function
def first(method): return run(method, double, [1])

@sky.function
def second(method): return run(method, double, [10])

@sky.function
def given(method, fn, items): return run(method, fn, items)

@sky.function
def odd():
    import __main__
    return sorted(name for name in ("double", "Item", "size") if hasattr(__main__, name))

def older(x): return 2 * x
def newer(x): return 3 * x
newer.__name__ = newer.__qualname__ = "double"

with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False)) as compute:
    for method in ("spawn", "fork", "forkserver"):
        before = double
        print([f(method) >> compute for f in (first, second, first)], given(method, size, [Item(4)]) >> compute)
        double = newer
        print([f(method) >> compute for f in (first, second, first)])
        double = before
    print(odd() >> compute)
"""


@pytest.mark.proof("1 s of a processor")
def test_multiprocessing_children_use_the_called_function_version(tmp_path: Path, home: Path) -> None:
    """Two functions have separate copies of shared definitions, and objects in arguments are found as well."""
    (script := tmp_path / "versions.py").write_text(VERSIONS)
    each = ["[[2], [20], [2]] [4]", "[[3], [30], [3]]"]
    assert python(script) == [*(each * 3), "[]"]


@pytest.mark.proof("1 s of a processor")
def test_functions_of_imported_modules_keep_their_module_in_children(tmp_path: Path, home: Path) -> None:
    (tmp_path / "lib.py").write_text("def make():\n    return lambda: 7\n\ndef add(x): return x + 1\n")
    (script := tmp_path / "uses.py").write_text(
        "import multiprocessing as mp, lib, skyward_core as sky\n"
        "seven = lib.make()\n"
        "@sky.function\ndef look():\n"
        "    import __main__, sys\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n"
        "        return seven.__module__, seven(), pool.map(lib.add, [1]), sys.modules['lib'].__file__\n"
        "with sky.Compute(provider=sky.Local(), nodes=1) as compute:\n    print(look() >> compute)\n"
    )
    assert python(script) == [str(("lib", 7, [2], str(tmp_path / "lib.py")))]


# A script that forks while its pool is up: the child is another process, and the pool is the parent's.


FORKS = """
import os, sys
import skyward_core as sky

@sky.function
def same(n):
    return n

@sky.function
def count(n):
    yield from range(n)

def in_child(work):
    sys.stdout.flush()
    if child := os.fork():
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print("parent goes on:", same(3) @ compute, flush=True)
    else:
        work()

def use():
    try:
        same(1) @ compute
    except sky.PoolError as error:
        print(error)
    sys.exit(4)

def use_another():
    with sky.attach("forking") as attached:
        print("attached:", same(5) @ attached)
    with sky.Compute(provider=provider) as own:
        print("own:", same(6) >> own)
    sys.exit(6)

def fail():
    raise ValueError("in the child")

provider = sky.Local()
with sky.Compute(provider=provider, nodes=2, name="forking") as compute:
    print(same(0) @ compute)
    values = count(9) >> compute
    assert next(values) == 0
    in_child(use)
    in_child(use_another)
    in_child(fail)
    print("values:", sum(values))
print("receipt:", compute.receipt.ok)
"""


@pytest.mark.proof("1.5 s of a processor")
def test_forked_child_of_a_script_leaves_the_pool_to_its_parent(tmp_path: Path, home: Path) -> None:
    path = tmp_path / "forks.py"
    path.write_text(FORKS)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=100, check=False)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("pool forking belongs")]
    assert lines == [
        "[0, 0]",
        "child ended with 4",
        "parent goes on: [3, 3]",
        "attached: [5, 5]",
        "own: 6",
        "child ended with 6",
        "parent goes on: [3, 3]",
        "child ended with 1",
        "parent goes on: [3, 3]",
        "values: 36",
        "receipt: True",
    ], done.stdout + done.stderr
    assert "cannot be used after a fork. Connect this process with sky.attach('forking')" in done.stdout
    assert done.stderr.count("Traceback") == done.stderr.count("ValueError: in the child") == 1, done.stderr


# What a script defines and pickle knows by its name alone: it is not there on a node, so it travels by value.


BY_NAME = """
import functools, typing
import skyward_core as sky

UserId = typing.NewType("UserId", int)

@functools.lru_cache(maxsize=7)
def fib(n):
    "Of Fibonacci."
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@sky.function
def f(n: int = 10):
    return fib(n), fib.cache_parameters()["maxsize"], fib.__doc__, UserId(3), fib.cache_info().hits > 0

if __name__ == "__main__":
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
        print(f() @ compute)
"""


@pytest.mark.proof("0.8 s of a processor")
def test_cached_functions_and_classes_of_a_script_are_pickled(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "cached.py"
    script.write_text(BY_NAME)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90)
    assert done.stdout == "[(55, 7, 'Of Fibonacci.', 3, True)]\n", done.stderr


# Nothing of ours can know that this object goes by its name.
NESTED = """
import skyward_core as sky

class Named:
    def __reduce__(self):
        return "named"

named = Named()

@sky.function
def f():
    return type(named).__name__

with sky.Compute(nodes=1) as compute:
    print(f() @ compute)
"""


def test_rank_importing_a_script_that_creates_a_pool_fails(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "nested.py"
    script.write_text(NESTED)
    command = [sys.executable, "-m", "skyward_tui", "run", f"{script}:f", "--nodes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert "creates a pool when it is imported" in done.stdout + done.stderr
    assert done.returncode == 1
    assert len(list((home / "pools").iterdir())) == 1
