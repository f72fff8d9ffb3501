"""Failures: one rank raises, one rank is killed, the other ranks would wait forever.

skyward-tui run example:broken --nodes 4
skyward-tui run example:broken --nodes 4 --arg first=killed

Skyward reports the first failure as the root cause, and stops the remaining ranks.
"""

import os
import signal
import threading
import time
from typing import Literal

import skyward_core as sky


@sky.function
def broken(first: Literal["raised", "killed"] = "raised", after: float = 0.5) -> str:
    """Raise on rank 1 and kill rank 2; ``first`` selects which of the two fails first."""
    rank = sky.instance_info().rank
    print(f"rank {rank} is working", flush=True)
    if rank == 0:
        return "returned before the failures"
    if rank == 1:
        time.sleep(after if first == "raised" else 2 * after)
        raise ValueError("loss is nan at step 7")
    if rank == 2:
        time.sleep(after if first == "killed" else 2 * after)
        os.kill(os.getpid(), signal.SIGKILL)  # the kernel does the same if memory is exhausted
    threading.Event().wait()  # waits forever, like a collective with a missing peer
    return "never"


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=4) as compute:
        try:
            broken() @ compute
        except sky.RunError as error:
            print(f"root cause: rank {error.root_cause.rank}, {error.root_cause.message}")
            print(f"results: {error.results}")
