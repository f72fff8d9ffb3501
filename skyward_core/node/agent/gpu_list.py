"""The GPUs of a node: how many, and of which model; for ``ranks_per_node="gpu"`` also which of them each rank sees."""

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
    "from skyward_core.runtime.visible_gpus import devices; print(json.dumps(devices()))"
)
DRIVER_TIMEOUT = 60  # seconds; a driver that has to wake its GPUs first takes some
DRIVER_TIMEOUT_ERROR = f"the NVIDIA driver has not answered for {DRIVER_TIMEOUT} s"

Devices = list[tuple[str, str]]
"""What ``CUDA_VISIBLE_DEVICES`` calls each device, and its model."""


def resolve_ranks_per_gpu(config: AgentConfig) -> AgentConfig:
    """A config with ``ranks_per_node="gpu"`` made a number: a rank for each device of this node.

    A child asks the driver: its library would stay in an agent for good, and can hang.

    Raises:
        ValueError: none could be found; says what to do.
    """
    found, reason = None, ""
    with _spawn_query(config, subprocess.PIPE) as child:
        try:
            said, errors = child.communicate(timeout=DRIVER_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            reason = DRIVER_TIMEOUT_ERROR
        else:
            found = _parse_devices(said)
            words = errors.decode(errors="replace").strip().splitlines() if found is None else []
            reason = (words or ["it lists none"])[-1].removeprefix("skyward_core.model.errors.PoolError: ")
    if not found:
        raise ValueError(
            f'ranks_per_node="gpu" needs a GPU and node {config.node} has none ({reason}); '
            "give the number of ranks: ranks_per_node=2, say"
        )
    return config.with_gpus([model for _, model in found]).replace(
        ranks_per_node=len(found),
        devices=[name for name, _ in found],
    )


def start_gpu_query(config: AgentConfig, then: Callable[[Devices, str], None]) -> None:
    """Have ``then`` told of the devices once they are known, and what kept it from being known, if something did."""
    loop = asyncio.get_running_loop()
    try:
        child = _spawn_query(config, subprocess.DEVNULL)
    except OSError as error:
        then([], f"it cannot be asked for its GPUs: {error}")
        return
    child.returncode = 0  # the agent collects every child itself
    pipe = cast(IO[bytes], child.stdout)
    said: list[bytes] = []

    def hear() -> None:
        piece = os.read(pipe.fileno(), 1 << 16)
        said.append(piece)
        if not piece:
            end(_parse_devices(b"".join(said)) or [], "")

    def give_up() -> None:
        signal_group(child.pid, SIGKILL)
        end([], DRIVER_TIMEOUT_ERROR)

    def end(found: Devices, reason: str) -> None:
        timer.cancel()
        loop.remove_reader(pipe.fileno())
        pipe.close()
        then(found, reason)

    timer = loop.call_later(DRIVER_TIMEOUT, give_up)
    loop.add_reader(pipe.fileno(), hear)


def _spawn_query(config: AgentConfig, errors: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [config.python, "-c", LIST_CODE.format([config.bundle, config.path])],
        env=os.environ | config.env | node_mark_env(config.folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )


def _parse_devices(said: bytes) -> Devices | None:
    """What a child has told; a start-up file of its interpreter may have printed what it likes before."""
    try:
        told = json.loads(said.splitlines()[-1])
        return [(str(name), str(model)) for name, model in told]
    except (ValueError, TypeError, IndexError):
        return None
