"""Compilation of all modules before the processes of a test run start, because each process would compile them
itself.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.abc import Loader
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def compile_before(config: pytest.Config) -> None:
    """Write the bytecode of all sources for started processes, and for a parallel run also pytest's rewritten tests."""
    tests = config.rootpath / "tests"
    rewritten = {*tests.rglob("test_*.py"), *tests.rglob("conftest.py")}
    folders = [config.rootpath / "skyward_core", config.rootpath / "skyward_tui", tests]
    plain = {source for folder in folders for source in folder.rglob("*.py")} - rewritten
    loader = config.pluginmanager.rewrite_hook
    many = config.getoption("numprocesses", None) and isinstance(loader, Loader)  # with --assert=plain it is none
    todo = sorted(plain), sorted(filter(_is_new, rewritten)) if many else []
    cores = os.cpu_count() or 1
    # Forked, as there is no thread yet: pytest's loader cannot be sent.
    parts = [
        get_context("fork").Process(target=_compile, args=(loader, *(each[first::cores] for each in todo)))
        for first in range(cores)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()


def _compile(loader: Any, plain: Sequence[Path], rewritten: Iterable[Path]) -> None:
    for source in plain:
        compileall.compile_file(source, quiet=1)
    for source in rewritten:
        keep_rewritten(loader, source)


def keep_rewritten(loader: Any, source: Path) -> None:
    """Let pytest write the rewritten bytecode of a test module without running the module. The rewritten code begins
    with an import, which fails without builtins.
    """
    module = ModuleType(source.stem)
    module.__spec__ = importlib.util.spec_from_file_location(source.stem, source, loader=loader)
    module.__dict__["__builtins__"] = {}
    with suppress(ImportError, SyntaxError):  # who loads it tells of a mistake in it
        loader.exec_module(module)


def _is_new(source: Path) -> bool:
    """Check whether the cached bytecode of a source is missing or outdated."""
    changed = source.stat().st_mtime
    return all(
        cached.stat().st_mtime < changed for cached in source.parent.glob(f"__pycache__/{source.stem}.*-pytest-*.pyc")
    )
