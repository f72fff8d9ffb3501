"""The SSH provider and transport against asyncssh's own server on loopback; real agents, real channels."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import (
    CredentialsRefused,
    Hint,
    HostKeyError,
    NoCapacity,
    PoolError,
    TooFewHosts,
    Unreachable,
    UsageError,
)
from skyward_core.model.specs import PoolSpec
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport import working_folder_upload
from skyward_core.transport.ssh import connection as connect
from skyward_core.transport.ssh import known_hosts
from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.host_key_prompt import HostKeyPrompt
from skyward_core.transport.ssh.ssh_transport import SSHTransport
from skyward_tui.text.error_hints import format_detail
from tests.support.one_host import NOISE, Reports, config, greet, provider, running, target
from tests.support.sshd import Host


@pytest.fixture
def host(host: Host) -> Host:
    """One whose login shell prints."""
    host.noise = NOISE
    return host


# ---- preparing ---------------------------------------------------------------------------------------------


async def test_an_agent_comes_up_behind_a_noisy_login_shell(host: Host, known: Path, tmp_path: Path) -> None:
    work = tmp_path / "project"
    work.mkdir()
    (work / "model.py").write_text("x = 1")
    transport = SSHTransport(target(host, known), "p.0")
    async with running(transport):
        reports = Reports()
        await transport.prepare(config(cwd=str(work), env={"TOKEN": "very-secret"}), reports)
        assert (await greet(transport))["pool"] == "p"
        phases = list(dict.fromkeys(phase for phase, _ in reports.lines))
        assert phases == ["running", "connected", "synced", "installed"]
        assert "Python" in reports.of("connected") and "1 of 1 files" in reports.of("synced")
        copies = list(host.home.glob(".cache/skyward/work/project-*/model.py"))
        assert [copy.read_text() for copy in copies] == ["x = 1"]

        # Again: the same agent, and nothing travels a second time.
        pid = (await greet(transport))["pid"]
        again = Reports()
        await transport.prepare(config(cwd=str(work)), again)
        assert "bundle is up to date" in again.of("synced") and "already running" in again.of("installed")
        assert (await greet(transport))["pid"] == pid

        # Secrets came by standard input, and lie nowhere.
        assert b"very-secret" in host.received
        assert not any("very-secret" in command for command in host.commands)
        for path in host.home.rglob("*"):
            assert not path.is_file() or b"very-secret" not in path.read_bytes(), path
    assert not list(host.home.glob(".cache/skyward/pools/*/agent.json"))


@pytest.mark.proof("1 s of a processor")
async def test_a_file_that_is_removed_during_a_start_is_left_out(
    host: Host, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "project"
    work.mkdir()
    for name in ("model.py", "notes.txt"):
        (work / name).write_text("x = 1")
    first = SSHTransport(target(host, known), "p.0")
    async with running(first):
        await first.prepare(config(cwd=str(work)), Reports())
    for path in work.iterdir():
        os.utime(path, ns=(1, 12345))  # the node cannot tell whether they are the same
    differ = working_folder_upload.Snapshot.find_changed

    async def late(self: working_folder_upload.Snapshot, hashes: Mapping[int, str]) -> list[int]:
        (work / "notes.txt").unlink()
        return await differ(self, hashes)

    monkeypatch.setattr(working_folder_upload.Snapshot, "find_changed", late)
    second = SSHTransport(target(host, known), "p.1")
    async with running(second):
        await second.prepare(config(cwd=str(work)), Reports())
        (copy,) = host.home.glob(".cache/skyward/work/project-*/")
        assert [path.name for path in copy.iterdir()] == ["model.py"]


@pytest.mark.proof("1 s of a processor")
async def test_the_rest_of_the_bundle_follows_once(host: Host, known: Path) -> None:
    folders = lambda: {path.parent.name for path in host.home.glob(".cache/skyward/bundle-*/all.zip")}  # noqa: E731
    for folder, had in (("one.0", 1), ("two.0", 2)):
        transport = SSHTransport(target(host, known), folder)
        async with running(transport):
            await transport.prepare(config(), Reports())
            assert len(folders()) == had
            await transport.finish_uploads()
            first, rest = sorted(folders())
            assert rest == f"{first}-rest"


@pytest.mark.proof("1 s of a processor")
async def test_the_bundle_travels_once_for_all_pools(host: Host, known: Path) -> None:
    for folder, said in (("one.0", "bundle sent"), ("two.0", "bundle is up to date")):
        transport = SSHTransport(target(host, known), folder)
        async with running(transport):
            reports = Reports()
            await transport.prepare(config(), reports)
            assert said in reports.of("synced")


async def test_without_forwarding_a_command_stands_in(host: Host, known: Path) -> None:
    host.forwards = False
    transport = SSHTransport(target(host, known), "p.0")
    async with running(transport):
        await transport.prepare(config(), Reports())
        assert (await greet(transport))["pool"] == "p"
        assert "relay.main" in host.commands[-1]


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("forwards", [True, False])
async def test_no_agent_is_an_oserror(host: Host, known: Path, forwards: bool) -> None:
    host.forwards = forwards
    transport = SSHTransport(target(host, known), "p.0")
    async with running(transport):
        await transport.prepare(config(), Reports())
        channel = await transport.channel()
        await channel.ask("end", folder="p.0", socket=channel.facts["socket"])
        channel.close()
        with pytest.raises(OSError, match="no agent"):
            await transport.open(lambda data: None, lambda error: None)


async def test_a_cut_connection_is_told_once_and_renewed(host: Host, known: Path) -> None:
    transport = SSHTransport(target(host, known), "p.0")
    async with running(transport):
        await transport.prepare(config(), Reports())
        pid = (await greet(transport))["pid"]
        lost: asyncio.Queue[Exception | None] = asyncio.Queue()
        await transport.open(lambda data: None, lost.put_nowait)
        for connection in list(host.connections):
            connection.abort()
        await asyncio.wait_for(lost.get(), 90)
        assert (await greet(transport))["pid"] == pid
        assert lost.empty()


async def test_put_is_whole_and_by_name(host: Host, known: Path, tmp_path: Path) -> None:
    transport = SSHTransport(target(host, known), "p.0")
    async with running(transport):
        await transport.prepare(config(), Reports())
        data = os.urandom(3_000_001)
        (tmp_path / "payload").write_bytes(data)
        await transport.put(tmp_path / "payload", "abc123")
        blobs = host.home / ".cache/skyward/pools/p.0/blobs"
        assert [path.name for path in blobs.iterdir()] == ["abc123"]
        assert (blobs / "abc123").read_bytes() == data


@pytest.mark.proof("1 s of a processor")
async def test_a_pool_found_by_another_client_needs_no_config(host: Host, known: Path) -> None:
    first, second = (SSHTransport(target(host, known), "p.0") for _ in range(2))
    async with running(first):
        await first.prepare(config(), Reports())
        assert (await greet(second))["pool"] == "p"
        await second.close()


# ---- jump hosts and the provider ---------------------------------------------------------------------------


async def test_a_jump_host_refused_at_one_session_is_asked_about_at_the_other(
    host: Host, known: Path, tmp_path: Path
) -> None:
    jump = Host(tmp_path / "jump")
    await jump.start()
    jump.authorized.write_text(host.authorized.read_text())
    wish = target(host, known, jump=f"127.0.0.1:{jump.port}", host_keys="ask")
    both = asyncio.Barrier(2)  # neither answers before the other is asked

    async def reach(answer: bool) -> connect.HostConnection:
        async def hook(shown: known_hosts.ServerKey) -> bool:
            await both.wait()
            return answer

        questions = HostKeyPrompt()
        questions.set_handler(hook)
        with questions.set_current():
            return await connect.connect(wish)

    async with asyncio.timeout(30):
        refused, accepted = await asyncio.gather(reach(False), reach(True), return_exceptions=True)
    assert isinstance(refused, HostKeyError) and isinstance(accepted, connect.HostConnection)
    await accepted.close()
    await jump.stop()


async def test_a_jump_host_is_shared_verified_and_closed_after_the_last(
    host: Host, known: Path, tmp_path: Path
) -> None:
    jump = Host(tmp_path / "jump")
    await jump.start()
    jump.authorized.write_text(host.authorized.read_text())
    wish = target(host, known, jump=f"127.0.0.1:{jump.port}")
    with pytest.raises(PoolError, match=f"key of host 127.0.0.1:{jump.port} .* is not known"):
        await connect.connect(wish, patience=0)
    known.write_text(host.known_line() + jump.known_line())
    links = await asyncio.gather(*(connect.connect(wish) for _ in range(3)))
    assert (jump.logins, host.logins) == (1, 3)
    for link in links:
        await link.close()
    async with asyncio.timeout(90):
        while jump.connections:
            await asyncio.sleep(0.01)
    await jump.stop()


async def test_the_provider_creates_nothing_describes_and_ends(host: Host, known: Path) -> None:
    ssh = SSH.from_json(provider(host, known).to_json())
    spec = PoolSpec(name="train", provider=ssh)
    machines = await ssh.create(spec, "token-1")
    assert machines == await ssh.create(spec, "token-1")
    assert host.logins == 0
    assert [machine.state for machine in await ssh.describe("train", machines)] == ["gone"]
    transport = ssh.transport("train", machines[0])
    await transport.prepare(config(pool="train"), Reports())
    await transport.close()
    assert [machine.state for machine in await ssh.describe("train", machines)] == ["running"]
    await ssh.terminate("train", machines)
    await ssh.terminate("train", machines)
    assert [machine.state for machine in await ssh.describe("train", machines)] == ["gone"]
    await host.stop()
    unreachable = await ssh.describe("train", machines)
    assert [machine.state for machine in unreachable] == ["unreachable"]
    assert "no SSH server listens" in unreachable[0].extra["why"]


async def test_more_nodes_than_hosts_is_a_usage_error(host: Host, known: Path) -> None:
    ssh = provider(host, known)
    with pytest.raises(TooFewHosts, match="2 nodes were requested, but there are only 1 hosts") as caught:
        await ssh.create(PoolSpec(name="train", provider=ssh, nodes=2), "t")
    assert isinstance(caught.value, UsageError) and isinstance(caught.value, NoCapacity)
    assert errors.error_exit_code(caught.value) == errors.USAGE


async def test_no_host_left_to_replace_one_is_no_capacity(host: Host, known: Path) -> None:
    ssh = provider(host, known)
    machines = await ssh.create(PoolSpec(name="train", provider=ssh), "token")
    with pytest.raises(NoCapacity, match="list more hosts than nodes"):
        await ssh.replace("train", "token", 0, machines, machines)
    await host.stop()
    with pytest.raises(NoCapacity, match=r"no host is available for node 0: .*no SSH server listens"):
        await ssh.replace("train", "token", 0, [], machines)


async def test_a_client_that_comes_back_tells_why_no_node_answers(host: Host, known: Path, tmp_path: Path) -> None:
    """A pool's host is there, lets nobody in, shows another key, is off: four errors that scripts can tell apart."""
    maker = Session()
    await asyncio.wrap_future(maker.create(PoolSpec(name="back", provider=provider(host, known))))
    await asyncio.to_thread(maker.detach)
    authorized, real = host.authorized.read_text(), known.read_text()

    async def refused() -> PoolError:
        session = Session()
        try:
            with pytest.raises(PoolError, match="No node of pool back answers") as caught:
                await asyncio.wrap_future(session.attach("back"))
            return caught.value
        finally:
            await asyncio.to_thread(session.detach)

    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    host.authorized.write_text(other)
    await restart(host)
    assert type(await refused()) is CredentialsRefused
    host.authorized.write_text(authorized)
    await restart(host)
    known.write_text(f"[127.0.0.1]:{host.port} {other}")
    changed = await refused()
    assert type(changed) is HostKeyError
    assert changed.hint == Hint("trust-host-key", f"127.0.0.1:{host.port}", str(known))
    known.write_text(real)
    await host.stop()
    assert type(await refused()) is Unreachable
    await host.start()
    session = Session()
    assert (await asyncio.wrap_future(session.tear_down("back"))).ok
    await asyncio.to_thread(session.detach)


