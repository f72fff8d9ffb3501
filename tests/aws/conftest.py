"""One simulated EC2 for all tests of this process, reset after each test. Tests that need hosts are skipped without a
lab.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client.session import Session
from tests.lab import missing

from . import Bed


@pytest.fixture(scope="session")
def session_bed() -> Iterator[Bed]:
    with Bed() as made:
        yield made


@pytest.fixture(autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Current folder of a test, which hosts get a copy of."""
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))


@pytest.fixture
def bed(session_bed: Bed) -> Iterator[Bed]:
    """Simulated EC2 whose instances are hosts."""
    if why := missing():
        pytest.skip(why)
    yield session_bed
    session_bed.heal()


@pytest.fixture
def simulated_bed(session_bed: Bed) -> Iterator[Bed]:
    """Simulated EC2 whose instances exist in the API only: fast, any number of instances, no root required."""
    session_bed.simulate()
    yield session_bed
    session_bed.heal()


@pytest.fixture
def bed_of_client(simulated_bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Simulated EC2 without hosts, with this process as a client that has credentials."""
    from skyward_core.providers.aws import boto_calls

    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    for name, text in simulated_bed.environment().items():
        monkeypatch.setenv(name, text)
    boto_calls.shared_calls.cache_clear()
    return simulated_bed


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Factory of further clients."""
    sessions: list[Session] = []

    def begin(bed: Bed) -> Session:
        monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
        for name, text in bed.environment().items():
            monkeypatch.setenv(name, text)
        sessions.append(Session())
        return sessions[-1]

    yield begin
    for each in sessions:
        each.detach()
