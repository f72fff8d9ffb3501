"""Hosts behind asyncssh's server: agents, transfers, jump hosts, host keys and errors."""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import re
import shlex
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from skyward_core.client.session import Session
from skyward_core.model import errors
from skyward_core.model.errors import (
    Cancelled,
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
from skyward_core.node.bootstrap import host_inspection
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.ssh import connection, known_hosts
from skyward_core.transport.ssh import connection as connect
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.host_command_channel import NoFittingPython
from skyward_core.transport.ssh.host_key_prompt import HostKeyPrompt
from skyward_core.transport.ssh.ssh_config_and_preopened_sockets import PreopenedSockets
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport
from skyward_core.transport.transport import StartBarrier
from skyward_tui.text.error_hint_text import format_detail, format_error
from tests.support.one_host import NOISE, Reports, config, greet, provider, running, target
from tests.support.pythons import python_without
from tests.support.sshd import Host
from tests.support.waiting import until


@pytest.fixture
def host(host: Host) -> Host:
    """Host whose login shell prints."""
    host.noise = NOISE
    return host


# ---- preparing ---------------------------------------------------------------------------------------------


async def test_agent_starts_behind_a_noisy_login_shell(host: Host, known_hosts_file: Path, tmp_path: Path) -> None:
    work = tmp_path / "project"
    work.mkdir()
    (work / "model.py").write_text("x = 1")
    transport = SSHTransport(target(host, known_hosts_file), "p.0")
    async with running(transport):
        reports, gate = Reports(), StartBarrier(1)
        await transport.prepare(config(cwd=str(work), env={"TOKEN": "very-secret"}), reports, gate)
        # One login, one command: the rest of the bundle follows once all nodes run.
        assert (host.logins, len(host.commands), len(gate.deferred)) == (1, 1, 1)
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


async def test_relay_command_is_used_without_socket_forwarding(host: Host, known_hosts_file: Path) -> None:
    host.forwards = False
    transport = SSHTransport(target(host, known_hosts_file), "p.0")
    async with running(transport):
        await transport.prepare(config(), Reports())
        assert (await greet(transport))["pool"] == "p"
        assert "relay.main" in host.commands[-1]


async def test_setup_of_a_host_waits_until_all_nodes_are_synced(host: Host, known_hosts_file: Path) -> None:
    transport, gate, reports = SSHTransport(target(host, known_hosts_file), "p.0"), StartBarrier(2), Reports()
    image = {"setup": ['touch "$HOME/was-set-up"']}
    async with running(transport):
        first = asyncio.create_task(transport.prepare(config(image=image), reports, gate))
        await until(lambda: gate.missing == {1})
        assert reports.lines[-1][0] == "synced" and not (host.home / "was-set-up").exists()
        await gate.wait(1)
        await first
        assert (host.home / "was-set-up").exists()


async def test_failing_setup_command_of_a_host_is_reported_with_its_output(host: Host, known_hosts_file: Path) -> None:
    transport, reports = SSHTransport(target(host, known_hosts_file), "p.0"), Reports()
    async with running(transport):
        with pytest.raises(PoolError, match=r"(?s)exit code 3.*no such thing"):
            await transport.prepare(config(image={"setup": ["echo looking; echo no such thing; exit 3"]}), reports)
        assert "looking" in reports.of("installed")


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("forwards", [True, False])
async def test_missing_agent_is_an_os_error(host: Host, known_hosts_file: Path, forwards: bool) -> None:
    host.forwards = forwards
    transport = SSHTransport(target(host, known_hosts_file), "p.0")
    async with running(transport):
        await transport.prepare(config(), Reports())
        channel = await transport.channel()
        await channel.ask("end", folder="p.0", socket=channel.facts["socket"])
        channel.close()
        with pytest.raises(OSError, match="no agent"):
            await transport.open(lambda data: None, lambda error: None)


async def test_lost_ssh_connection_is_reported_once_and_renewed(host: Host, known_hosts_file: Path) -> None:
    transport = SSHTransport(target(host, known_hosts_file), "p.0")
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


# ---- jump hosts and the provider ---------------------------------------------------------------------------


async def test_jump_host_key_refused_in_one_session_is_asked_in_another(
    host: Host, known_hosts_file: Path, tmp_path: Path
) -> None:
    jump = Host(tmp_path / "jump")
    await jump.start()
    jump.authorized.write_text(host.authorized.read_text())
    wish = target(host, known_hosts_file, jump=f"127.0.0.1:{jump.port}", host_keys="ask")
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


async def test_jump_host_is_verified_shared_and_closed_after_last_use(
    host: Host, known_hosts_file: Path, tmp_path: Path
) -> None:
    jump = Host(tmp_path / "jump")
    await jump.start()
    jump.authorized.write_text(host.authorized.read_text())
    wish = target(host, known_hosts_file, jump=f"127.0.0.1:{jump.port}")
    with pytest.raises(PoolError, match=f"key of host 127.0.0.1:{jump.port} is not known"):
        await connect.connect(wish, patience=0)
    known_hosts_file.write_text(host.known_line() + jump.known_line())
    links = await asyncio.gather(*(connect.connect(wish) for _ in range(3)))
    assert (jump.logins, host.logins) == (1, 3)
    for link in links:
        await link.close()
    async with asyncio.timeout(90):
        while jump.connections:
            await asyncio.sleep(0.01)
    await jump.stop()


async def test_login_that_a_jump_host_rejects_is_not_repeated(
    host: Host, known_hosts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jump = Host(tmp_path / "jump")
    await jump.start()
    jump.authorized.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_public_key())
    known_hosts_file.write_text(host.known_line() + jump.known_line())
    wish = target(host, known_hosts_file, jump=f"127.0.0.1:{jump.port}")

    logins: list[Target] = []
    log_in = connect._attempt

    async def count(host: Target, *args: Any, **kwargs: Any) -> connect.HostConnection:
        logins.append(host)
        return await log_in(host, *args, **kwargs)

    async def begin(link: connect.HostConnection) -> None:
        pytest.fail("there is no login")

    monkeypatch.setattr(connect, "_attempt", count)
    await connect.open_early([wish], PreopenedSockets([]), begin)
    with pytest.raises(CredentialsRefused):
        await connect.connect(wish)
    assert [each.port for each in logins if each.host != wish.host or each.port == jump.port] == [jump.port]
    await jump.stop()


async def test_ssh_provider_creates_nothing_describes_and_ends_machines(host: Host, known_hosts_file: Path) -> None:
    ssh = SSH.from_json(provider(host, known_hosts_file).to_json())
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


async def test_more_nodes_than_ssh_hosts_is_a_usage_error(host: Host, known_hosts_file: Path) -> None:
    ssh = provider(host, known_hosts_file)
    with pytest.raises(TooFewHosts, match="2 nodes were requested, but there are only 1 hosts") as caught:
        await ssh.create(PoolSpec(name="train", provider=ssh, nodes=2), "t")
    assert isinstance(caught.value, UsageError) and isinstance(caught.value, NoCapacity)
    assert errors.error_exit_code(caught.value) == errors.USAGE


async def test_missing_spare_ssh_host_is_no_capacity(host: Host, known_hosts_file: Path) -> None:
    ssh = provider(host, known_hosts_file)
    machines = await ssh.create(PoolSpec(name="train", provider=ssh), "token")
    with pytest.raises(NoCapacity, match="list more hosts than nodes"):
        await ssh.replace("train", "token", 0, machines, machines)
    await host.stop()
    with pytest.raises(NoCapacity, match=r"no host is available for node 0: .*no SSH server listens"):
        await ssh.replace("train", "token", 0, [], machines)


async def test_attach_without_answering_nodes_raises_distinct_errors(
    host: Host, known_hosts_file: Path, tmp_path: Path
) -> None:
    """The host is unreachable, rejects the login, shows another key or is off: four distinct errors."""
    maker = Session()
    await asyncio.wrap_future(maker.create(PoolSpec(name="back", provider=provider(host, known_hosts_file))))
    await asyncio.to_thread(maker.detach)
    authorized, real = host.authorized.read_text(), known_hosts_file.read_text()

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
    known_hosts_file.write_text(f"[127.0.0.1]:{host.port} {other}")
    changed = await refused()
    assert type(changed) is HostKeyError
    assert changed.hint == Hint("trust-host-key", f"127.0.0.1:{host.port}", str(known_hosts_file))
    known_hosts_file.write_text(real)
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
async def test_ssh_provider_check_reports_what_works(host: Host, known_hosts_file: Path, tmp_path: Path) -> None:
    lines = await provider(host, known_hosts_file).check()
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


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen to lock a key with")
async def test_missing_or_encrypted_keys_of_ssh_config_are_skipped(
    host: Host, known_hosts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(folder / "locked")]
    assert await (await asyncio.create_subprocess_exec(*make)).wait() == 0
    (folder / "config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {host.port}\n  IdentityFile ~/.ssh/not-there\n"
        f"  IdentityFile ~/.ssh/locked\n  IdentityFile {host.client_key}\n  UserKnownHostsFile {known_hosts_file}\n"
    )
    link = await connect.connect(Target("box"), patience=0)
    await link.close()
    missing = Target("box", keys=(str(folder / "not-there"),))
    with pytest.raises(UsageError, match=r"Cannot use a key file .*not-there"):
        await connect.connect(missing, patience=0)


async def test_key_file_that_is_a_named_pipe_does_not_block(
    host: Host, known_hosts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    (tmp_path / ".ssh/config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {host.port}\n  IdentityFile {pipe}\n  CertificateFile {pipe}\n"
        f"  IdentityFile {host.client_key}\n  UserKnownHostsFile {known_hosts_file}\n"
    )
    link = await connect.connect(Target("box"), patience=0)
    await link.close()
    with pytest.raises(UsageError, match="Cannot use a key file of host box: it is a named pipe"):
        await connect.connect(Target("box", keys=(str(pipe),)), patience=0)


async def test_unknown_host_key_is_rejected_and_nothing_is_sent(host: Host, tmp_path: Path) -> None:
    transport = SSHTransport(target(host, tmp_path / "none"), "p.0")
    with pytest.raises(HostKeyError) as caught:
        await transport.prepare(config(), Reports())
    assert host.key.get_fingerprint() in str(caught.value)
    assert caught.value.hint == Hint("trust-host-key", f"127.0.0.1:{host.port}", str(tmp_path / "none"))
    assert f"skyward-tui trust 127.0.0.1:{host.port}" in format_error(caught.value)
    assert "skyward-tui" not in str(caught.value)
    assert host.logins == 0 and not host.commands


async def test_changed_host_key_is_rejected_under_every_policy(host: Host, known_hosts_file: Path) -> None:
    old = asyncssh.generate_private_key("ssh-ed25519")
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256"):  # another key of the type, and no key of it at all
        old = asyncssh.generate_private_key(kind)
        known_hosts_file.write_text(f"[127.0.0.1]:{host.port} {old.export_public_key().decode()}")
        before = known_hosts_file.read_text()
        for policy in ("known", "ask", "accept-new"):
            with pytest.raises(HostKeyError, match="CHANGED") as caught:
                await connection.connect(target(host, known_hosts_file, host_keys=policy))
            for part in (old.get_fingerprint(), host.key.get_fingerprint(), f"{known_hosts_file} line 1"):
                assert part in str(caught.value)
        assert known_hosts_file.read_text() == before
    assert host.logins == 0 and not host.commands


async def test_fetched_and_accepted_host_key_is_trusted_afterwards(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "own"
    shown = await connection.fetch_host_key(target(host, file))
    assert shown.fingerprint == host.key.get_fingerprint()
    known_hosts.accept_key(shown)
    link = await connection.connect(target(host, file))
    await link.close()
    assert host.logins == 1


async def test_debug_log_has_successful_and_failed_ssh_logins(
    host: Host, known_hosts_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "skyward.ssh")
    link = await connection.connect(target(host, known_hosts_file))
    assert re.search(rf"127\.0\.0\.1:{host.port}: connected and logged in, [\d.]+ s", caplog.text)
    await link.close()
    assert f"127.0.0.1:{host.port}: disconnected" in caplog.text
    with pytest.raises(HostKeyError):
        await connection.connect(target(host, tmp_path / "none"))
    assert re.search(rf"127\.0\.0\.1:{host.port}: no login after [\d.]+ s: HostKeyNotVerifiable", caplog.text)


async def test_accept_new_policy_saves_an_unknown_host_key(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "own"
    link = await connection.connect(target(host, file, host_keys="accept-new"))
    await link.close()
    assert host.key.export_public_key().split()[1] in file.read_bytes()


@pytest.mark.parametrize("answer", [True, False])
async def test_user_is_asked_about_an_unknown_host_key(host: Host, tmp_path: Path, answer: bool) -> None:
    asked: list[known_hosts.ServerKey] = []

    async def hook(shown: known_hosts.ServerKey) -> bool:
        assert host.logins == 0
        asked.append(shown)
        return answer

    questions = HostKeyPrompt()
    questions.set_handler(hook)
    file = tmp_path / "own"
    with questions.set_current():
        if answer:
            link = await connection.connect(target(host, file, host_keys="ask"))
            await link.close()
        else:
            with pytest.raises(HostKeyError, match="is not known"):
                await connection.connect(target(host, file, host_keys="ask"))
    assert [key.fingerprint for key in asked] == [host.key.get_fingerprint()]
    assert file.exists() is answer


class SilentPerson:
    """User who never answers the question about a host key."""

    def __init__(self) -> None:
        self.asked, self.withdrawn = threading.Event(), threading.Event()

    async def __call__(self, shown: known_hosts.ServerKey) -> bool:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.withdrawn.set()
        return True


async def test_pool_torn_down_during_a_host_key_question_does_not_start(host: Host, tmp_path: Path) -> None:
    person = SilentPerson()
    session = Session()
    session.on_host_key(person)
    creation = session.create(PoolSpec(name="judged", provider=provider(host, tmp_path / "none", host_keys="ask")))
    assert await asyncio.to_thread(person.asked.wait, 20)
    receipt = await asyncio.wrap_future(session.tear_down("judged"))
    assert receipt.ok and receipt.created == 1
    assert person.withdrawn.is_set()
    with pytest.raises(Cancelled, match="did not start: it was torn down"):
        await asyncio.wrap_future(creation)
    assert session.ledger.live_pools() == [] and session.view("judged").state == "gone"
    await asyncio.to_thread(session.detach)
    assert host.logins == 0


async def test_each_session_is_asked_only_about_its_own_hosts(host: Host, tmp_path: Path) -> None:
    other = Host(tmp_path / "other")
    await other.start()
    sessions = {each.port: Session() for each in (host, other)}
    silent = Session()  # which nobody answers for
    asked: dict[int, set[str]] = {port: set() for port in sessions}

    async def refuse(port: int, shown: known_hosts.ServerKey) -> bool:
        asked[port].add(shown.fingerprint)
        return False

    none = tmp_path / "none"
    creations = []
    for port, session in sessions.items():
        session.on_host_key(partial(refuse, port))
    for each in (host, other):
        spec = PoolSpec(name=f"of-{each.port}", provider=provider(each, none, host_keys="ask"))
        creations.append(sessions[each.port].create(spec))
    creations.append(silent.create(PoolSpec(name="silent", provider=provider(host, none, host_keys="ask"))))
    for creation in creations:
        with pytest.raises(HostKeyError, match="is not known"):
            await asyncio.wrap_future(creation)
    assert asked == {each.port: {each.key.get_fingerprint()} for each in (host, other)}
    for session in (*sessions.values(), silent):
        await asyncio.to_thread(session.detach)
    await other.stop()
    assert host.logins == other.logins == 0


async def test_open_host_key_questions_are_denied_when_a_session_ends(host: Host, tmp_path: Path) -> None:
    person = SilentPerson()
    questions = HostKeyPrompt()
    questions.set_handler(person)
    wish = target(host, tmp_path / "none", host_keys="ask")
    with questions.set_current():
        connecting = asyncio.create_task(connection.connect(wish))
        assert await asyncio.to_thread(person.asked.wait, 20)
        questions.close()
        with pytest.raises(HostKeyError, match="is not known"):
            await connecting
        assert person.withdrawn.is_set()
        person.asked.clear()
        with pytest.raises(HostKeyError, match="is not known"):
            await connection.connect(wish)
    assert not person.asked.is_set() and host.logins == 0


async def test_revoked_host_key_is_rejected(host: Host, known_hosts_file: Path) -> None:
    public = host.key.export_public_key().decode()
    known_hosts_file.write_text(f"[127.0.0.1]:{host.port} {public}@revoked * {public}")
    with pytest.raises(HostKeyError, match="revoked"):
        await connection.connect(target(host, known_hosts_file, host_keys="accept-new"))
    assert host.logins == 0


# What goes wrong on a host, in words: another Python, a full disk, lies, wrong keys; against asyncssh's own server.


async def test_unsuitable_python_on_a_host_is_rejected_before_sending(
    host: Host, known_hosts_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "python3.9"
    other.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.1 && exit\nexit 97\n')
    other.chmod(0o755)
    transport = SSHTransport(target(host, known_hosts_file), "p.0", python=str(other))
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(PoolError, match=rf"Python {minor} .*3\.9\.1.*Nothing was sent"):
        await transport.prepare(config(cwd=str(tmp_path)), Reports())
    await transport.close()
    assert not (host.home / ".cache/skyward").exists()


@pytest.mark.parametrize("is_chosen", [True, False])
async def test_host_python_without_asyncio_is_named(
    host: Host, known_hosts_file: Path, tmp_path: Path, is_chosen: bool
) -> None:
    program = python_without("asyncio", tmp_path / "minimal")
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    # The incomplete interpreter is the only one of the host.
    host.noise = f"PATH={program.parent}:{tmp_path}/bin"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").symlink_to("/bin/sh")
    host.rewrite = lambda command: command.replace(sys.executable, "/nowhere/python").replace(
        ":/usr/local/bin:/usr/bin:/bin", ""
    )
    transport = SSHTransport(target(host, known_hosts_file), "p.0", python=str(program) if is_chosen else None)
    message = rf"\(it has Python {minor}\.\d+.*, but without asyncio or zlib, as in Debian's python3-minimal"
    with pytest.raises(NoFittingPython, match=message):
        await transport.prepare(config(), Reports())
    await transport.close()
    assert not (host.home / ".cache/skyward").exists()


async def test_uv_installs_the_missing_python_on_a_host(host: Host, known_hosts_file: Path, tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "uv").write_text(
        f'#!/bin/sh\ncase "$2" in install) touch {tmp_path}/fetched;; find) echo {sys.executable};; esac\n'
    )
    (bin_folder / "uv").chmod(0o755)
    for tool in ("sh", "ls", "touch"):
        (bin_folder / tool).symlink_to(f"/bin/{tool}")
    # A host with uv and no Python of the right version: the client's own path is not there either.
    host.noise = f"{NOISE}; PATH={bin_folder}"
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    host.rewrite = lambda command: (
        command.replace(sys.executable, "/nowhere/python")
        .replace(":/usr/local/bin:/usr/bin:/bin", "")
        .replace(f"python{minor}", "python0")
    )
    transport = SSHTransport(target(host, known_hosts_file), "p.0")
    messages: list[str] = []
    channel = await transport.channel(messages.append)
    channel.close()
    await transport.close()
    assert (tmp_path / "fetched").exists()
    assert any("uv installs it" in line for line in messages)


async def test_output_of_a_login_shell_that_runs_no_command_is_quoted(host: Host, known_hosts_file: Path) -> None:
    host.noise = "echo This account is not available.; exit 1"
    transport = SSHTransport(target(host, known_hosts_file), "p.0", patience=0)
    with pytest.raises(PoolError, match="This account is not available"):
        await transport.prepare(config(), Reports())
    await transport.close()


# A program that says what it is told to, whatever it is asked.
LIES = """
import json, sys
def take():
    return sys.stdin.buffer.read(int(sys.stdin.buffer.read(8), 16))
sys.stdin.buffer.read(24)  # the word
take()
word = json.loads(take())["word"]
for answer in json.loads(sys.argv[1]):
    print("\\n" + word, json.dumps(answer), flush=True)
    sys.stdin.buffer.read(json.loads(take())["size"])
"""
FACTS = {
    "python": sys.executable, "version": [*sys.version_info[:3]], "home": "/root", "hostname": "h", "system": "Linux",
    "machine": "x86_64", "address": "127.0.0.1", "port": 22, "time": 1.5, "root": "/root/.cache/skyward",
    "unusable": [], "doubted": "", "gpus": [], "nvml": False, "cpus": 2, "free": 1, "bundle": True, "rest": True,
    "socket": "/s", "shared": False, "running": False,
}  # fmt: skip
WANTS = {"folder": "/srv/a", "wanted": [], "doubtful": [], "current": True}


def answer_falsely(host: Host, *answers: object) -> None:
    answer = json.dumps([FACTS, *answers, {}])
    command = shlex.join([sys.executable, "-c", LIES, answer])
    host.rewrite = lambda asked: f"exec {command}"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"folder": 7}, "Invalid response from host .*'folder'.*7"),
        ({"folder": "here"}, "Invalid response from host .*'folder'.*'here'"),
        ({"wanted": "all"}, "Invalid response from host .*'wanted'.*'all'"),
        ({"wanted": [-1]}, r"Invalid response from host .*'wanted'.*\[-1\]"),
        ({"wanted": [2]}, "requests file 2 of a working folder with 2 files"),
        ({"doubtful": [[9, "ab"]]}, "requests file 9 of a working folder with 2 files"),
        ({"doubtful": [[0, "ab"]]}, "requests the target of the link key, which is not allowed"),
        ({"doubtful": [[0]]}, "Invalid response from host .*'doubtful'.*"),
    ],
)
async def test_host_with_invalid_or_forged_requests_gets_no_files(
    host: Host, known_hosts_file: Path, tmp_path: Path, answer: dict[str, Any], message: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "outside").write_text("for no host")
    (project / "key").symlink_to("../outside")
    (project / "train.py").write_text("print(1)")
    answer_falsely(host, WANTS | {"current": False} | answer)
    transport = SSHTransport(target(host, known_hosts_file), "p.0", patience=0)
    with pytest.raises(PoolError, match=message):
        await transport.prepare(config(cwd=str(project)), Reports())
    await transport.close()


async def test_interpreter_reported_by_a_host_must_be_a_path(host: Host, known_hosts_file: Path) -> None:
    answer_falsely(host, {"python": ["rm"]})
    transport = SSHTransport(target(host, known_hosts_file), "p.0", patience=0)
    with pytest.raises(PoolError, match=r"Invalid response from host .*'python'.*\['rm'\]"):
        await transport.prepare(config(image={"pip": ["numpy"]}), Reports())
    await transport.close()


async def test_host_may_change_only_the_interpreter_of_the_agent_config(host: Host, known_hosts_file: Path) -> None:
    answer_falsely(host, {"python": "/env/bin/python", "installed": {}, "idle_timeout": 1e9})
    transport = SSHTransport(target(host, known_hosts_file), "p.0", patience=0)
    with pytest.raises(PoolError, match=r"closed the connection|lost the connection"):
        await transport.prepare(config(image={"pip": ["numpy"]}), Reports())
    data = json.loads(host.received[host.received.rindex(b'{"pool"') :])
    assert (data["python"], data["idle_timeout"]) == ("/env/bin/python", 30.0)
    await transport.close()


async def test_host_without_a_writable_folder_is_reported_with_reasons(
    host: Host, known_hosts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyward_core.transport.ssh import host_command_channel

    parts = dict(marshal.loads(host_command_channel._bootstrap_code()))
    source = Path(host_inspection.__file__).read_text().replace("ROOTS = (", 'ROOTS = ("/proc/none",) or (')
    parts[host_inspection.__name__] = compile(source, "host", "exec")
    monkeypatch.setattr(host_command_channel, "_bootstrap_code", lambda: marshal.dumps([*parts.items()]))
    transport = SSHTransport(target(host, known_hosts_file), "p.0", patience=0)
    with pytest.raises(PoolError, match=r"no writable folder .*\(/proc/none"):
        await transport.prepare(config(), Reports())
    await transport.close()


async def test_rejected_ssh_key_error_names_user_and_fix(host: Host, known_hosts_file: Path, tmp_path: Path) -> None:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "wrong")
    wish = Target(
        "127.0.0.1",
        port=host.port,
        user="me",
        keys=(str(tmp_path / "wrong"),),
        known_hosts=str(known_hosts_file),
        config=False,
    )
    with pytest.raises(
        CredentialsRefused, match=r"rejects all keys offered for user 'me'.*ssh-copy-id.*--set keys=PATH"
    ):
        await connection.connect(wish)


async def test_refused_ssh_connection_is_retried_until_patience_ends(host: Host, known_hosts_file: Path) -> None:
    await host.stop()
    waits: list[str] = []
    with pytest.raises(Unreachable, match="no SSH server listens on port"):
        await connection.connect(
            target(host, known_hosts_file), patience=0.8, waiting=lambda why, at: waits.append(why)
        )
    assert waits and set(waits) == {"connection refused"}
    asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(host.start()))
    link = await connection.connect(target(host, known_hosts_file), patience=20)
    await link.close()


async def test_host_name_that_cannot_be_resolved_fails_at_once(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "skyward.toml").write_text('[hosts]\nno-such-hosts = ["a"]\nothers = ["b"]\n')
    with pytest.raises(Unreachable, match=r"cannot be resolved .* Did you mean the host group 'no-such-hosts'\?$"):
        await connection.connect(Target("no-such-host.invalid", config=False), patience=0)
