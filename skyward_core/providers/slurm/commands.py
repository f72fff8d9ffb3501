"""Slurm's commands, run here or on a login host over SSH, and what they print."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from ...model.errors import PoolError, Unreachable
from ...wire.safe_text import field as safe

if TYPE_CHECKING:
    from ...transport.ssh.target import Target

ANSWER = 50.0  # seconds that a command may take; then it is ended where it runs
SLACK = 10.0  # seconds beyond that for the way there
MOST = 4 << 20  # bytes of an answer
# Variables that commands get. No others: what is in SBATCH_*, SQUEUE_* or SLURM_* changes what they do and print, and
# sbatch gives the whole environment to the job, where a client's secrets have no business.
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "SLURM_CONF")
SET = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
_MISSING = 127
_LATE = (124, 137)
_NO_CLUSTER = (
    "Could not establish a configuration source"  # what its commands say where nobody has configured them
)

# A login shell may print before it; $0 is a word that nobody else knows. "!" and "'" mean something to some shells.
_MARKED = 'echo; echo "$0"; "$@"; s=$?; echo; echo "$0 $s"'


class CommandFailed(PoolError):
    """One of Slurm's commands did not do what was asked; the message has what it said."""


class NoSlurm(CommandFailed):
    """There is no Slurm where its commands were to run, or one that belongs to no cluster."""


class Commands:
    """See the module.

    Args:
        login: the host that they run on; None for this one.
    """

    def __init__(self, login: Target | None) -> None:
        self.login = login

    @property
    def where(self) -> str:
        """Where they run, for people to read."""
        return "this machine" if self.login is None else f"host {self.login.label}"

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keep one connection for all commands inside it: each login may cost a person's patience."""
        if self.login is None:
            yield
            return
        from ...transport.ssh.connect import shared

        async with shared(self.login):
            yield

    async def __call__(self, program: str, *arguments: str, stdin: str = "", seconds: float = ANSWER) -> str:
        """What a command prints.

        Args:
            seconds: after which it is ended.

        Raises:
            NoSlurm: it is not there.
            CommandFailed: it failed; says what it said.
            Unreachable: it gave no answer in time, or the login host cannot be reached.
        """
        words = ["timeout", "-k", "5", f"{seconds:g}", program, *arguments]
        run = self._here if self.login is None else partial(self._there, self.login)
        try:
            async with asyncio.timeout(seconds + SLACK):
                status, output, errors = await run(words, stdin.encode())
        except TimeoutError as error:
            raise Unreachable(f"{program} on {self.where} gave no answer within {seconds:g} s") from error
        if len(output) > MOST:
            raise CommandFailed(f"{program} on {self.where} prints more than {MOST >> 20} MB")
        if status == 0:
            return output.decode("utf-8", "replace")
        said = safe(" ".join(errors[-2000:].decode("utf-8", "replace").split()))
        if status == _MISSING:
            raise NoSlurm(f"there is no {program} on {self.where}, which is no login node of a Slurm cluster")
        if _NO_CLUSTER in said:
            raise NoSlurm(f"Slurm on {self.where} is of no cluster: {program} finds no slurm.conf")
        if status in _LATE:
            raise Unreachable(f"{program} on {self.where} gave no answer within {seconds:g} s: {said}")
        raise CommandFailed(
            f"{program} on {self.where} failed: {said or f'exit status {status}, and no word'}"
        )

    async def _here(self, words: Sequence[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        env = {name: os.environ[name] for name in KEPT if name in os.environ} | SET
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=env, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", start_new_session=True
            )
        except FileNotFoundError as error:
            raise CommandFailed(f"there is no {words[0]} on {self.where}") from error
        try:
            output, errors = await process.communicate(stdin)
        except BaseException:
            with suppress(ProcessLookupError):
                process.terminate()
            raise
        return process.returncode or 0, output, errors

    async def _there(self, login: Target, words: Sequence[str], stdin: bytes) -> tuple[int, bytes, bytes]:
        from ...transport.ssh.command_channel import CommandOutput, open_session
        from ...transport.ssh.connect import shared

        mark = f"skyward-{secrets.token_hex(8)}"
        given = ["env", *(f"{name}={text}" for name, text in SET.items()), *words]
        command = f"exec sh -c {shlex.quote(_MARKED)} {mark} {shlex.join(given)}"
        said, lines = CommandOutput(), list[bytes]()
        async with shared(login) as link:
            try:
                channel = await open_session(link, command, said)
            except ConnectionError as error:
                raise Unreachable(f"the connection to {self.where} is gone: {error}") from error
            try:
                with suppress(OSError):  # a host that closes it at once says why, or nothing
                    channel.write(stdin)
                    channel.write_eof()
                doing, limit = "", None  # of the login shell; the command's is our caller's
                while (line := await said.line(login.label, doing, limit)) is not None:
                    lines.append(line)
                    if line == mark.encode():
                        doing, limit = "a command", math.inf
            finally:
                channel.close()
        return (
            _between(mark.encode(), lines, self.where),
            b"\n".join(_inner(mark.encode(), lines)),
            bytes(said.errors),
        )


def _between(mark: bytes, lines: Sequence[bytes], where: str) -> int:
    """The exit status that stands behind the second mark."""
    word, _, status = lines[-1].partition(b" ") if lines else (b"", b"", b"")
    if word != mark or not status.isdigit():
        raise Unreachable(f"{where} ended a command before it had answered")
    return int(status)


def _inner(mark: bytes, lines: Sequence[bytes]) -> list[bytes]:
    """The lines between the marks."""
    begin = lines.index(mark) + 1 if mark in lines else len(lines)
    return list(lines[begin:-1])
