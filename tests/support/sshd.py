"""asyncssh's server on loopback, to test the SSH transport without root."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import asyncssh


class Host:
    """SSH server. Commands run in a shell that first runs ``noise``, like the startup files of a login shell.

    Attributes:
        rewrite: Changes a command line before it runs, to simulate a host that lacks something.
        commands: Command line of each session.
        received: Input that clients sent to commands.
        logins: Number of accepted connections.
        sftp: Factory of the SFTP server. Set it before the start.
    """

    def __init__(self, home: Path, *, noise: str = "", forwards: bool = True) -> None:
        self.home = home
        self.noise = noise
        self.forwards = forwards
        self.rewrite: Callable[[str], str] = lambda command: command
        self.commands: list[str] = []
        self.received = bytearray()
        self.logins = 0
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.client_key = home / "id_ed25519"
        self.sftp: Callable[..., asyncssh.SFTPServer] | None = None
        self.port = 0
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self._server: asyncssh.SSHAcceptor | None = None
        self._children: set[asyncio.subprocess.Process] = set()
        home.mkdir(parents=True, exist_ok=True)
        client = asyncssh.generate_private_key("ssh-ed25519")
        client.write_private_key(self.client_key)
        self.authorized = home / "authorized_keys"
        self.authorized.write_bytes(client.export_public_key())

    async def start(self) -> None:
        self._server = await asyncssh.create_server(
            lambda: _Server(self),
            "127.0.0.1",
            self.port,
            server_host_keys=[self.key],
            authorized_client_keys=str(self.authorized),
            process_factory=self._run,
            sftp_factory=None if self.sftp is None else lambda channel: self.sftp(channel),
            encoding=None,
        )
        self.port = self._server.get_port()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()
        for child in list(self._children):
            if child.returncode is None:
                child.kill()
            await child.wait()
            # Its own children may still hold the pipes' other ends, and asyncio has no public way to let go of ours.
            child._transport.close()  # type: ignore[attr-defined]

    def known_line(self) -> str:
        return f"[127.0.0.1]:{self.port} {self.key.export_public_key().decode()}"

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or ""
        self.commands.append(command)
        env = {
            "HOME": str(self.home),
            # The test's own interpreter comes first: below /tmp the bootstrap rejects its absolute path.
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "SSH_CONNECTION": "127.0.0.1 1 127.0.0.1 22",
        }
        script = f"{self.noise}\n{self.rewrite(command)}"
        child = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", script, cwd=self.home, env=env,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        self._children.add(child)
        feed = asyncio.create_task(self._feed(process.stdin, child.stdin))
        gone = asyncio.create_task(self._let_go(process, child))
        await asyncio.gather(self._pass(child.stdout, process.stdout), self._pass(child.stderr, process.stderr))
        feed.cancel()
        gone.cancel()
        process.exit(await child.wait())

    async def _feed(self, source: asyncssh.SSHReader[bytes], target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                self.received += data
                target.write(data)
                await target.drain()
        except (OSError, asyncssh.Error):
            pass  # the command has ended, or the client has gone
        target.close()

    @staticmethod
    async def _let_go(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
        """Stop reading and writing a command's streams after the client has closed the channel, like OpenSSH's
        server.
        """
        await process.wait_closed()
        for descriptor in (0, 1, 2):
            child._transport.get_pipe_transport(descriptor).close()  # type: ignore[attr-defined]

    @staticmethod
    async def _pass(source: asyncio.StreamReader, target: asyncssh.SSHWriter[bytes]) -> None:
        while data := await source.read(1 << 16):
            target.write(data)


class _Server(asyncssh.SSHServer):
    def __init__(self, host: Host) -> None:
        self.host = host

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.conn = conn
        self.host.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self.host.connections.discard(self.conn)

    def auth_completed(self) -> None:
        self.host.logins += 1

    def begin_auth(self, username: str) -> bool:
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return self.host.forwards

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True
