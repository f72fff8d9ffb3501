"""SSH transport and provider for one loopback host, and the handshake with its agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skyward_core.protocol.frame_codec import Decoder, encode_frame
from skyward_core.providers.ssh.provider import SSH
from skyward_core.transport.ssh.host_address_and_python import Target
from skyward_core.transport.ssh.ssh_transport_and_bundle_upload import SSHTransport
from tests.support.sshd import Host

NOISE = "echo Welcome to the lab; printf 'no newline at the end'; echo trouble >&2; true"
"""What a login shell may print before every command."""


def target(host: Host, known: Path, **wishes: Any) -> Target:
    return Target(
        "127.0.0.1", port=host.port, keys=(str(host.client_key),), known_hosts=str(known), config=False, **wishes
    )


def provider(host: Host, known: Path, **wishes: Any) -> SSH:
    return SSH([f"127.0.0.1:{host.port}"], keys=str(host.client_key), known_hosts=str(known), config=False, **wishes)


class Reports:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, phase: str, detail: str = "", retry_at: float | None = None, address: str = "") -> None:
        self.lines.append((phase, detail))

    def of(self, phase: str) -> str:
        return "\n".join(detail for name, detail in self.lines if name == phase)


def config(**more: Any) -> dict[str, Any]:
    return {"pool": "p", "node": 0, "nodes": 1, "idle_timeout": 30.0, "grace": 0.1} | more


@asynccontextmanager
async def running(transport: SSHTransport) -> AsyncIterator[None]:
    """Yield an agent, and end it and the connection in any case."""
    try:
        yield
    finally:
        channel = await transport.channel()
        if channel.facts["bundle"]:
            await channel.ask("end", folder=transport.folder, socket=channel.facts["socket"])
        channel.close()
        await transport.close()


async def greet(transport: SSHTransport) -> dict[str, Any]:
    """Send a hello to the agent, and return its welcome."""
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    decoder = Decoder()

    def take(data: bytes | memoryview) -> None:
        for header, _ in decoder.feed(data):
            answers.put_nowait(header)

    pipe = await transport.open(take, lambda error: None)
    pipe.write(encode_frame({"t": "hello"}))
    try:
        return await asyncio.wait_for(answers.get(), 90)
    finally:
        pipe.close()
