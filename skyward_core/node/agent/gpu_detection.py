"""Detection of a node's GPUs: number, models and, for ``ranks_per_node="gpu"``, the device of each rank."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from signal import SIGKILL
from typing import IO, cast

from skyward_core.node.agent.config import AgentConfig
from skyward_core.node.agent.worker_processes import node_mark_env, signal_group

LIST_CODE = (
    "import json, sys; bundle, path = {!a};"
    "sys.path[:0] = [bundle] if bundle else [];"
    "sys.path += [e for e in path if e and e not in sys.path];"
    "from skyward_core.runtime.visible_nvidia_gpus import devices; print(json.dumps(devices()))"
)
DRIVER_TIMEOUT = 60  # seconds for the NVIDIA driver to answer; without persistence mode, initializing GPUs takes long
DRIVER_TIMEOUT_ERROR = f"the NVIDIA driver has not answered for {DRIVER_TIMEOUT} s"

# ``CUDA_VISIBLE_DEVICES`` name and model of each device.
Devices = list[tuple[str, str]]


def resolve_ranks_per_gpu(config: AgentConfig) -> AgentConfig:
    """Return the config with one rank per GPU of this node.

    A child process queries the driver, because the driver's library can hang and would occupy memory of the agent.

    Raises:
        ValueError: If no GPU was found. The message explains what to do.
    """
    found, reason = None, ""
    with _spawn_query(config, subprocess.PIPE) as child:
        try:
            output, errors = child.communicate(timeout=DRIVER_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            reason = DRIVER_TIMEOUT_ERROR
        else:
            found = _parse_devices(output)
            lines = errors.decode(errors="replace").strip().splitlines() if found is None else []
            reason = (lines or ["the driver lists no GPU"])[-1].removeprefix("skyward_core.model.errors.PoolError: ")
    if not found:
        raise ValueError(
            f'ranks_per_node="gpu" requires a GPU, but node {config.node} has none ({reason}). '
            "Set the number of ranks, for example ranks_per_node=2."
        )
    return config.with_gpus([model for _, model in found]).replace(
        ranks_per_node=len(found),
        devices=[name for name, _ in found],
    )


def start_gpu_query(config: AgentConfig, then: Callable[[Devices, str], None]) -> None:
    """Query the GPUs of this node in the background.

    Args:
        config: Configuration of the agent.
        then: Called with the GPUs, and with the reason if the query failed ("" on success).
    """
    loop = asyncio.get_running_loop()
    try:
        child = _spawn_query(config, subprocess.DEVNULL)
    except OSError as error:
        then([], f"cannot start the GPU query: {error}")
        return
    child.returncode = 0  # The agent reaps all child processes itself, so subprocess must not wait for this one.
    pipe = cast(IO[bytes], child.stdout)
    chunks: list[bytes] = []

    def on_readable() -> None:
        chunk = os.read(pipe.fileno(), 1 << 16)
        chunks.append(chunk)
        if not chunk:
            finish(_parse_devices(b"".join(chunks)) or [], "")

    def on_timeout() -> None:
        signal_group(child.pid, SIGKILL)
        finish([], DRIVER_TIMEOUT_ERROR)

    def finish(found: Devices, reason: str) -> None:
        timer.cancel()
        loop.remove_reader(pipe.fileno())
        pipe.close()
        then(found, reason)

    timer = loop.call_later(DRIVER_TIMEOUT, on_timeout)
    loop.add_reader(pipe.fileno(), on_readable)


def _spawn_query(config: AgentConfig, errors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [config.python, "-c", LIST_CODE.format([config.bundle, config.path])],
        env=os.environ | config.env | node_mark_env(config.folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )


def _parse_devices(output: bytes) -> Devices | None:
    """Parse the output of the query process. Only the last line counts: Python's start-up files may print, too."""
    try:
        return [(str(name), str(model)) for name, model in json.loads(output.splitlines()[-1])]
    except (ValueError, TypeError, IndexError):
        return None
