"""What goes wrong on a host, in words: another Python, a full disk, lies, wrong keys; against asyncssh's own server."""

from __future__ import annotations

import asyncio
import json
import marshal
import shlex
import sys
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from skyward_core.model.errors import (
    CredentialsRefused,
    PoolError,
    Unreachable,
)
from skyward_core.node.bootstrap import host_inspection
from skyward_core.transport.ssh import connection
from skyward_core.transport.ssh.bootstrap_channel import HostCommandFailed
from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.ssh_transport import SSHTransport
from tests.support.one_host import NOISE, Reports, config, running, target
from tests.support.sshd import Host


@pytest.fixture
def host(host: Host) -> Host:
    """One whose login shell prints."""
    host.noise = NOISE
    return host


async def test_another_python_is_named_before_anything_is_sent(host: Host, known: Path, tmp_path: Path) -> None:
    other = tmp_path / "python3.9"
    other.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.1 && exit\nexit 97\n')
    other.chmod(0o755)
    transport = SSHTransport(target(host, known), "p.0", python=str(other))
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    with pytest.raises(PoolError, match=rf"no Python {minor} .*3\.9\.1.*Nothing was sent"):
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
    assert any("uv fetches it" in line for line in said)


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
        ({"folder": 7}, "answers nonsense: its 'folder' cannot be 7"),
        ({"folder": "here"}, "answers nonsense: its 'folder' cannot be 'here'"),
        ({"wanted": "all"}, "answers nonsense: its 'wanted' cannot be 'all'"),
        ({"wanted": [-1]}, r"answers nonsense: its 'wanted' cannot be \[-1\]"),
        ({"wanted": [2]}, "asks for file 2 of 2 that the working folder has"),
        ({"doubtful": [[9, "ab"]]}, "asks for file 9 of 2 that the working folder has"),
        ({"doubtful": [[0, "ab"]]}, "asks what the link key leads to, which no host is told"),
        ({"doubtful": [[0]]}, "answers nonsense: its 'doubtful' cannot be"),
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
    with pytest.raises(PoolError, match=r"answers nonsense: its 'python' cannot be \['rm'\]"):
        await transport.prepare(config(image={"pip": ["numpy"]}), Reports())
    await transport.close()


async def test_a_host_names_the_interpreter_and_nothing_else_of_the_config(host: Host, known: Path) -> None:
    lies(host, {"python": "/env/bin/python", "installed": {}, "idle_timeout": 1e9})
    transport = SSHTransport(target(host, known), "p.0", patience=0)
    with pytest.raises(PoolError, match=r"ended the command|lost the connection"):
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
    with pytest.raises(PoolError, match=r"no folder .*\(/proc/none"):
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
    with pytest.raises(CredentialsRefused, match=r"accepts none of the keys offered for user 'me'.*ssh-copy-id"):
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
