"""The way to a machine of a pool: as to any host, once the machine has a host key that nobody but it has seen."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from ...model.errors import PoolError, Unreachable
from ...transport.base import Gate, Report
from ...transport.ssh.command_channel import CommandOutput, open_session
from ...transport.ssh.connect import HostConnection, fetch_host_key
from ...transport.ssh.target import Target
from ...transport.ssh.transport import SSHTransport
from ...wire.safe_text import field as safe
from .own_host_key import OwnHostKey


class RentedTransport(SSHTransport):
    """See the module.

    Args:
        own_key: which keys of the machine are believed.
    """

    def __init__(
        self, target: Target, folder: str, own_key: OwnHostKey, *, python: str | None, patience: float
    ) -> None:
        super().__init__(target, folder, python=python, patience=patience)
        self._own_key = own_key

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: Gate | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        if len(self._own_key.keys) != 1:
            await self._have_own_key(report)
        return await super().prepare(config, report, gate, first=first)

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


async def _run(link: HostConnection, command: str) -> str:
    """What a command prints.

    Raises:
        PoolError: it fails; says what it says.
    """
    said = CommandOutput()
    channel = await open_session(link, command, said)
    lines = []
    while (line := await said.lines.get()) is not None:
        lines.append(line.decode("utf-8", "replace"))
    await channel.wait_closed()
    if channel.get_exit_status() != 0:
        told = " ".join([*lines, bytes(said.errors).decode("utf-8", "replace")])
        raise PoolError(
            f"`{command.split(' ', 3)[0]}` failed there: {safe(told.strip()) or 'it says nothing'}"
        )
    return "\n".join(lines)


def _text(key: Any) -> str:
    return " ".join(key.export_public_key("openssh").decode("ascii").split()[:2])
