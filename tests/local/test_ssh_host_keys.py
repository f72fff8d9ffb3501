"""Keys of hosts: known, unknown, changed, revoked, judged by a person; against asyncssh's own server on loopback."""

from __future__ import annotations

import asyncio
import re
import threading
from functools import partial
from pathlib import Path

import asyncssh
import pytest

from skyward_core.client.session import Session
from skyward_core.model.errors import (
    Cancelled,
    Hint,
    HostKeyError,
)
from skyward_core.model.specs import PoolSpec
from skyward_core.transport.ssh import connection, known_hosts
from skyward_core.transport.ssh.host_key_prompt import HostKeyPrompt
from skyward_core.transport.ssh.ssh_transport import SSHTransport
from skyward_tui.text.error_hints import format_error
from tests.support.one_host import NOISE, Reports, config, provider, target
from tests.support.sshd import Host


@pytest.fixture
def host(host: Host) -> Host:
    """One whose login shell prints."""
    host.noise = NOISE
    return host


async def test_an_unknown_key_is_refused_and_nothing_is_sent(host: Host, tmp_path: Path) -> None:
    transport = SSHTransport(target(host, tmp_path / "none"), "p.0")
    with pytest.raises(HostKeyError) as caught:
        await transport.prepare(config(), Reports())
    assert host.key.get_fingerprint() in str(caught.value)
    assert caught.value.hint == Hint("trust-host-key", f"127.0.0.1:{host.port}", str(tmp_path / "none"))
    assert f"skyward-tui trust 127.0.0.1:{host.port}" in format_error(caught.value)
    assert "skyward-tui" not in str(caught.value)
    assert host.logins == 0 and not host.commands


async def test_a_changed_key_stops_everything_under_every_policy(host: Host, known: Path) -> None:
    old = asyncssh.generate_private_key("ssh-ed25519")
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256"):  # another key of the type, and no key of it at all
        old = asyncssh.generate_private_key(kind)
        known.write_text(f"[127.0.0.1]:{host.port} {old.export_public_key().decode()}")
        before = known.read_text()
        for policy in ("known", "ask", "accept-new"):
            with pytest.raises(HostKeyError, match="CHANGED") as caught:
                await connection.connect(target(host, known, host_keys=policy))
            for part in (old.get_fingerprint(), host.key.get_fingerprint(), f"{known} line 1"):
                assert part in str(caught.value)
        assert known.read_text() == before
    assert host.logins == 0 and not host.commands


async def test_a_fetched_and_accepted_key_is_known_from_then_on(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "own"
    shown = await connection.fetch_host_key(target(host, file))
    assert shown.fingerprint == host.key.get_fingerprint()
    known_hosts.accept_key(shown)
    link = await connection.connect(target(host, file))
    await link.close()
    assert host.logins == 1


async def test_the_log_tells_of_logins_and_of_those_that_failed(
    host: Host, known: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "skyward.ssh")
    link = await connection.connect(target(host, known))
    assert re.search(rf"127\.0\.0\.1:{host.port}: connected and logged in, [\d.]+ s", caplog.text)
    await link.close()
    assert f"127.0.0.1:{host.port}: disconnected" in caplog.text
    with pytest.raises(HostKeyError):
        await connection.connect(target(host, tmp_path / "none"))
    assert re.search(rf"127\.0\.0\.1:{host.port}: no login after [\d.]+ s: HostKeyNotVerifiable", caplog.text)


async def test_new_keys_are_written_down_when_asked_for(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "own"
    link = await connection.connect(target(host, file, host_keys="accept-new"))
    await link.close()
    assert host.key.export_public_key().split()[1] in file.read_bytes()


@pytest.mark.parametrize("answer", [True, False])
async def test_the_person_is_asked(host: Host, tmp_path: Path, answer: bool) -> None:
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


async def test_a_pool_torn_down_while_a_key_is_judged_never_comes_up(host: Host, tmp_path: Path) -> None:
    asked, withdrawn = threading.Event(), threading.Event()

    async def hook(shown: known_hosts.ServerKey) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return True

    session = Session()
    session.on_host_key(hook)
    creation = session.create(PoolSpec(name="judged", provider=provider(host, tmp_path / "none", host_keys="ask")))
    assert await asyncio.to_thread(asked.wait, 20)
    receipt = await asyncio.wrap_future(session.tear_down("judged"))
    assert receipt.ok and receipt.created == 1
    assert withdrawn.is_set()
    with pytest.raises(Cancelled, match="torn down while it was starting"):
        await asyncio.wrap_future(creation)
    assert session.ledger.live_pools() == [] and session.view("judged").state == "gone"
    await asyncio.to_thread(session.detach)
    assert host.logins == 0


async def test_each_session_is_asked_about_its_own_hosts(host: Host, tmp_path: Path) -> None:
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


async def test_the_questions_of_a_session_that_ends_are_answered_no(host: Host, tmp_path: Path) -> None:
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def hook(shown: known_hosts.ServerKey) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return True

    questions = HostKeyPrompt()
    questions.set_handler(hook)
    wish = target(host, tmp_path / "none", host_keys="ask")
    with questions.set_current():
        connecting = asyncio.create_task(connection.connect(wish))
        await asked.wait()
        questions.close()
        with pytest.raises(HostKeyError, match="is not known"):
            await connecting
        assert withdrawn.is_set()
        asked.clear()
        with pytest.raises(HostKeyError, match="is not known"):
            await connection.connect(wish)
    assert not asked.is_set() and host.logins == 0


async def test_a_session_that_ends_withdraws_its_questions(host: Host, tmp_path: Path) -> None:
    asked, withdrawn = threading.Event(), threading.Event()

    async def hook(shown: known_hosts.ServerKey) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()
        return True

    session = Session()
    session.on_host_key(hook)
    creation = session.create(PoolSpec(name="judged", provider=provider(host, tmp_path / "none", host_keys="ask")))
    assert await asyncio.to_thread(asked.wait, 20)
    await asyncio.to_thread(session.detach)
    assert withdrawn.is_set()
    with pytest.raises(Cancelled, match="left while it was starting"):
        await asyncio.wrap_future(creation)
    assert host.logins == 0


async def test_a_revoked_key_is_refused(host: Host, known: Path) -> None:
    public = host.key.export_public_key().decode()
    known.write_text(f"[127.0.0.1]:{host.port} {public}@revoked * {public}")
    with pytest.raises(HostKeyError, match="revoked"):
        await connection.connect(target(host, known, host_keys="accept-new"))
    assert host.logins == 0
