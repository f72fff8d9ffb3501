"""What a script defines works in ranks by its name, in processes of multiprocessing, and beside a fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import PATIENCE, Cli

METHODS = ("fork", "spawn", "forkserver")

# No main guard: a child that ran the script would start pools without end.
SCRIPT = """
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


@pytest.mark.proof("1 s of a processor")
def test_of_a_script_that_python_runs(tmp_path: Path, home: Path) -> None:
    (script := tmp_path / "mp1.py").write_text(SCRIPT + POOL)
    expected = str([tuple(each) if each == [7] else each for each in FOUND])
    assert python(script, *METHODS) == [expected] * len(METHODS)


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("method", METHODS)
def test_of_a_script_that_the_command_line_loads(cli: Cli, method: str) -> None:
    cli.write("mp1.py", (SCRIPT + POOL).replace("skyward_core as", "skyward as"))
    assert cli.json("run", "mp1.py", "--arg", f"method={method}")["ranks"][0]["value"] == FOUND


@pytest.mark.proof("1 s of a processor")
def test_without_any_file_of_the_script(tmp_path: Path, home: Path) -> None:
    found = python(Path("-"), *METHODS, input=SCRIPT + POOL)
    assert len(found) == len(METHODS)


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
def test_the_version_that_is_called_is_the_one_that_children_have(tmp_path: Path, home: Path) -> None:
    """Two functions each have their copy of what both use, and what comes in arguments is there as well."""
    (script := tmp_path / "versions.py").write_text(VERSIONS)
    each = ["[[2], [20], [2]] [4]", "[[3], [30], [3]]"]
    assert python(script) == [*(each * 3), "[]"]


@pytest.mark.proof("1 s of a processor")
def test_functions_of_real_modules_stay_theirs(tmp_path: Path, home: Path) -> None:
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


def test_a_forked_child_ends_by_itself_and_leaves_the_pool_to_its_parent(tmp_path: Path, home: Path) -> None:
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


def test_cached_functions_and_new_types_of_a_script(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "cached.py"
    script.write_text(BY_NAME)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90)
    assert done.stdout == "[(55, 7, 'Of Fibonacci.', 3, True)]\n", done.stderr


@pytest.mark.proof("1 s of a processor")
def test_the_same_from_the_command_line(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "cached.py"
    script.write_text(BY_NAME)
    command = [sys.executable, "-m", "skyward_tui", "run", f"{script}:f", "--nodes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[55, 7, 'Of Fibonacci.', 3, True]" in done.stdout


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


def test_a_rank_that_imports_a_script_makes_no_pool(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "nested.py"
    script.write_text(NESTED)
    command = [sys.executable, "-m", "skyward_tui", "run", f"{script}:f", "--nodes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert "creates a pool when it is imported" in done.stdout + done.stderr
    assert done.returncode == 1
    assert len(list((home / "pools").iterdir())) == 1
