"""SSH transport to EC2 instances, with a separate host key for each instance.

All instances of a pool boot with the same host key from their user data, which other users of the account may read.
At the first login each instance therefore generates its own host key.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from skyward_core.model.errors import PoolError, SkywardError, Unreachable, error_message
from skyward_core.providers.provider_call_logs_polling_and_cache import current_listener, progress_listener
from skyward_core.store.debug_log import get_logger
from skyward_core.transport.ssh.connection import HostConnection, answer_timeout, fetch_host_key
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.host_command_channel import CommandOutput, NoFittingPython, open_session
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport
from skyward_core.transport.transport import Report, StartBarrier
from skyward_core.util.safe_file_access import write_atomic
from skyward_core.util.terminal_safe_text import sanitize_line

HOST_KEY_FILE = "/etc/ssh/ssh_host_ed25519_key"
NEXT_KEY_FILE = "/etc/ssh/skyward_next_key"
# Command that root runs. The new key is first written to a separate path, so that an interrupted rotation can be
# resumed.
MAKE_KEY_COMMAND = (
    f"test -e {NEXT_KEY_FILE}.pub || {{ rm -f {NEXT_KEY_FILE} && "
    f"ssh-keygen -q -t ed25519 -N '' -C '' -f {NEXT_KEY_FILE}; }} && cat {NEXT_KEY_FILE}.pub"
)
INSTALL_KEY_COMMAND = (
    f"{{ test ! -e {NEXT_KEY_FILE} || mv {NEXT_KEY_FILE} {HOST_KEY_FILE}; }} && mv {NEXT_KEY_FILE}.pub "
    f"{HOST_KEY_FILE}.pub && "
    "{ systemctl restart ssh || systemctl restart sshd; }"
)
# seconds after a machine's launch in which a failed connection may mean that the machine is still booting
BOOT_TIMEOUT = 600.0
KEY_ROTATION_TIMEOUT = 20.0  # seconds until the machine's SSH server presents its new key
POLL_PAUSE = 0.1

# Function that runs a shell command as root and returns its output.
RunAsRoot = Callable[[str], Awaitable[str]]
# Function that returns the machine's current host key as type and base64 text.
FetchHostKey = Callable[[], Awaitable[str]]


class HostKeyFile:
    """File with the trusted host keys of one machine.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def keys(self) -> list[str]:
        """Trusted keys, as type and base64 text; empty before the first login."""
        try:
            lines = self.path.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return []
        return [line.removeprefix("* ") for line in lines if line]

    def write(self, *keys: str) -> None:
        """Replace the trusted keys.

        Raises:
            OSError: If the file cannot be written.
        """
        write_atomic(self.path, "".join(f"* {key}\n" for key in keys).encode())

    async def rotate(self, seen: str, as_root: RunAsRoot, shown: FetchHostKey) -> None:
        """Make the machine generate and use its own host key, and trust only that key.

        Args:
            seen: Key that the machine presented at this login.
            as_root: Runs a command on the machine as root.
            shown: Returns the machine's current key.

        Raises:
            PoolError: If the machine does not switch to its own key. The message has the reason.
            OSError: If the file cannot be written.
        """
        before = self.keys
        if len(before) == 1:
            return
        if before and before[-1] == seen:  # a former client rotated the key, but ended before it saved the new key
            self.write(seen)
            return
        try:
            line = (await as_root(MAKE_KEY_COMMAND)).strip().splitlines()
        except SkywardError as error:
            raise PoolError(f"the machine could not generate its own host key: {error_message(error)}") from error
        words = line[-1].split() if line else []
        if len(words) < 2 or words[0] != "ssh-ed25519":
            raise PoolError(f"the machine generated no host key, but printed {sanitize_line(' '.join(line))!r}")
        new = " ".join(words[:2])
        self.write(seen, new)
        await as_root(INSTALL_KEY_COMMAND)
        deadline = time.monotonic() + KEY_ROTATION_TIMEOUT
        while await shown() != new:
            if time.monotonic() > deadline:
                raise PoolError("its SSH server still uses the key from its first boot")
            await asyncio.sleep(POLL_PAUSE)
        self.write(new)


# Command from https://docs.astral.sh/uv/getting-started/installation. It installs uv for the login user, into a folder
# that is in PATH for every command. The installer is downloaded completely before it runs.
INSTALL_UV_COMMAND = (
    'PATH="$PATH:$HOME/.local/bin";u=https://astral.sh/uv/install.sh;t=$(mktemp)&&'
    '{ curl -LsSf -o "$t" "$u"||wget -qO "$t" "$u";}&&UV_UNMANAGED_INSTALL="$HOME/.local/bin" sh "$t">&2;'
    'r=$?;rm -f "$t";exit $r'
)
INSTALL_UV_TIMEOUT = 120.0  # seconds for the installation of uv
ADDRESS_CHECK_INTERVAL = 15.0  # seconds between two queries for the client's own public address
_log = get_logger("provider")


