"""SSH to instances, each with a host key of its own."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skyward_core.model.errors import PoolError, SkywardError, Unreachable, what_of
from skyward_core.store.atomic_file import write_whole
from skyward_core.transport.ssh.bootstrap_channel import CommandOutput, NoFittingPython, open_session
from skyward_core.transport.ssh.connection import HostConnection, answer_timeout, fetch_host_key
from skyward_core.transport.ssh.host_address import Target
from skyward_core.transport.ssh.ssh_transport import SSHTransport
from skyward_core.transport.transport import Gate, Report
from skyward_core.util.terminal_safe_text import field as safe

FILE = "/etc/ssh/ssh_host_ed25519_key"
NEXT = "/etc/ssh/skyward_next_key"
# Run by root; what is made is kept until it is in its place, so that who comes again finds the same.
MAKE = f"test -e {NEXT}.pub || {{ rm -f {NEXT} && ssh-keygen -q -t ed25519 -N '' -C '' -f {NEXT}; }} && cat {NEXT}.pub"
TAKE = (
    f"{{ test ! -e {NEXT} || mv {NEXT} {FILE}; }} && mv {NEXT}.pub {FILE}.pub && "
    "{ systemctl restart ssh || systemctl restart sshd; }"
)
PATIENCE = 20.0  # seconds until the machine's SSH server shows it
PAUSE = 0.1

Root = Callable[[str], Awaitable[str]]
"""Runs a line of shell as root, and gives what it prints."""
Shown = Callable[[], Awaitable[str]]
"""The key that the machine shows now, as its type and its base64 text."""


class OwnHostKey:
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

    def believe(self, *keys: str) -> None:
        """These, and no other.

        Raises:
            OSError: it cannot be written down.
        """
        write_whole(self.path, "".join(f"* {key}\n" for key in keys).encode())

    async def have(self, seen: str, as_root: Root, shown: Shown) -> None:
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
            self.believe(seen)
            return
        try:
            line = (await as_root(MAKE)).strip().splitlines()
        except SkywardError as error:
            raise PoolError(f"it could make itself no host key of its own: {what_of(error)}") from error
        words = line[-1].split() if line else []
        if len(words) < 2 or words[0] != "ssh-ed25519":
            raise PoolError(f"it made itself no host key, but says {safe(' '.join(line))!r}")
        new = " ".join(words[:2])
        self.believe(seen, new)
        await as_root(TAKE)
        deadline = time.monotonic() + PATIENCE
        while await shown() != new:
            if time.monotonic() > deadline:
                raise PoolError("its SSH server goes on showing the key that it booted with")
            await asyncio.sleep(PAUSE)
        self.believe(new)


# As https://docs.astral.sh/uv/getting-started/installation has it, for the login's user and into a folder of the PATH
# that every channel has. The whole of it is here before any of it is run.
FETCH_UV = (
    'PATH="$PATH:$HOME/.local/bin";u=https://astral.sh/uv/install.sh;t=$(mktemp)&&'
    '{ curl -LsSf -o "$t" "$u"||wget -qO "$t" "$u";}&&UV_UNMANAGED_INSTALL="$HOME/.local/bin" sh "$t">&2;'
    'r=$?;rm -f "$t";exit $r'
)
FETCHING = 120.0  # seconds


class RentedTransport(SSHTransport):
    """See the module.

    Args:
        own_key: which keys of the machine are believed.
    """

    def __init__(
        self,
        target: Target,
        folder: str,
        own_key: OwnHostKey,
        *,
        python: str | None,
        loaded_with: Sequence[str] | None = None,
        patience: float,
    ) -> None:
        super().__init__(target, folder, python=python, loaded_with=loaded_with, patience=patience)
        self._own_key = own_key

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: Gate | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        if len(self._own_key.keys) != 1:
            await self._have_own_key(report)
        try:
            return await super().prepare(config, report, gate, first=first)
        except NoFittingPython as error:
            if self.python.named or error.tried:  # somebody has named one; or another uv would do no better
                raise
            await self._have_uv(report, error)
        return await super().prepare(config, report, gate, first=first)

    async def _have_uv(self, report: Report, lacking: NoFittingPython) -> None:
        """Images come with one Python, which need not be the script's; uv brings any. On rented machines nobody has
        to be asked whether it may be there."""
        lacks = f"no Python {self.python.minor} on {self.target.host}"
        report("running", detail=f"{lacks}; fetching uv, which brings it")
        link = await self._connected(report, self.patience)
        try:
            async with asyncio.timeout(FETCHING):
                await _run(link, f"sh -c {shlex.quote(FETCH_UV)}", FETCHING)
        except (PoolError, TimeoutError) as error:
            why = str(error) or f"it took longer than {FETCHING:g} s"
            raise PoolError(f"{lacking} uv could not be fetched there: {why}.") from error

    async def _have_own_key(self, report: Report) -> None:
        report("running", detail=f"connecting to {self.target.host}")
        link = await self._connected(report, self.patience)
        if link.shown is None:
            raise PoolError(f"Host {self.target.host} showed no host key.")

        async def as_root(line: str) -> str:
            return await _run(link, f"sudo -n sh -c {shlex.quote(line)}")

        async def shown() -> str:
            try:
                return _text((await fetch_host_key(self.target)).key)
            except Unreachable:
                return ""  # it is just being started anew

        try:
            await self._own_key.have(_text(link.shown), as_root, shown)
        except (PoolError, OSError) as error:
            raise PoolError(f"Host {self.target.host} cannot be trusted further: {error}.") from error
        self.target = replace(self.target, known_hosts=str(self._own_key.path))


async def _run(link: HostConnection, command: str, seconds: float | None = None) -> str:
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
        while (line := await said.line(link.target.host, "a command", seconds)) is not None:
            lines.append(line.decode("utf-8", "replace"))
        await said.within(answer_timeout(), channel.wait_closed)
    finally:
        channel.close()  # of one that took too long
    if channel.get_exit_status() != 0:
        told = " ".join([*lines, bytes(said.errors).decode("utf-8", "replace")])
        raise PoolError(f"`{command.split(' ', 3)[0]}` failed there: {safe(told.strip()) or 'it says nothing'}")
    return "\n".join(lines)


def _text(key: Any) -> str:
    return " ".join(key.export_public_key("openssh").decode("ascii").split()[:2])
