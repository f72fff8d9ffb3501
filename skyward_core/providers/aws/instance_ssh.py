"""SSH to instances, each with a host key of its own."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from skyward_core.model.errors import PoolError, SkywardError, Unreachable, error_message
from skyward_core.store.atomic_file import write_atomic
from skyward_core.transport.ssh.bootstrap_channel import CommandOutput, NoFittingPython, open_session
from skyward_core.transport.ssh.connection import HostConnection, answer_timeout, fetch_host_key
from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.ssh_transport import SSHTransport
from skyward_core.transport.transport import Report, StartBarrier
from skyward_core.util.terminal_safe_text import sanitize_line

HOST_KEY_FILE = "/etc/ssh/ssh_host_ed25519_key"
NEXT_KEY_FILE = "/etc/ssh/skyward_next_key"
# Run by root; what is made is kept until it is in its place, so that who comes again finds the same.
MAKE_KEY_COMMAND = (
    f"test -e {NEXT_KEY_FILE}.pub || {{ rm -f {NEXT_KEY_FILE} && "
    f"ssh-keygen -q -t ed25519 -N '' -C '' -f {NEXT_KEY_FILE}; }} && cat {NEXT_KEY_FILE}.pub"
)
INSTALL_KEY_COMMAND = (
    f"{{ test ! -e {NEXT_KEY_FILE} || mv {NEXT_KEY_FILE} {HOST_KEY_FILE}; }} && mv {NEXT_KEY_FILE}.pub "
    f"{HOST_KEY_FILE}.pub && "
    "{ systemctl restart ssh || systemctl restart sshd; }"
)
KEY_ROTATION_TIMEOUT = 20.0  # seconds until the machine's SSH server shows it
POLL_PAUSE = 0.1

RunAsRoot = Callable[[str], Awaitable[str]]
"""Runs a line of shell as root, and gives what it prints."""
FetchHostKey = Callable[[], Awaitable[str]]
"""The key that the machine shows now, as its type and its base64 text."""


class HostKeyFile:
    """The file that says which keys of one machine are believed.

    Args:
        path: of the machine's own file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def keys(self) -> list[str]:
        """Those that are believed, by type and text; none before the first login."""
        try:
            lines = self.path.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return []
        return [line.removeprefix("* ") for line in lines if line]

    def write(self, *keys: str) -> None:
        """These, and no other.

        Raises:
            OSError: it cannot be written down.
        """
        write_atomic(self.path, "".join(f"* {key}\n" for key in keys).encode())

    async def rotate(self, seen: str, as_root: RunAsRoot, shown: FetchHostKey) -> None:
        """Have the machine show a key of its own.

        Args:
            seen: the key that it showed at this login.

        Raises:
            PoolError: it does not; says why.
            OSError: it cannot be written down.
        """
        before = self.keys
        if len(before) == 1:
            return
        if before and before[-1] == seen:  # it has taken it, and who saw to that went before seeing so
            self.write(seen)
            return
        try:
            line = (await as_root(MAKE_KEY_COMMAND)).strip().splitlines()
        except SkywardError as error:
            raise PoolError(f"it could make itself no host key of its own: {error_message(error)}") from error
        words = line[-1].split() if line else []
        if len(words) < 2 or words[0] != "ssh-ed25519":
            raise PoolError(f"it made itself no host key, but says {sanitize_line(' '.join(line))!r}")
        new = " ".join(words[:2])
        self.write(seen, new)
        await as_root(INSTALL_KEY_COMMAND)
        deadline = time.monotonic() + KEY_ROTATION_TIMEOUT
        while await shown() != new:
            if time.monotonic() > deadline:
                raise PoolError("its SSH server goes on showing the key that it booted with")
            await asyncio.sleep(POLL_PAUSE)
        self.write(new)


