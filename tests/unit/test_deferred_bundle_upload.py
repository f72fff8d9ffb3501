"""Deferred upload of the second bundle archive to SSH hosts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from skyward_core.transport.bundle_builder import bundle
from skyward_core.transport.ssh import ssh_transport_and_bundle_upload
from skyward_core.transport.ssh.host_address_and_python import WantedPython
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import DeferredUpload
from skyward_core.transport.transport import StartBarrier
from tests.support.waiting import until


class Host:
    """Fake host and opener of its command channels."""

    def __init__(self, there: bool = False) -> None:
        self.facts: dict[str, Any] = {"rest": there, "nvml": False}
        self.python = WantedPython()
        self.taken: list[bytes] = []
        self.opened = self.closed = 0
        self.fails = 0
        self.hangs = False

    async def open(self) -> Any:
        self.opened += 1
        if self.fails:
            self.fails -= 1
            raise ConnectionError("gone")
        return self

    async def ask(self, do: str, payload: bytes) -> None:
        assert do == "rest"
        if self.hangs:
            await asyncio.Event().wait()
        self.taken.append(payload)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_transport_and_bundle_upload, "PAUSES", (3600.0, 0.01, 0.01))


def sending(host: Host) -> DeferredUpload:
    return DeferredUpload("h", host.open)


async def test_pending_second_archive_is_sent_when_the_client_leaves() -> None:
    host = Host()
    rest = sending(host)
    rest.begin()
    rest.begin()  # by another preparation
    await rest.finish()
    assert host.taken == [bundle().rest] and host.closed == 1
    await rest.finish()
    await rest.cancel()
    assert len(host.taken) == 1


async def test_second_archive_is_sent_after_the_start_of_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    gate, rest = StartBarrier(2), sending(Host())
    monkeypatch.setattr(ssh_transport_and_bundle_upload, "PAUSES", (1.0, 5.0))

    async def upload(first: float) -> None:
        pauses.append(first)

    monkeypatch.setattr(rest, "_upload", upload)
    gate.deferred.append(rest.begin)
    for seconds, pause in ((0.0, 1.0), (3.0, 3.0), (60.0, 5.0)):
        gate._began = time.monotonic() - seconds
        gate.begin_deferred()
        await rest.finish()
        assert pauses.pop() == pytest.approx(pause, abs=0.5)


async def test_second_archive_already_on_the_host_is_not_sent() -> None:
    host = Host(there=True)
    rest = sending(host)
    rest.begin()
    await rest.finish()
    assert host.opened == host.closed == 1 and not host.taken


async def test_sending_the_second_archive_is_retried_after_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_transport_and_bundle_upload, "PAUSES", (0.0, 0.0, 0.0))
    host = Host()
    host.fails = 2
    rest = sending(host)
    rest.begin()
    await until(lambda: host.taken)
    assert host.opened == 3
    await rest.cancel()


async def test_unresponsive_host_does_not_delay_the_leaving_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_transport_and_bundle_upload, "FINISH_TIMEOUT", 0.05)
    host = Host()
    host.hangs = True
    rest = sending(host)
    rest.begin()
    await rest.finish()
    assert not host.taken and host.closed == 0
    await rest.cancel()
    assert host.closed == 1


async def test_unexpected_error_while_sending_still_allows_cancel() -> None:
    class Odd(Host):
        async def ask(self, do: str, payload: bytes) -> None:
            raise ValueError("odd")

    rest = sending(Odd())
    rest.begin()
    await rest.finish()
    await rest.cancel()
