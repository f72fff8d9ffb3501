"""Modules edited while a pool is up."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import skyward_core as sky
from skyward_core.views import events
from tests.support.faults import on_loop
from tests.support.waiting import wait_until

QUIET = sky.Options(console=False, grace=1)
SECOND = time.time_ns() // 10**9 * 10**9
EDITS = itertools.count()
TEXT = "import os\n\ndef version():\n    return {version!r}, os.getpid()\n"


@pytest.fixture
def folder(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def write(folder: Path, name: str, version: str) -> None:
    """Replace a file like editors do. The time stays within the same second, which is the resolution of bytecode
    times.
    """
    new = folder / "new"
    new.write_text(TEXT.format(version=version))
    os.utime(new, ns=(0, SECOND + next(EDITS)))
    new.replace(folder / f"{name}.py")


def loaded(name: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(name)


@sky.function
def version_of(name: str) -> tuple[str, int]:
    """Return the version of the module. The function is sent by value, and the modules that it imports are the
    rank's.
    """
    import importlib

    value: tuple[str, int] = importlib.import_module(name).version()
    return value


@sky.function
def turns_into_a_pipe(name: str) -> str:
    import importlib

    module = importlib.import_module(name)
    Path(module.__file__ or "").unlink()
    os.mkfifo(module.__file__ or "")
    return str(module.version()[0])


def edit_notices(compute: sky.Compute) -> list[str]:
    messages: list[str] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.PoolState) and "edited" in event.detail:
            messages.append(event.detail)

    on_loop(lambda: compute.pool.news.subscribe(hear, None))
    return messages


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("cluster", [True, False])
def test_next_run_uses_edited_modules(folder: Path, cluster: bool) -> None:
    write(folder, "helper_a", "one")
    write(folder, "helper_b", "one")
    options = sky.Options(console=False, grace=1, cluster=cluster)
    worker = sky.Worker(concurrency=2)
    with sky.Compute(nodes=2, worker=worker, image=sky.Image(workdir=folder), options=options) as compute:
        notice = edit_notices(compute)
        remote = sky.function(loaded("helper_a").version)  # by its name
        first = remote() @ compute
        assert [v for v, _ in first] == ["one", "one"]
        assert remote() @ compute == first, "nobody takes their places where nothing has changed"
        os.utime(folder / "helper_a.py")
        assert remote() @ compute == first, "nor where a file is as it was"
        assert notice == []

        write(folder, "helper_a", "two")
        second = remote() @ compute
        assert [v for v, _ in second] == ["two", "two"]
        assert not {pid for _, pid in first} & {pid for _, pid in second}
        assert notice == ["helper_a.py was edited: restarting the ranks' processes to load the changes"]
        assert remote() @ compute == second

        # Of a module that ranks alone have loaded, in each process that has: tasks have others beside the ranks'.
        def each(count: int = 8) -> set[str]:
            return {v for v, _ in sky.gather(*(version_of("helper_b") for _ in range(count))) >> compute}

        assert each() == {"one"}
        write(folder, "helper_b", "two")
        assert each() == {"two"}
        write(folder, "helper_b", "three")
        assert (version_of("helper_b") >> compute)[0] == "three"
        assert len(notice) == 3
        (folder / "helper_b.py").unlink()
        assert (remote() @ compute)[0][0] == "two"
        assert len(notice) == 3
        # A pipe in such a file's place has nobody wait for who writes, neither here nor in a rank.
        os.mkfifo(folder / "helper_b.py")
        assert (remote() @ compute)[0][0] == "two"
        write(folder, "helper_p", "one")
        assert turns_into_a_pipe("helper_p") >> compute == "one"
        assert (remote() @ compute)[0][0] == "two"


@sky.function
def waits_for(name: str, begun: str, end: str) -> tuple[str, str]:
    import importlib
    import time

    before = importlib.import_module(name).version()[0]
    Path(begun, str(sky.instance_info().rank)).touch()
    while not Path(end).exists():
        time.sleep(0.01)
    return before, importlib.import_module(name).version()[0]


def test_edit_does_not_affect_running_runs_and_reaches_other_clients(folder: Path) -> None:
    write(folder, "helper_c", "one")
    begun, end = folder / "begun", folder / "end"
    begun.mkdir()
    with sky.Compute(name="edited", nodes=2, image=sky.Image(workdir=folder), options=QUIET) as compute:
        results: list[object] = []

        def run() -> None:
            results.append(waits_for("helper_c", str(begun), str(end)) @ compute)

        theirs = threading.Thread(target=run)
        assert (version_of("helper_c") @ compute)[0][0] == "one"
        theirs.start()
        wait_until(lambda: len(list(begun.iterdir())) == 2)
        write(folder, "helper_c", "two")
        with sky.attach("edited") as other:
            answer: list[object] = []
            asking = threading.Thread(target=lambda: answer.append(version_of("helper_c") @ other))
            asking.start()
            wait_until(lambda: "runs wait for broadcasts" in str(other.pool.view))
            assert not answer
            end.touch()
            theirs.join()
            asking.join()
            assert results == [[("one", "one"), ("one", "one")]]
            assert [v for v, _ in answer[0]] == ["two", "two"]  # type: ignore[attr-defined]
            assert [v for v, _ in version_of("helper_c") @ compute] == ["two", "two"]
