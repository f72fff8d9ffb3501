"""Distribution of test files to processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.scheduling import PLACES, SHARING, SharingFiles


def test_test_files_sharing_fixtures_use_a_fixed_number_of_processes() -> None:
    option = SimpleNamespace(getvalue=lambda name: ["popen"])
    log: Any = SimpleNamespace(loadscopesched=None, loadfilesched=None)
    scheduling = SharingFiles(option, log)
    ((folder, processes),) = SHARING.items()
    files = [f"{folder}/test_{name}.py" for name in "abcde"]
    scopes = [scheduling._split_scope(f"{file}::test_it[a::b]") for file in files]
    assert len(set(scopes)) == processes
    assert scopes == [scheduling._split_scope(f"{file}::Class::test_other") for file in files]
    assert scheduling._split_scope("tests/unit/test_a.py::test_it[a::b]") == "tests/unit/test_a.py"
    for file, place in PLACES.items():
        assert scheduling._split_scope(f"{file}::test_it") == place


MARKS = {"sources": "support.sources", "torch": "torch"}


def test_test_files_scheduled_as_sharing_use_the_shared_fixture() -> None:
    root = Path(__file__).parents[2]
    for file, place in PLACES.items():
        assert MARKS[place] in (root / file).read_text(), file