# As https://docs.astral.sh/uv/getting-started/installation has it, for the login's user and into a folder of the PATH
# that every channel has. The whole of it is here before any of it is run.
INSTALL_UV_COMMAND = (
    'PATH="$PATH:$HOME/.local/bin";u=https://astral.sh/uv/install.sh;t=$(mktemp)&&'
    '{ curl -LsSf -o "$t" "$u"||wget -qO "$t" "$u";}&&UV_UNMANAGED_INSTALL="$HOME/.local/bin" sh "$t">&2;'
    'r=$?;rm -f "$t";exit $r'
)
INSTALL_UV_TIMEOUT = 120.0  # seconds


class Ec2Transport(SSHTransport):
    """See the module.

    Args:
        own_key: which keys of the machine are believed.
        **options: as of :class:`SSHTransport`.
    """

    def __init__(self, target: Target, folder: str, own_key: HostKeyFile, **options: Any) -> None:
        super().__init__(target, folder, **options)
        self._host_key_file = own_key

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: StartBarrier | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        if len(self._host_key_file.keys) != 1:
            await self._ensure_host_key_rotated(report)
        try:
            return await super().prepare(config, report, gate, first=first)
        except NoFittingPython as error:
            if self.python.named or error.tried:  # somebody has named one; or another uv would do no better
                raise
            await self._ensure_uv(report, error)
        return await super().prepare(config, report, gate, first=first)

    async def _ensure_uv(self, report: Report, missing: NoFittingPython) -> None:
        """Images come with one Python, which need not be the script's; uv brings any. On rented machines nobody has
        to be asked whether it may be there."""
        lacks = f"no Python {self.python.minor} on {self.target.host}"
        report("running", detail=f"{lacks}; fetching uv, which brings it")
        link = await self._ensure_connected(report, self.patience)
        try:
            async with asyncio.timeout(INSTALL_UV_TIMEOUT):
                await _run_command(link, f"sh -c {shlex.quote(INSTALL_UV_COMMAND)}", INSTALL_UV_TIMEOUT)
        except (PoolError, TimeoutError) as error:
            reason = str(error) or f"it took longer than {INSTALL_UV_TIMEOUT:g} s"
            raise PoolError(f"{missing} uv could not be fetched there: {reason}.") from error

    async def _ensure_host_key_rotated(self, report: Report) -> None:
        report("running", detail=f"connecting to {self.target.host}")
        link = await self._ensure_connected(report, self.patience)
        if link.shown is None:
            raise PoolError(f"Host {self.target.host} showed no host key.")

        async def as_root(line: str) -> str:
            return await _run_command(link, f"sudo -n sh -c {shlex.quote(line)}")

        async def shown() -> str:
            try:
                return _key_text((await fetch_host_key(self.target)).key)
            except Unreachable:
                return ""  # it is just being started anew

        try:
            await self._host_key_file.rotate(_key_text(link.shown), as_root, shown)
        except (PoolError, OSError) as error:
            raise PoolError(f"Host {self.target.host} cannot be trusted further: {error}.") from error
        self.target = replace(self.target, known_hosts=str(self._host_key_file.path))


async def _run_command(link: HostConnection, command: str, seconds: float | None = None) -> str:
    """What a command prints.

    Args:
        seconds: how long it may print nothing; None for the answer time-out.

    Raises:
        PoolError: it fails; says what it says.
    """
    said = CommandOutput()
    channel = await open_session(link, command, said)
    lines = []
    try:
        while (line := await said.read_line(link.target.host, "a command", seconds)) is not None:
            lines.append(line.decode("utf-8", "replace"))
        await said.wait_within(answer_timeout(), channel.wait_closed)
    finally:
        channel.close()  # of one that took too long
    if channel.get_exit_status() != 0:
        told = " ".join([*lines, bytes(said.errors).decode("utf-8", "replace")])
        raise PoolError(
            f"`{command.split(' ', 3)[0]}` failed there: {sanitize_line(told.strip()) or 'it says nothing'}"
        )
    return "\n".join(lines)


def _key_text(key: Any) -> str:
    return " ".join(key.export_public_key("openssh").decode("ascii").split()[:2])
