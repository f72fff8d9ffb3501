"""Keys of hosts, judged by a person or by files, and errors of hosts in words; against asyncssh's own server."""

from __future__ import annotations

import asyncio
import json
import marshal
import re
import shlex
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from skyward_core.client.session import Session
from skyward_core.model.errors import (
    Cancelled,
    CredentialsRefused,
    Hint,
    HostKeyError,
    PoolError,
    Unreachable,
)
from skyward_core.model.specs import PoolSpec
from skyward_core.node.bootstrap import host_inspection
from skyward_core.transport.ssh import connection, known_hosts
from skyward_core.transport.ssh.bootstrap_channel import HostCommandFailed
from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.host_key_prompt import HostKeyPrompt
from skyward_core.transport.ssh.ssh_transport import SSHTransport
from skyward_tui.text.error_hints import format_error
from tests.support.one_host import NOISE, Reports, config, provider, running, target
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


class SilentPerson:
    """A person who is asked about a key and never answers."""

    def __init__(self) -> None:
        self.asked, self.withdrawn = threading.Event(), threading.Event()

    async def __call__(self, shown: known_hosts.ServerKey) -> bool:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.withdrawn.set()
        return True


async def test_a_pool_torn_down_while_a_key_is_judged_never_comes_up(host: Host, tmp_path: Path) -> None:
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


async def test_a_session_that_ends_withdraws_its_questions(host: Host, tmp_path: Path) -> None:
    person = SilentPerson()
    session = Session()
    session.on_host_key(person)
    creation = session.create(PoolSpec(name="judged", provider=provider(host, tmp_path / "none", host_keys="ask")))
    assert await asyncio.to_thread(person.asked.wait, 20)
    await asyncio.to_thread(session.detach)
    assert person.withdrawn.is_set()
    with pytest.raises(Cancelled, match="did not start: this client detached"):
        await asyncio.wrap_future(creation)
    assert host.logins == 0


async def test_a_revoked_key_is_refused(host: Host, known: Path) -> None:
    public = host.key.export_public_key().decode()
    known.write_text(f"[127.0.0.1]:{host.port} {public}@revoked * {public}")
    with pytest.raises(HostKeyError, match="revoked"):
        await connection.connect(target(host, known, host_keys="accept-new"))
    assert host.logins == 0


# What goes wrong on a host, in words: another Python, a full disk, lies, wrong keys; against asyncssh's own server.


async def test_another_python_is_named_before_anything_is_sent(host: Host, known: Path, tmp_path: Path) -> None:
    other = tmp_path / "python3.9"
    other.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.1 && exit\nexit 97\n')
    other.chmod(0o755)
    transport = SSHTransport(target(host, known), "p.0", python=str(other))
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(PoolError, match=rf"Python {minor} .*3\.9\.1.*Nothing was sent"):
        await transport.prepare(config(cwd=str(tmp_path)), Reports())
    await transport.close()
    assert not (host.home / ".cache/skyward").exists()


async def test_uv_brings_python_where_there_is_uv(host: Host, known: Path, tmp_path: Path) -> None:
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
    transport = SSHTransport(target(host, known), "p.0")
    said: list[str] = []
    channel = await transport.channel(said.append)
    channel.close()
    await transport.close()
    assert (tmp_path / "fetched").exists()
    assert any("uv installs it" in line for line in said)


async def test_a_shell_that_runs_no_command_is_quoted(host: Host, known: Path) -> None:
    host.noise = "echo This account is not available.; exit 1"
    transport = SSHTransport(target(host, known), "p.0", patience=0)
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


def lies(host: Host, *answers: object) -> None:
    told = json.dumps([FACTS, *answers, {}])
    command = shlex.join([sys.executable, "-c", LIES, told])
    host.rewrite = lambda asked: f"exec {command}"