async def restart(host: Host) -> None:
    await host.stop()
    await host.start()


@pytest.mark.proof("1 s of a processor")
async def test_check_says_what_works_in_words(host: Host, known: Path, tmp_path: Path) -> None:
    lines = await provider(host, known).check()
    words = "\n".join(line.detail for line in lines)
    for part in (
        "reachable as",
        "host key is known",
        "Python 3.",
        "GB free",
        "GPU",
        "peers reach it",
        "clock is right",
    ):
        assert part in words, words
    assert all(line.state != "fail" for line in lines)
    (line,) = await provider(host, tmp_path / "none").check()
    assert line.state == "fail" and "is not known" in line.detail
    assert f"skyward-tui trust 127.0.0.1:{host.port}" in format_detail(line)


@pytest.mark.proof("3 s of a processor")
async def test_who_looks_at_a_host_without_the_wanted_python_takes_another_and_has_none_fetched(
    host: Host, known: Path
) -> None:
    uv = host.home / ".local/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(f"#!/bin/sh\n: > {host.home}/fetched\nexit 1\n")
    uv.chmod(0o755)
    hosts, wanted = provider(host, known), ["3.99", ""]
    lines = await hosts.check_for(wanted)
    (python,) = (each for each in lines if "Python" in each.detail)
    assert "no Python 3.99, the version that the script is loaded with; it has Python 3." in python.detail
    assert (python.state, python.detail.endswith("its uv downloads it at the first start")) == ("ok", True)
    assert any("clock is right" in each.detail for each in lines), "all else is looked at"
    uv.chmod(0o644)
    host.noise = f"PATH={Path(sys.executable).resolve().parent}:/usr/bin:/bin"  # that of the tests may have one, too
    (python,) = (each for each in await hosts.check_for(wanted) if each.state == "fail")
    assert python.detail.endswith("install python3.99 or uv there")
    assert (await hosts.look_at(hosts.hosts[0], wanted)).reached
    assert not (host.home / "fetched").exists()
    named = replace(hosts, python=sys.executable)  # is taken at its word
    (line,) = await named.check_for(wanted)
    assert line.state == "fail"
    assert f"interpreter {sys.executable} is not a working Python 3.99 (it has" in line.detail


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen to lock a key with")
async def test_keys_of_the_configuration_that_are_not_there_or_locked_are_passed_over(
    host: Host, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(folder / "locked")]
    assert await (await asyncio.create_subprocess_exec(*make)).wait() == 0
    (folder / "config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {host.port}\n  IdentityFile ~/.ssh/not-there\n"
        f"  IdentityFile ~/.ssh/locked\n  IdentityFile {host.client_key}\n  UserKnownHostsFile {known}\n"
    )
    link = await connect.connect(Target("box"), patience=0)
    await link.close()
    missing = Target("box", keys=(str(folder / "not-there"),))
    with pytest.raises(UsageError, match=r"Cannot use a key file .*not-there"):
        await connect.connect(missing, patience=0)


async def test_a_key_file_that_is_a_named_pipe_is_not_waited_for(
    host: Host, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh/config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {host.port}\n  IdentityFile {pipe}\n  CertificateFile {pipe}\n"
        f"  IdentityFile {host.client_key}\n  UserKnownHostsFile {known}\n"
    )
    link = await connect.connect(Target("box"), patience=0)
    await link.close()
    with pytest.raises(UsageError, match="Cannot use a key file of host box: it is a named pipe"):
        await connect.connect(Target("box", keys=(str(pipe),)), patience=0)
