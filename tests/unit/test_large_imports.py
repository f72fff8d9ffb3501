"""What a rank loads that is large: no search for garbage goes through it, while it is loaded or later."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import inspect
import shutil
import subprocess
import sys
import weakref
import zipfile
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

import pytest

from skyward_core.runtime import import_hooks
from skyward_core.runtime.import_hooks import pause_gc


class Node:
    """Refers to itself: freed by a search for garbage alone."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def searches() -> Iterator[list[int]]:
    """The generation of each search for garbage that began."""
    begun: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    gc.callbacks.append(note)
    yield begun
    gc.callbacks.remove(note)
    gc.enable()


def test_nothing_is_searched_while_it_loads_nor_later(searches: list[int]) -> None:
    with pause_gc():
        searches.clear()
        loaded = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
        assert searches == []
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(loaded)
    assert not any(each is loaded for each in gc.get_objects())


def test_garbage_from_before_is_freed_all_the_same(searches: list[int]) -> None:
    node = weakref.ref(Node())
    assert node() is not None
    with pause_gc():
        pass
    assert node() is None


def test_a_load_that_fails_leaves_the_search_on(searches: list[int]) -> None:
    with pytest.raises(ImportError), pause_gc():
        raise ImportError("no such library")
    assert gc.isenabled()


def test_who_has_switched_the_search_off_has_it_as_it_was(searches: list[int]) -> None:
    gc.disable()
    node, frozen = weakref.ref(Node()), gc.get_freeze_count()
    with pause_gc():
        pass
    assert not gc.isenabled()
    assert gc.get_freeze_count() <= frozen  # another thread may let go of some meanwhile
    assert node() is not None


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the name of a large one, which notes whether it is searched while it loads."""
    folder = tmp_path / "peft"
    folder.mkdir()
    note = "import gc\nseen = gc.isenabled()\n"
    (folder / "__init__.py").write_text(note)
    (folder / "layers.py").write_text(note + "from . import missing_part\n")
    (folder / "tuners.py").write_text(note)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    import_hooks.install_gc_pause()
    import_hooks.install_gc_pause()
    assert sum(isinstance(finder, import_hooks._LargeFinder) for finder in sys.meta_path) == 1
    yield folder
    atexit.unregister(import_hooks._unfreeze_at_exit)  # tests end without a look through all that they have loaded
    for name in [name for name in sys.modules if name.partition(".")[0] == "peft"]:
        del sys.modules[name]


def test_a_large_library_is_loaded_so_and_is_otherwise_as_ever(library: Path) -> None:
    peft = importlib.import_module("peft")
    assert (peft.seen, gc.isenabled()) == (False, True)
    assert importlib.import_module("peft.tuners").seen is False, "what it loads later, too"
    assert type(peft.__loader__) is SourceFileLoader
    assert "exec_module" not in vars(peft.__loader__), "the loader is as it was"
    assert inspect.getsource(peft) == (library / "__init__.py").read_text()
    assert importlib.reload(peft).seen is False
    with pytest.raises(ImportError, match="missing_part"):
        importlib.import_module("peft.layers")
    assert gc.isenabled()


def test_finders_of_others_are_asked_as_ever(library: Path) -> None:
    class Others:
        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> object:
            found.append(name)
            spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
            assert spec is not None
            return spec

    found: list[str] = []
    sys.meta_path.insert(1, Others)  # type: ignore[arg-type]
    assert importlib.import_module("peft").seen is False
    assert found == ["peft"]


def test_one_loader_of_many_modules_may_be_asked_for_and_not_used(library: Path, tmp_path: Path) -> None:
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for file in (library / "__init__.py", library / "tuners.py"):
            zipped.write(file, f"peft/{file.name}")
    shutil.rmtree(library)
    sys.path.insert(0, str(archive))  # put back with the fixture's own
    for _ in range(2):
        assert importlib.util.find_spec("peft") is not None
    peft = importlib.import_module("peft")
    assert str(archive) in str(peft.__file__)
    assert (peft.seen, importlib.import_module("peft.tuners").seen) == (False, False)


def test_small_libraries_are_none_of_its_business(library: Path) -> None:
    (library.parent / "small_one.py").write_text("import gc\nseen = gc.isenabled()\n")
    assert importlib.import_module("small_one").seen is True
    del sys.modules["small_one"]


AT_THE_END = """
import atexit, gc, os, subprocess, sys
from skyward_core.runtime import import_hooks as large_imports

# Called last.
atexit.register(lambda: print("thaws" if large_imports._unfreeze_on_stop in gc.callbacks else "stays frozen"))
large_imports.install_gc_pause()
exec(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("left", "ends"),
    [
        ("", "stays frozen"),
        ("ends = os.pipe()", "stays frozen"),  # as frameworks have them, to wake their own threads
        ("file = open('left', 'w')", "thaws"),
        ("child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)", "thaws"),
        ("kept = type('Own', (), {'__del__': lambda self: None, '__module__': '__main__'})()", "thaws"),
    ],
)
def test_frozen_objects_are_found_at_the_end_only_if_data_may_be_unwritten(
    tmp_path: Path, left: str, ends: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, left], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == (ends, "")
