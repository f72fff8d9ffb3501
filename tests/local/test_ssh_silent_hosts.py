"""Hosts whose login shell reads input, waits or prints endlessly, and timeouts for silent hosts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncssh
import pytest

from skyward_core.client import node_file_copy
from skyward_core.model.errors import PoolError, Unreachable, UsageError
from skyward_core.providers.slurm.slurm_commands import SlurmCommands
from skyward_core.transport.ssh.connection import ANSWER_TIMEOUT, answer_timeout
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport, query_pythons
from tests.support.one_host import NOISE, Reports, config, greet, running, target
from tests.support.processes import descendants
from tests.support.sshd import Host
from tests.support.waiting import until

READS = "its startup files read standard input"


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANSWER_TIMEOUT, "2")


async def preparation_error(host: Host, known: Path) -> str:
    """Return the reason why the host cannot be prepared."""
    transport = SSHTransport(target(host, known), "p.0", patience=0)
    async with asyncio.timeout(60):
        with pytest.raises(PoolError) as refused:
            await transport.prepare(config(), Reports())
    await transport.close()
    return str(refused.value)


@pytest.mark.parametrize("noise", ["read x", "head -c 5000 > /dev/null", "read x; read y; echo $x"])
async def test_login_shell_that_reads_part_of_the_input_is_named(
    host: Host, known_hosts_file: Path, noise: str
) -> None:
    host.noise = noise
    text = await preparation_error(host, known_hosts_file)
    assert text.startswith("Host 127.0.0.1 lost a part of its input") and READS in text
    assert "`case $- in *i*) ...;; esac`" in text


@pytest.mark.parametrize("noise", ["cat > /dev/null", "printf 'project? '; exec sleep 600", "exec sleep 600"])
async def test_host_that_never_answers_is_named(host: Host, known_hosts_file: Path, noise: str) -> None:
    host.noise = noise
    text = await preparation_error(host, known_hosts_file)
    assert text.startswith("Host 127.0.0.1 accepted the login and then sent nothing for 2 s")
    assert f"{ANSWER_TIMEOUT}=30" in text and "`case $- in *i*) ...;; esac`" in text
    assert ("It printed: project?" in text) == ("project" in noise)


async def test_login_shell_that_prints_endlessly_is_named(
    host: Host, known_hosts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyward_core.transport.ssh.host_command_channel.NOISY_START_FACTOR", 1.5)
    host.noise = "while sleep 0.2; do echo still loading; done"
    text = await preparation_error(host, known_hosts_file)
    assert "print endlessly" in text and "still loading" in text


@pytest.mark.parametrize(
    "noise", [NOISE, "printf '{\"ok\": true}\\n'; (sleep 0.5; echo '{\"ok\": false}'; echo; echo late) &"]
)
async def test_login_shell_output_is_not_taken_for_an_answer(
    host: Host, known_hosts_file: Path, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ANSWER_TIMEOUT, "30")
    host.noise = noise
    transport = SSHTransport(target(host, known_hosts_file), "p.0")
    async with running(transport):
        await transport.prepare(config(), Reports())
        assert (await greet(transport))["t"] == "welcome"


async def test_silent_setup_longer_than_the_answer_timeout_is_waited_for(
    host: Host, known_hosts_file: Path, tmp_path: Path
) -> None:
    transport = SSHTransport(target(host, known_hosts_file), "p.0")
    async with running(transport):
        await transport.prepare(config(image={"setup": [f"sleep 3; touch {tmp_path}/done"]}), Reports())
        assert (tmp_path / "done").exists()


@contextmanager
def stopped(host: Host) -> Iterator[None]:
    """Suspend all processes of the host, as if they waited for a file server."""
    shells = [child.pid for child in host._children if child.returncode is None]
    pids = [*shells, *(pid for shell in shells for pid in descendants(shell))]

    def send(number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


@pytest.mark.parametrize("size", [0, 20_000_000])
async def test_host_that_stops_answering_a_request_is_named(host: Host, known_hosts_file: Path, size: int) -> None:
    transport = SSHTransport(target(host, known_hosts_file), "p.0")
    channel = await transport.channel()
    message = r"Host 127.0.0.1 sent nothing for 2 s after a request for 'rest'"
    with stopped(host), pytest.raises(Unreachable, match=message):
        await channel.ask("rest", bytes(size))
    channel.close()
    await transport.close()


async def test_upload_to_a_host_that_stops_reading_ends(host: Host, known_hosts_file: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(20_000_000))
    way = SSHTransport(target(host, known_hosts_file), "p.0")
    async with running(way):
        await way.prepare(config(), Reports())
        before = len(host.received)
        sending = asyncio.create_task(way.put(source, "a" * 32))
        await until(lambda: len(host.received) > before + 1_000_000 or sending.done(), "the transfer")
        message = r"Host 127.0.0.1 sent nothing for 2 s .* a transfer"
        with stopped(host), pytest.raises(ConnectionError, match=message):
            await sending


async def test_requests_to_a_host_that_fell_silent_end(host: Host, known_hosts_file: Path, tmp_path: Path) -> None:
    host.forwards = False
    source = tmp_path / "source"
    source.write_bytes(b"data")
    way = SSHTransport(target(host, known_hosts_file), "p.0")
    async with running(way):
        await way.prepare(config(), Reports())
        link = way._link
        assert link is not None
        host.noise = "exec sleep 600"
        ended = await asyncio.gather(
            way.open(lambda data: None, lambda error: None),
            way.put(source, "a" * 32),
            query_pythons(link),
            SlurmCommands(target(host, known_hosts_file))("sinfo"),
            return_exceptions=True,
        )
        host.noise = ""
    for error in ended:
        assert isinstance(error, (ConnectionError, Unreachable))
        assert "Host 127.0.0.1" in str(error) and "sent nothing for 2 s" in str(error)


class Hangs(asyncssh.SFTPServer):
    async def lstat(self, path: bytes) -> asyncssh.SFTPAttrs:
        await asyncio.Event().wait()
        raise AssertionError


async def test_download_from_a_host_that_stops_answering_ends(
    host: Host, known_hosts_file: Path, tmp_path: Path
) -> None:
    await host.stop()
    host.sftp = Hangs
    await host.start()
    with pytest.raises(Unreachable, match=r"Host 127.0.0.1 sent nothing for 2 s after a request for a copy"):
        await node_file_copy._download(
            target(host, known_hosts_file), "results", tmp_path / "here", lambda done, total: None
        )


@pytest.mark.parametrize("text", ["x", "0", "-1", "nan", "inf", "1e999"])
def test_invalid_answer_timeout_is_rejected(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANSWER_TIMEOUT, text)
    with pytest.raises(UsageError, match=f"{ANSWER_TIMEOUT}='{text}' is not valid: set it to a number of seconds"):
        answer_timeout()
