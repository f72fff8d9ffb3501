"""Having this library on a host for commands there: in its folder, or for as long as one channel is open."""

from __future__ import annotations

import asyncio

from ..upload.bundle import bundle_for
from .command_channel import CommandChannel


async def send_bundle(channel: CommandChannel) -> str:
    """Have the bundle on the host; says what that took."""
    if channel.facts["bundle"]:
        return "bundle is there"
    bundle = bundle_for(channel.facts["nvml"], channel.python.minor)
    if not channel.python.is_ours:
        await asyncio.to_thread(bundle.have_bytecode, channel.python.here)
    archive = bundle.archive
    await channel.ask("bundle", archive)
    return f"bundle sent ({len(archive) / 1e3:.0f} kB)"


async def lend_bundle(channel: CommandChannel) -> None:
    """Have a bundle used that lies there, or one in the host's memory for as long as this channel is open.

    Raises:
        PoolError: it cannot be had.
        ConnectionError: the link is gone.
    """
    if not channel.facts.get("bundle"):
        await channel.ask("lend", bundle_for(channel.facts["nvml"], channel.python.minor).archive)
