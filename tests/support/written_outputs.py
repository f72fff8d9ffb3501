"""Loopback hosts whose ranks write files, and the client's working folder for the downloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.pool import output_files
from skyward_core.pool.agent_link import Link
from skyward_core.pool.direct_file_transfers import DirectConnections
from skyward_core.transport.file_and_result_downloads import IncomingOutput
from tests.support.loopback_hosts import Hosts


@sky.function
def write(files: dict[str, int], seed: int = 0) -> None:
    """Write files of given sizes. The content differs between ranks."""
    import random

    for path, size in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(random.Random(seed + sky.instance_info().rank).randbytes(size))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, module_home: Path) -> Iterator[Path]:
    """Working folder of the client."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "sent.txt").write_text("as it was")
    (folder / "mine.txt").write_text("as it was")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(output_files, "QUIET_TIME", 0.2)
        patch.setattr(output_files, "FETCH_INTERVALS", (0.1, 0.1))
        patch.setattr(output_files, "RETRY_PAUSE", 0.1)
        yield folder


@pytest.fixture
def through_ssh(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Disable direct connections. Return a list of the offsets from which files were requested."""
    asked: list[int] = []
    take = Link.fetch_output

    async def noted(link: Link, path: str, incoming: IncomingOutput) -> None:
        asked.append(incoming.at)
        await take(link, path, incoming)

    async def none(ways: DirectConnections, link: Link, path: str, incoming: IncomingOutput) -> bool:
        return False

    monkeypatch.setattr(Link, "fetch_output", noted)
    monkeypatch.setattr(DirectConnections, "download_output", none)
    return asked