@pytest.mark.parametrize(
    ("answer", "said"),
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
async def test_a_host_gets_nothing_for_wishes_that_make_no_sense(
    host: Host, known: Path, tmp_path: Path, answer: dict[str, Any], said: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "outside").write_text("for no host")
    (project / "key").symlink_to("../outside")
    (project / "train.py").write_text("print(1)")
    lies(host, WANTS | {"current": False} | answer)
    transport = SSHTransport(target(host, known), "p.0", patience=0)
    with pytest.raises(PoolError, match=said):
        await transport.prepare(config(cwd=str(project)), Reports())
    await transport.close()


async def test_an_interpreter_is_a_path(host: Host, known: Path) -> None:
    lies(host, {"python": ["rm"]})
    transport = SSHTransport(target(host, known), "p.0", patience=0)
    with pytest.raises(PoolError, match=r"Invalid response from host .*'python'.*\['rm'\]"):
        await transport.prepare(config(image={"pip": ["numpy"]}), Reports())
    await transport.close()


async def test_a_host_names_the_interpreter_and_nothing_else_of_the_config(host: Host, known: Path) -> None:
    lies(host, {"python": "/env/bin/python", "installed": {}, "idle_timeout": 1e9})
    transport = SSHTransport(target(host, known), "p.0", patience=0)
    with pytest.raises(PoolError, match=r"closed the connection|lost the connection"):
        await transport.prepare(config(image={"pip": ["numpy"]}), Reports())
    told = json.loads(host.received[host.received.rindex(b'{"pool"') :])
    assert (told["python"], told["idle_timeout"]) == ("/env/bin/python", 30.0)
    await transport.close()


async def test_nowhere_to_write_is_told_with_reasons(
    host: Host, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyward_core.transport.ssh import bootstrap_channel

    parts = dict(marshal.loads(bootstrap_channel._bootstrap_code()))
    source = Path(host_inspection.__file__).read_text().replace("ROOTS = (", 'ROOTS = ("/proc/none",) or (')
    parts[host_inspection.__name__] = compile(source, "host", "exec")
    monkeypatch.setattr(bootstrap_channel, "_bootstrap_code", lambda: marshal.dumps([*parts.items()]))
    transport = SSHTransport(target(host, known), "p.0", patience=0)
    with pytest.raises(PoolError, match=r"no writable folder .*\(/proc/none"):
        await transport.prepare(config(), Reports())
    await transport.close()


async def test_a_failing_setup_command_fails_with_its_last_words(host: Host, known: Path) -> None:
    transport = SSHTransport(target(host, known), "p.0")
    reports = Reports()
    async with running(transport):
        with pytest.raises(HostCommandFailed, match=r"(?s)exit code 3.*no such thing"):
            await transport.prepare(config(image={"setup": ["echo looking; echo no such thing; exit 3"]}), reports)
        assert "looking" in reports.of("installed")


async def test_setup_runs_once_per_content_with_its_variables(host: Host, known: Path) -> None:
    image = {"setup": ['echo "$WHO" >> "$HOME/setup.txt"']}
    for folder in ("one.0", "two.0"):
        transport = SSHTransport(target(host, known), folder)
        async with running(transport):
            await transport.prepare(config(image=image, env={"WHO": "me"}), Reports())
    assert (host.home / "setup.txt").read_text() == "me\n"


async def test_a_wrong_key_names_user_and_remedy(host: Host, known: Path, tmp_path: Path) -> None:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "wrong")
    wish = Target(
        "127.0.0.1",
        port=host.port,
        user="me",
        keys=(str(tmp_path / "wrong"),),
        known_hosts=str(known),
        config=False,
    )
    with pytest.raises(CredentialsRefused, match=r"rejects all keys offered for user 'me'.*ssh-copy-id"):
        await connection.connect(wish)


async def test_refusals_are_tried_again_until_patience_ends(host: Host, known: Path) -> None:
    await host.stop()
    waits: list[str] = []
    with pytest.raises(Unreachable, match="no SSH server listens on port"):
        await connection.connect(target(host, known), patience=0.8, waiting=lambda why, at: waits.append(why))
    assert waits and set(waits) == {"connection refused"}
    asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(host.start()))
    link = await connection.connect(target(host, known), patience=20)
    await link.close()


async def test_a_name_that_does_not_resolve_fails_at_once() -> None:
    with pytest.raises(Unreachable, match="cannot be resolved"):
        await connection.connect(Target("no-such-host.invalid", config=False), patience=0)