class Ec2Transport(SSHTransport):
    """SSH transport to an EC2 instance.

    After the first login, replaces the host key. Installs uv if needed. If the client's address has changed, allows SSH
    from the new address.

    Args:
        own_key: File with the instance's trusted keys.
        admit: Allows SSH from the client's present address, and returns the Unix time of the last change of the
            address. None if the user decides which networks may connect.
        **options: As in :class:`SSHTransport`.
    """

    def __init__(
        self, target: Target, folder: str, own_key: HostKeyFile, admit: Callable[[], Awaitable[float]] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(target, folder, **options)
        self._host_key_file = own_key
        self._admit = admit
        self._listener = current_listener()
        self._next_check = 0.0

    async def _ensure_connected(self, report: Report | None, patience: float) -> HostConnection:
        begun = time.time()
        if self._admit is None or time.monotonic() < self._next_check:
            return await super()._ensure_connected(report, patience)
        try:
            return await super()._ensure_connected(report, 0.0)
        except Unreachable as error:
            is_admitted = False
            # If the client's address has changed, the security group drops its packets, so connections time out.
            if isinstance(error.__cause__, TimeoutError):
                self._next_check = time.monotonic() + ADDRESS_CHECK_INTERVAL
                is_admitted = await self._is_admitted_since(self._admit, begun)
            if not (is_admitted or patience):
                raise
        return await super()._ensure_connected(report, patience)

    async def _is_admitted_since(self, admit: Callable[[], Awaitable[float]], begun: float) -> bool:
        """Allow SSH from the client's present address. Return whether the allowed address has changed since the given
        time.
        """
        try:
            with progress_listener(self._listener):
                return await admit() >= begun
        except SkywardError as error:  # the caller reports the original connection error instead
            _log.info("cannot check this machine's address: %s", error_message(error))
            return False

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: StartBarrier | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        if len(self._host_key_file.keys) != 1:
            await self._ensure_host_key_rotated(report)
        try:
            return await super().prepare(config, report, gate, first=first)
        except NoFittingPython as error:
            # do not install uv, because the user chose an interpreter, or uv could not install this Python
            if self.python.named or error.tried:
                raise
            await self._ensure_uv(report, error)
        return await super().prepare(config, report, gate, first=first)

    async def _ensure_uv(self, report: Report, missing: NoFittingPython) -> None:
        """Install uv, which can download any Python version. On rented machines, installations need no permission from
        the user.
        """
        report(
            "running", detail=f"no Python {self.python.minor} on {self.target.host}; downloading uv, which installs it"
        )
        link = await self._ensure_connected(report, self.patience)
        try:
            async with asyncio.timeout(INSTALL_UV_TIMEOUT):
                await _run_command(link, f"sh -c {shlex.quote(INSTALL_UV_COMMAND)}", INSTALL_UV_TIMEOUT)
        except (PoolError, TimeoutError) as error:
            reason = str(error) or f"no success after {INSTALL_UV_TIMEOUT:g} s"
            raise PoolError(f"{missing} Installing uv there failed: {reason}.") from error

    async def _ensure_host_key_rotated(self, report: Report) -> None:
        report("running", detail=f"connecting to {self.target.host}")
        link = await self._ensure_connected(report, self.patience)
        if link.shown is None:
            raise PoolError(f"Host {self.target.host} presented no host key.")

        async def as_root(line: str) -> str:
            return await _run_command(link, f"sudo -n sh -c {shlex.quote(line)}")

        async def shown() -> str:
            try:
                return _key_text((await fetch_host_key(self.target)).key)
            except Unreachable:
                return ""  # no answer while the SSH server restarts

        try:
            await self._host_key_file.rotate(_key_text(link.shown), as_root, shown)
        except (PoolError, OSError) as error:
            raise PoolError(f"Host {self.target.host} could not switch to its own host key: {error}.") from error
        self.target = replace(self.target, known_hosts=str(self._host_key_file.path))


async def _run_command(link: HostConnection, command: str, seconds: float | None = None) -> str:
    """Return the output of a command.

    Args:
        seconds: Longest time without output; None for the answer timeout.

    Raises:
        PoolError: If the command fails. The message has its output.
    """
    output = CommandOutput()
    channel = await open_session(link, command, output)
    lines = []
    with closing(channel):  # closing the channel stops a command that has exceeded its time limit
        while (line := await output.read_line(link.target.host, "a command", seconds)) is not None:
            lines.append(line.decode("utf-8", "replace"))
        await output.wait_within(answer_timeout(), channel.wait_closed)
    if channel.get_exit_status() != 0:
        text = sanitize_line(" ".join([*lines, bytes(output.errors).decode("utf-8", "replace")]).strip())
        raise PoolError(f"`{command.split(' ', 3)[0]}` failed on {link.target.host}: {text or 'no output'}")
    return "\n".join(lines)


def _key_text(key: Any) -> str:
    return " ".join(key.export_public_key("openssh").decode("ascii").split()[:2])
