"""Bytecode cache of rewritten test modules."""

from __future__ import annotations

import importlib.util
import marshal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.compiled import keep_rewritten

HEADER = 16  # bytes before the code


def test_rewritten_test_module_is_cached_without_running_it(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    loader: Any = pytestconfig.pluginmanager.rewrite_hook
    source = tmp_path / "test_it.py"
    source.write_text(f'"""Its words."""\nopen({str(tmp_path / "ran")!r}, "w").close()\nassert 1 + 1 == 3\n')
    keep_rewritten(loader, source)
    assert not (tmp_path / "ran").exists()
    (cached,) = tmp_path.glob("__pycache__/test_it.*-pytest-*.pyc")
    assert "@pytest_ar" in marshal.loads(cached.read_bytes()[HEADER:]).co_names, "it is rewritten"
    was = cached.stat()
    module = ModuleType("test_it")
    module.__spec__ = importlib.util.spec_from_file_location("test_it", source, loader=loader)
    with pytest.raises(AssertionError, match=r"assert \(?1 \+ 1\)? == 3"):
        loader.exec_module(module)
    assert (tmp_path / "ran").exists()
    assert (cached.stat().st_ino, cached.stat().st_mtime_ns) == (was.st_ino, was.st_mtime_ns), "and taken as it is"
