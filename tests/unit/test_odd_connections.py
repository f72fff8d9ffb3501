"""Whatever a connection to one host raises, at whichever await: a verdict about that host, and the others go on.

The faults are injected at asyncssh's boundary; behind it stand hosts that answer at once.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import queue
import shlex
import socket
import ssl
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from cryptography.exceptions import InternalError, UnsupportedAlgorithm

from skyward_core.model.errors import SkywardError
from skyward_core.model.specs import Nodes, PoolSpec
from skyward_core.providers import agent_status_and_termination
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.ssh import connection, effective_ssh_config
from skyward_core.transport.ssh.connection import ANSWER_TIMEOUT
from skyward_core.transport.ssh.effective_ssh_config import PreopenedSockets, Route
from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.ssh_transport import SSHTransport

BAD, HOSTS = "gpu1", ["gpu0", "gpu1", "gpu2"]
RAISED = [
    ValueError("PKCS#11 support not available"), UnicodeError("label empty or too long"),
    UnicodeEncodeError("idna", "x" * 70, 0, 70, "label too long"), asyncssh.KeyImportError("Invalid private key"),
    asyncssh.KeyEncryptionError("Unknown cipher"), asyncssh.ConfigParseError("Invalid port"), binascii.Error("padding"),
    asyncssh.ConnectionLost("gone"), asyncssh.ProtocolError("odd packet"), asyncssh.PermissionDenied("no key"),
    asyncssh.KeyExchangeFailed("no cipher"), asyncssh.HostKeyNotVerifiable("odd certificate"),
    asyncssh.ChannelOpenError(1, "prohibited"), asyncssh.SFTPFailure("no"), ConnectionResetError(104, "reset"),
    socket.gaierror(-2, "not known"), TimeoutError(),
    PermissionError(13, "denied", "~/.ssh/id"), ssl.SSLError(1, "odd"),
    EOFError(), asyncio.IncompleteReadError(b"", 8), asyncio.InvalidStateError("odd"), struct.error("short"),
    zlib.error("odd data"),
    RecursionError("too deep"), MemoryError(), NotImplementedError("no agent"), TypeError("odd"),
    KeyError("Host"), IndexError("range"), AttributeError("no such option"), AssertionError(), OverflowError("port"),
    ZeroDivisionError("division by zero"), ImportError("No module named 'fido2'"), RuntimeError("no home"),
    UnsupportedAlgorithm("dsa"), InternalError("openssl", []), queue.Empty(), OSError("odd"),
]  # fmt: skip
SOME = RAISED[::6]
AWAITS = [
    "resolve", "connect", "create_session", "create_session, the second", "wait_closed",
]  # fmt: skip
FACTS = {
    "python": sys.executable, "version": [*sys.version_info[:3]], "home": "/root", "hostname": "h", "system": "Linux",
    "machine": "x86_64", "address": "127.0.0.1", "port": 22, "time": 1.5, "root": "/root/.cache/skyward",
    "unusable": [], "doubted": "", "gpus": [], "nvml": False, "cpus": 2, "free": 3 << 30, "bundle": True, "rest": True,
    "socket": "/s", "shared": False, "running": False,
}  # fmt: skip


class Fault:
    """What is raised for the bad host, and where."""

    def __init__(self, where: str, error: Exception) -> None:
        self.where, self.error, self.raised = where, error, 0

    def check(self, host: str, where: str) -> None:
        if host == BAD and where == self.where:
            self.raised += 1
            raise self.error


class Channel:
    """The client's end of a command that answers what it is asked."""

    def __init__(self, session: Any, command: str) -> None:
        self.session, self.word = session, ""
        self.words = shlex.split(command)
        session.connection_made(self)
        if "skyward-agent" not in command:  # it asks for Pythons
            self.tell(f"\n{self.words[5]} Python 3.12.1;\n")

    def write(self, data: bytes) -> None:
        if data[8:9] == b"{":
            asked = json.loads(data[8:])
            self.word = asked.get("word") or self.word
            self.tell(f"\n{self.word} {json.dumps(FACTS if 'word' in asked else {'gpus': []})}\n")

    def tell(self, text: str) -> None:
        asyncio.get_running_loop().call_soon(self.session.data_received, text.encode(), None)

    def close(self) -> None:
        pass


class Connection:
    def __init__(self, host: str, fault: Fault) -> None:
        self.host, self.fault, self.sessions = host, fault, 0

    async def create_session(self, factory: Any, command: str, **_: Any) -> tuple[Channel, Any]:
        self.sessions += 1
        self.fault.check(self.host, "create_session" if self.sessions == 1 else "create_session, the second")
        session = factory()
        return Channel(session, command), session

    async def wait_closed(self) -> None:
        self.fault.check(self.host, "wait_closed")

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None


