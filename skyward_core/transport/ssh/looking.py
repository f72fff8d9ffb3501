"""A way into a host for who only looks: by any Python there that we can use, and with nothing installed for it."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from ..upload.bundle import bundle_for
from .command_channel import CommandOutput, NoFittingPython, open_session
from .host_pythons import LIST, SEARCH, HostPythons, heard, minor_of

if TYPE_CHECKING:
    from .command_channel import CommandChannel
    from .connect import HostConnection
    from .transport import SSHTransport


async def channel_to_look(transport: SSHTransport) -> CommandChannel:
    """A command channel by the Python that is wanted, else by the newest that the host has; the transport is for
    that one from then on.

    Raises:
        NoFittingPython: it has none that we can use, or not the one that its user has named.
        PoolError, ConnectionError: as of :meth:`.transport.SSHTransport.channel`.
    """
    transport.python = wanted = replace(transport.python, fetches=False)
    try:
        return await transport.channel()
    except NoFittingPython as error:
        if wanted.named or not error.found.usable:
            raise
        minor = minor_of(error.found.usable[0])
    transport.python = replace(wanted, minor=minor, here="")
    await asyncio.to_thread(bundle_for, True, minor)  # a copy may have to be made
    return await transport.channel()


async def pythons_of(link: HostConnection) -> HostPythons:
    """Ask a host which Pythons it has; nothing is installed or left there.

    Raises:
        PoolError: the host opens no channel, or sends nothing.
        ConnectionError: the link is gone.
    """
    word = f"skyward-{secrets.token_hex(8)}"
    shell = f'{SEARCH}W=$1;{LIST}echo;echo "$W" $f'
    said = CommandOutput()
    channel = await open_session(link, f"exec sh -c '{shell}' skyward {shlex.join([word, '', ''])}", said)
    try:
        while (line := await said.line(link.target.host)) is not None:
            if line.startswith(word.encode()):
                return heard(line)
    finally:
        channel.close()
    return HostPythons(())
