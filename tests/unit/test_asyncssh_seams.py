"""What we put in the place of asyncssh's own: tests that fail as soon as that place is gone, or nobody asks it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asyncssh.constants import MSG_IGNORE
from packaging.requirements import Requirement

from skyward_core.transport.ssh import connection as connect
from skyward_core.transport.ssh.asyncssh_import import asyncssh


def test_it_is_pinned_below_the_next_major_version() -> None:
    import importlib.metadata

    required = [Requirement(line) for line in importlib.metadata.requires("skyward-tui") or ()]
    (asked,) = [one.specifier for one in required if one.name == "asyncssh"]
    major = int(asyncssh.__version__.partition(".")[0])
    assert asyncssh.__version__ in asked and f"{major + 1}.0" not in asked


async def test_an_option_that_it_does_not_know_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    config.write_text("Host box\n  RevokedHostKeys ~/bad\n")
    route = await connect.resolve(connect.Target("box"))  # type: ignore[attr-defined]
    assert route.revoked == (tmp_path / "bad",)


@pytest.mark.parametrize(("before", "level"), [("", "WARNING"), ("INFO", "INFO")])
def test_a_script_that_sets_up_logging_is_not_told_each_command(before: str, level: str) -> None:
    script = (
        "import logging\nlogging.basicConfig(level=logging.INFO)\nlogger = logging.getLogger('asyncssh')\n"
        f"logger.setLevel({before!r} or logging.NOTSET)\n"
        "import skyward_core.transport.ssh.asyncssh_import\n"
        "print(logging.getLevelName(logging.getLogger('asyncssh.sftp').getEffectiveLevel()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == level


def test_it_comes_without_what_takes_long_and_leaves_no_trace_of_that() -> None:
    script = (
        "import ctypes.util, sys; search = ctypes.util.find_library\n"
        "asked = []; ctypes.util.find_library = lambda name: asked.append(name)\n"
        "ours = ctypes.util.find_library\n"
        "from skyward_core.transport.ssh.asyncssh_import import asyncssh\n"
        "print(asked, 'asyncssh.crypto.x509' in sys.modules, ctypes.util.find_library is ours)\n"
        "print(asyncssh.crypto.X509Name if hasattr(asyncssh.crypto, 'X509Name') else None)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "[] False True"
    assert second == "None"


class Connection:
    """What :func:`_disable_ignore_packets` asks of a connection."""

    def __init__(self, cipher: str) -> None:
        self.cipher = cipher
        self.sent: list[int] = []

    def get_extra_info(self, name: str) -> str:
        return {"send_cipher": self.cipher}[name]

    def send_packet(self, pkttype: int, *args: bytes, handler: Any = None) -> None:
        self.sent.append(pkttype)


@pytest.mark.parametrize(("cipher", "sent"), [(next(iter(connect.AEAD)), [94]), ("aes128-cbc", [MSG_IGNORE, 94])])
def test_fillers_are_left_out_where_the_cipher_needs_none(cipher: str, sent: list[int]) -> None:
    connection: Any = Connection(cipher)
    connect._disable_ignore_packets(connection)
    for kind in (MSG_IGNORE, 94):
        connection.send_packet(kind, b"")
    assert connection.sent == sent


async def test_it_still_sends_fillers_by_the_method_that_is_replaced() -> None:
    """Against a server of its own: without ours a filler goes ahead of data, with ours none does."""
    key = asyncssh.generate_private_key("ssh-ed25519")

    async def echo(process: Any) -> None:
        process.stdout.write(await process.stdin.readline())
        process.exit(0)

    class Open(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            return False

    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key], server_factory=Open, process_factory=echo)
    async with server:
        fillers = {}
        for ours in (False, True):
            async with asyncssh.connect(
                "127.0.0.1", server.get_port(), known_hosts=None, username="u", config=None, client_keys=None
            ) as ssh:
                counted: list[int] = []
                if ours:
                    connect._disable_ignore_packets(ssh)
                _count(ssh, counted)
                async with asyncio.timeout(30):
                    await ssh.run("x", input="hello\n")
                fillers[ours] = counted.count(MSG_IGNORE)
    assert fillers[False], "asyncssh sends none any more: ours can go"
    assert not fillers[True]


async def test_a_cipher_is_made_once_for_all_packets_of_a_connection() -> None:
    from asyncssh.crypto import cipher

    made = vars(cipher)["AESGCM"]
    key, iv = b"k" * 16, b"i" * 12
    begun, ours = made.cache_info().misses, cipher.GCMCipher("aes128-gcm", key, iv)
    theirs = cipher.GCMCipher("aes128-gcm", key, iv)
    for text in (b"one", b"other"):
        sealed, mac = ours.encrypt_and_sign(b"head", text)
        assert theirs.verify_and_decrypt(b"head", sealed[4:], mac) == text
    assert made.cache_info().misses == begun + 1, "it makes its ciphers otherwise by now: look for the place"
    sealed, mac = ours.encrypt_and_sign(b"head", b"third")
    assert theirs.verify_and_decrypt(b"head", sealed[4:], bytes(16)) is None


def _count(ssh: Any, counted: list[int]) -> None:
    """Note what reaches the wire: packets are numbered there."""
    send = ssh._send_pkt if hasattr(ssh, "_send_pkt") else None
    assert send is None, "look at how packets are counted"
    wire = ssh.send_packet

    def send_packet(pkttype: int, *args: bytes, handler: Any = None) -> None:
        before = ssh._send_seq
        wire(pkttype, *args, handler=handler)
        counted.extend([pkttype] * (ssh._send_seq - before))

    ssh.send_packet = send_packet


@pytest.mark.parametrize("before", ["", "import typing_extensions\n"])
def test_of_typing_extensions_it_asks_what_python_has(before: str) -> None:
    script = (
        f"import sys, typing\n{before}"
        "from skyward_core.transport.ssh.asyncssh_import import asyncssh\n"
        "print('typing_extensions' in sys.modules, asyncssh.connection.Self is typing.Self)\n"
        "import typing_extensions\n"
        "print(type(typing_extensions) is type(sys), callable(typing_extensions.deprecated))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{bool(before)} True", "True True"]