@pytest.fixture
def fault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fault]:
    fault = Fault(*request.param)
    resolve = effective_ssh_config.resolve

    async def resolved(target: Target) -> Route:
        fault.check(target.host, "resolve")
        return await resolve(target)

    async def connect(host: str, **more: Any) -> Connection:
        fault.check(host, "connect")
        return Connection(host, fault)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYWARD_HOME", str(tmp_path / "sky"))
        patch.setattr(connection, "resolve", resolved)
        patch.setattr(asyncssh, "connect", connect)
        patch.setattr(asyncssh, "get_server_host_key", connect)
        patch.setattr(connection, "FIRST_PAUSE", 0.001)
        patch.setattr(agent_status_and_termination, "CHECK_TIMEOUT", 0.0)
        patch.setattr("skyward_core.providers.ssh.provider.CHECK_TIMEOUT", 0.0)
        yield fault


def _id(value: Any) -> str:
    return f"{value[0]} {type(value[1]).__name__}"


@pytest.mark.parametrize("fault", [(at, each) for each in RAISED for at in AWAITS], indirect=True, ids=_id)
async def test_one_odd_host_does_not_stop_the_others(fault: Fault) -> None:
    ssh = SSH(HOSTS, config=False)
    checks = await ssh.check()
    assert {line.subject for line in checks} == {*HOSTS}
    failed = {line.subject for line in checks if line.state == "fail"}
    machines = await ssh.create(PoolSpec(name="p", provider=ssh, nodes=Nodes(min=1, max=3)), "token")
    taken = [machine.address for machine in machines]
    looks = [await ssh.look_at(host) for host in HOSTS]
    assert fault.raised
    is_lost = fault.where != "wait_closed"  # else all that was asked has been answered
    assert failed <= {BAD} and (failed == {BAD}) is is_lost
    only_checks = fault.where == AWAITS[3]
    assert taken == (HOSTS if only_checks or not is_lost else ["gpu0", "gpu2"])
    assert [look.reached for look in looks] == [True, only_checks or not is_lost, True]
    if is_lost:
        (line,) = [line for line in checks if line.subject == BAD and line.state == "fail"]
        assert BAD in line.detail or "config" in line.detail or "key" in line.detail
        assert len(line.detail) > 20


@pytest.mark.parametrize("fault", [("connect", each) for each in SOME], indirect=True, ids=_id)
async def test_an_odd_jump_host_is_a_verdict_about_those_behind_it(fault: Fault) -> None:
    behind = SSH(["gpu7", "gpu8"], config=False, jump=BAD)
    checks = await behind.check()
    assert [(line.subject, line.state) for line in checks] == [("gpu7", "fail"), ("gpu8", "fail")]
    assert fault.raised


@pytest.mark.parametrize("fault", [("create_unix_connection", each) for each in SOME], indirect=True, ids=_id)
async def test_an_agent_out_of_reach_is_a_connection_error(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    async def create_unix_connection(self: Connection, *_: Any, **more: Any) -> None:
        fault.check(self.host, "create_unix_connection")

    async def forward_local_port(self: Connection, *_: Any) -> None:
        fault.check(self.host, "create_unix_connection")

    monkeypatch.setattr(Connection, "create_unix_connection", create_unix_connection, raising=False)
    monkeypatch.setattr(Connection, "forward_local_port", forward_local_port, raising=False)
    transport = SSHTransport(SSH([BAD], config=False).target(BAD), "p.0", patience=0)
    if not isinstance(fault.error, asyncssh.ChannelOpenError):  # then another way there is tried
        with pytest.raises((OSError, SkywardError)) as refused:
            await transport.open(lambda data: None, lambda error: None)
        assert isinstance(refused.value, OSError)
    with pytest.raises(OSError):
        await transport.forward_port("10.0.0.1", 80)
    await transport.close()


@pytest.mark.parametrize("fault", [(at, each) for each in SOME for at in AWAITS[:2]], indirect=True, ids=_id)
async def test_a_key_that_cannot_be_fetched_is_a_verdict(fault: Fault) -> None:
    with pytest.raises(SkywardError):
        await connection.fetch_host_key(Target(BAD, config=False))


@pytest.mark.parametrize("fault", [(at, each) for each in SOME for at in AWAITS[:2]], indirect=True, ids=_id)
async def test_a_login_that_was_begun_early_is_tried_again_by_who_needs_it(fault: Fault) -> None:
    async def begin(link: connection.HostConnection) -> None:
        pytest.fail("there is no login")

    target = Target(BAD, config=False)
    await connection.open_early([target], PreopenedSockets([]), begin)
    with pytest.raises(SkywardError):
        await connection.connect(target, patience=0)
    assert fault.raised == 2
    await connection.close_early([target])


@pytest.mark.parametrize("fault", [("", OSError())], indirect=True)
async def test_a_server_that_opens_no_channel_is_not_waited_for_without_end(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(*_: Any, **more: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setenv(ANSWER_TIMEOUT, "2")
    ways = [SSHTransport(SSH([host], config=False).target(host), "p.0", patience=0) for host in HOSTS[:2]]
    channel = await ways[0].channel()
    ways[0]._facts = channel.facts
    monkeypatch.setattr(Connection, "create_unix_connection", hangs, raising=False)
    monkeypatch.setattr(Connection, "create_session", hangs)
    ended = await asyncio.gather(
        ways[0].open(lambda data: None, lambda error: None), ways[1].channel(), return_exceptions=True
    )
    assert [str(each).split(" while")[0] for each in ended] == [
        f"Host {host} sent nothing for 2 s" for host in HOSTS[:2]
    ]
