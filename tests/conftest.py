"""Order of the test files: long ones first, with files that wait beside files that compute.

Files that wait depend on cables, leases or dead clients. With this order several processes end at about the same time.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support.compiled import compile_before
from tests.support.have_uv import have_uv
from tests.support.proof_days import is_due

# How long an example takes is for the benchmarks: here a busy machine would fail tests.
PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("proofs", max_examples=100, **PATIENT)
settings.register_profile("suite", max_examples=15, **PATIENT)

# As below for the packages: the processes of a run would each compile all tests, of which one can keep what it has.
sys.dont_write_bytecode = False

# A file is collected by every process of a run, so it imports heavy frameworks in its tests, not at its top.
MARKS = {
    "lab": "lab",
    "aws": "lab",
    "frameworks": "frameworks",
    "local": "slow",
    "tui": "slow",
    "compat": "slow",
}  # of folders, for pytest -m
TURNS = (("frameworks", "lab", "aws"), ("local", "tui"))  # folders whose files take turns; then come all others


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-seconds", type=float, default=3.0, help="how long each storm of faults lasts")
    parser.addoption("--proofs", action="store_true", help="run tests marked as proof, too, and all examples")
    parser.addoption(
        "--proofs-of", type=int, metavar="DAY", help="run the seventh of the proofs that is due on a day, too"
    )
    parser.addoption("--chaos-seed", type=int, default=1, help="what a storm of faults chooses by")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("proofs" if config.getoption("--proofs") else "suite")
    if not config.getoption("--proofs"):
        # Hypothesis would read all sources for constants before the first test, which takes seconds.
        providers._get_local_constants = lambda: providers._local_constants
    # A shell ignores SIGINT for a background test run, and nohup ignores SIGHUP. Processes that tests start would
    # inherit this. They do not inherit handlers, and with a handler SIGHUP does not end the test run either.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # At each start of an interpreter, setuptools would load a replacement of distutils that no test needs.
    os.environ.setdefault("SETUPTOOLS_USE_DISTUTILS", "stdlib")
    # First in the import path of ranks, too, which load modules of tests; here pytest is loaded.
    sys.path.insert(0, str(config.rootpath / "tests/support/in_ranks"))
    # Else pytest-xdist would begin with the files that hold the most tests, which are the quick ones.
    config.option.loadscopereorder = False
    config.add_cleanup(have_uv())
    if not hasattr(config, "workerinput"):
        compile_before(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    from tests.support.forked_runs import fork_runs

    fork_runs(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.scheduling import SharingFiles

    return SharingFiles(config, log)


@pytest.fixture(scope="session", autouse=True)
def nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prevent all tests from using the ledger of the user who runs them. Tests that need a fresh one use fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path_factory.mktemp("nobodys")))
        yield


@pytest.fixture(scope="session")
def proofs(request: pytest.FixtureRequest) -> bool:
    """Whether to try all cases of a test, instead of only the most telling ones."""
    return bool(request.config.getoption("--proofs"))


@pytest.fixture(scope="session", autouse=True)
def quick_loaders() -> Iterator[None]:
    """Load scripts faster for tests in their own process. Commands load scripts as usual."""
    from tests.support.quick_loaders import use_quick_loaders

    with pytest.MonkeyPatch.context() as patch:
        use_quick_loaders(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def fewer_packages(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide the packages that the module's ``NOT_INSTALLED`` names, separated by spaces, from started processes."""
    with pytest.MonkeyPatch.context() as patch:
        if hidden := getattr(request.module, "NOT_INSTALLED", ""):
            from tests.support.fewer import without

            for name, value in without(hidden).items():
                patch.setenv(name, value, prepend=os.pathsep if name == "PYTHONPATH" else None)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze all objects of the loaded tests, and disable garbage collection while tests load.

    Python would scan all objects repeatedly during the collection of tests, and again during each test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Frozen objects no longer count as old, so Python would scan all others very often. That took a third of the
        # time of the app's tests.
        gc.set_threshold(200_000, 20, 50)
        gc.enable()


def pytest_unconfigure() -> None:
    """Collect garbage once and report errors of finalizers. pytest would collect it five times."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort files by :data:`TURNS`. Tests of a file stay together and in order."""
    storm = config.getoption("--chaos-seconds")
    cases: Counter[str] = Counter()
    for item in items:
        if mark := MARKS.get(item.path.relative_to(Path(__file__).parent).parts[0]):
            item.add_marker(mark)
        if proof := item.get_closest_marker("proof"):
            case = item.nodeid.partition("[")[0]
            cases[case] += 1
            written = "snap" in getattr(item, "fixturenames", ()) and os.environ.get("UPDATE_SNAPSHOTS")
            runs = config.getoption("--proofs") or written or is_due(item.nodeid, config.getoption("--proofs-of"))
            if cases[case] > proof.kwargs.get("after", 0) and not runs:
                reason = f"run with --proofs: needs {', '.join(proof.args)}"
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.path.name == "test_chaos.py":  # what it is asked to last is no hang
            item.add_marker(pytest.mark.timeout(float(config.getini("timeout")) + storm))
    folders: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        folders.setdefault(item.path.parent.name, {}).setdefault(str(item.path), []).append(item)
    files: list[list[pytest.Item]] = []
    for turn in TURNS:
        together = [folders.pop(name, {}).values() for name in turn]
        files += chain.from_iterable(zip_longest(*together, fillvalue=[]))
    files += chain.from_iterable(others.values() for others in folders.values())
    items[:] = chain.from_iterable(files)
