"""What a script defines works in processes that its functions start with multiprocessing, whichever way they start."""

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
