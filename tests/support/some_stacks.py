"""Sample stacks of ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skyward_core.model.thread_stacks import RankStack, StackFrame, Stacks, ThreadStack
from tests.support.fake_session import NOW

TORCH = "/env/lib/python3.12/site-packages/torch/"
C10D = TORCH + "distributed/distributed_c10d.py"
WORKER = "/b/all.zip/skyward_core/node/worker/worker.py"
OURS = [("_run", WORKER, 300), ("_call", WORKER, 240), ("serve", WORKER, 140), ("<module>", "<string>", 28)]

REDUCING = (
    ("all_reduce", C10D, 3252),
    ("_exception_logger.<locals>.wrapper", TORCH + "distributed/c10d_logger.py", 83),
    ("step", "/home/me/llama/train.py", 31),
    ("train", "/home/me/llama/train.py", 44),
)
VALIDATING = (
    ("_recv_bytes", "/env/lib/python3.12/multiprocessing/connection.py", 395),
    ("Queue.get", "/env/lib/python3.12/multiprocessing/queues.py", 103),
    ("_MultiProcessingDataLoaderIter._try_get_data", TORCH + "utils/data/dataloader.py", 1275),
    ("validate", "/home/me/llama/train.py", 57),
    ("train", "/home/me/llama/train.py", 46),
)

Frames = Sequence[tuple[str, str, int]]


def stack(rank: int, *frames: tuple[str, str, int], at: str = "running", **more: Any) -> RankStack:
    """Return a rank's stack. Without frames, the stack is unknown."""
    parsed = tuple(StackFrame(*each) for each in (*frames, *OURS))
    threads = (ThreadStack("MainThread", parsed),) if frames else ()
    given: dict[str, Any] = {"pid": 4000 + rank, "how": "py-spy" if frames else "", "threads": threads}
    return RankStack(rank, 0, rank // 8, at, **given | more)


def hung(run: str, ranks: int) -> Stacks:
    """Return stacks of an all-reduce: one rank validates, one has returned, and the node of one is silent."""
    found = {rank: stack(rank, *REDUCING, runs=(run,)) for rank in range(ranks)}
    found[5] = stack(5, *VALIDATING, runs=(run,))
    found[ranks - 2] = stack(ranks - 2, at="idle")
    found[ranks - 1] = stack(ranks - 1, at="silent", why="node 7 has not answered for 9 s")
    return Stacks(NOW - 4, tuple(found.values()), run, (ranks - 2,))


def write_train_py(changed_at: float = 0.0) -> None:
    """Write train.py to the current folder, with the lines that these stacks name."""
    _write({
        29: "def step(model, batch):",
        30: "    loss = model(batch).mean()",
        31: "    dist.all_reduce(loss)",
        32: "    return loss",
        41: "def train(epochs):",
        42: "    for epoch in range(epochs):",
        43: "        for batch in batches:",
        44: "            step(model, batch)",
        45: "        if epoch % 10 == 0:",
        46: "            validate(model)",
        55: "def validate(model):",
        56: "    model.eval()",
        57: "    for batch in held_out:",
        58: "        losses.append(model(batch))",
    }, changed_at)  # fmt: skip


def write_failing_train_py() -> None:
    """Write train.py with the lines that a traceback of :func:`.fake_session.failed_run` names."""
    _write({
        14: "def step(batch):",
        15: '    total = sum(batch["loss"])',
        16: '    count = len(batch["loss"])',
        17: "    return total / count",
        27: "def train(batches):",
        28: "    for epoch in range(3):",
        29: "        for batch in batches:",
        30: "            batch = loaded(batch)",
        31: "            loss = step(batch)",
        32: "            sky.log(epoch=epoch, loss=loss)",
    }, 0.0)  # fmt: skip


def _write(named: dict[int, str], changed_at: float) -> None:
    path = Path("train.py")
    path.write_text("".join(named.get(line, "") + "\n" for line in range(1, 61)), "utf-8")
    os.utime(path, (changed_at, changed_at))
