"""The way to a machine of a pool: as to any host, once the machine has a host key that nobody but it has seen, and a
Python that fits."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...model.errors import PoolError, Unreachable
from ...transport.base import Gate, Report
from ...transport.ssh.command_channel import CommandOutput, NoFittingPython, open_session
from ...transport.ssh.connect import HostConnection, fetch_host_key
from ...transport.ssh.keepalive import answer_timeout
from ...transport.ssh.target import Target
from ...transport.ssh.transport import SSHTransport
from ...wire.safe_text import field as safe
from .own_host_key import OwnHostKey

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
        raise PoolError(
            f"`{command.split(' ', 3)[0]}` failed there: {safe(told.strip()) or 'it says nothing'}"
        )
    return "\n".join(lines)


def _text(key: Any) -> str:
    return " ".join(key.export_public_key("openssh").decode("ascii").split()[:2])
