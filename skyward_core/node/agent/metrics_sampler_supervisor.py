"""The process that samples machine metrics of this node: started on demand, restarted if it hangs or dies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from signal import SIGKILL
from typing import IO, cast

from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.worker_processes import signal_group, spawn_monitor
from skyward_core.protocol.frame_codec import CHUNK_BYTES
from skyward_core.protocol.node_paths import sample_files

START_CODE = (
    "import sys; sys.path[:] = {!a};from skyward_core.node.machine_metrics_sampler import main; main(*sys.argv[1:])"
)
PERIOD = 1.0  # seconds between two samples, and between two polls for new samples
PIECE_BYTES = CHUNK_BYTES // 4
PROGRESS_POLL = 5.0  # seconds between checks whether the sampler process has written new samples
# number of consecutive progress checks without a new sample before the sampler process is restarted
MAX_SILENT_CHECKS = 4
RESTART_DELAYS = (1.0, 60.0)  # minimum and maximum seconds until the sampler process is restarted
MAX_STARTS = 20


class SamplerProcess:
    """Metrics sampler process of one node."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._folder = config.paths.samples
        self._child: subprocess.Popen[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None  # timer of the sampler's next progress check or restart
        self._pause, self._tries = RESTART_DELAYS[0], 0
        self._size, self._silent = 0, 0
        self._failure = ""  # reason why no samples arrive, or ""
        self._is_stopped = False
        self._request_counts: dict[Connection, int] = {}  # number of a client's requests for samples that are active

    def ensure_running(self) -> None:
        """Start the sampler process unless it is running."""
        if self._child is None and self._timer is None and not self._is_stopped:
            self._start()

    def stop(self) -> None:
        """Stop the sampler process."""
        self._is_stopped = True
        self._terminate()

    # -- the process -------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._timer = None
        self._tries += 1
        # Use both import paths: pynvml is installed with the ranks' packages on the local machine, and in the bundle on
        # hosts.
        path = [*dict.fromkeys(filter(None, [*sys.path, *self._config.path]))]
        try:
            arguments = (self._folder, str(self._config.spool), str(PERIOD))
            self._child = child = spawn_monitor(self._config, START_CODE.format(path), *arguments)
        except OSError as error:
            self._schedule_restart(f"cannot start the metrics sampler: {error}")
            return
        asyncio.get_running_loop().add_reader(cast(IO[bytes], child.stdout).fileno(), self._on_exit)
        self._size, self._silent = self._total_bytes(), 0
        self._timer = asyncio.get_running_loop().call_later(PROGRESS_POLL, self._check_progress)

    def _terminate(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        child, self._child = self._child, None
        if child is not None:
            asyncio.get_running_loop().remove_reader(cast(IO[bytes], child.stdout).fileno())
            signal_group(child.pid, SIGKILL)
            for pipe in (child.stdin, child.stdout):
                with suppress(BrokenPipeError):
                    cast(IO[bytes], pipe).close()

    def _on_exit(self) -> None:
        self._terminate()
        self._schedule_restart("the metrics sampler exited")

    def _check_progress(self) -> None:
        size = self._total_bytes()
        self._silent = 0 if size > self._size else self._silent + 1
        if size > self._size:
            self._failure, self._pause = "", RESTART_DELAYS[0]
        self._size = size
        if self._silent >= MAX_SILENT_CHECKS:
            self._terminate()
            self._schedule_restart(f"the metrics sampler has not responded for {MAX_SILENT_CHECKS * PROGRESS_POLL:g} s")
            return
        self._timer = asyncio.get_running_loop().call_later(PROGRESS_POLL, self._check_progress)

    def _schedule_restart(self, reason: str) -> None:
        pause, self._pause = self._pause, min(RESTART_DELAYS[1], self._pause * 2)
        last = self._tries >= MAX_STARTS
        self._failure = f"{reason}; it will not be restarted" if last else reason
        if last:
            self._is_stopped = True
        elif not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(pause, self._start)

    def _total_bytes(self) -> int:
        """Return the number of bytes that all sampler processes of this node have written, including deleted files."""
        found = sample_files(self._folder)
        if not found:
            return 0
        start, name = found[-1]
        with suppress(FileNotFoundError):
            start += os.stat(f"{self._folder}/{name}").st_size
        return start

    # -- streaming ---------------------------------------------------------------------------------------

    async def stream(self, connection: Connection, at: int) -> None:
        """Send a client all samples from an offset on, then new samples as long as the connection is open.

        Args:
            connection: Connection of the client.
            at: Offset in bytes. If it exceeds the bytes ever written, it is from another folder, so all samples are
                sent.
        """
        self.ensure_running()
        request = self._request_counts[connection] = self._request_counts.get(connection, 0) + 1
        if at > self._total_bytes():
            at = 0
        sent_failure = ""
        try:
            while connection.is_open and self._request_counts[connection] == request:
                start, lines = self._read_lines(at)
                if lines:
                    connection.send({"t": "metrics", "at": start}, lines)
                    at = start + len(lines)
                    await connection.drain()
                    continue
                if self._failure != sent_failure:
                    sent_failure = self._failure
                    connection.send({"t": "metrics", "at": at, "why": sent_failure})
                await asyncio.sleep(PERIOD)
        finally:
            if not connection.is_open:
                self._request_counts.pop(connection, None)

    def _read_lines(self, at: int) -> tuple[int, bytes]:
        """Return the next complete lines, and their offset, which exceeds ``at`` if older files were deleted."""
        for start, name in sample_files(self._folder):
            try:
                with open(f"{self._folder}/{name}", "rb") as file:
                    file.seek(max(0, at - start))
                    data = file.read(PIECE_BYTES)
            except FileNotFoundError:
                # The sampler deleted this file after the files were listed. Read the newer files.
                continue
            if whole := data[: data.rfind(b"\n") + 1]:
                return max(at, start), whole
        return at, b""
