"""What failure looks like: one rank raises, one is killed, the others would wait for ever.

skyward-tui run example:broken --nodes 4
skyward-tui run example:broken --nodes 4 --arg first=killed

The first real failure is named as the root cause; ranks stopped because of it are collateral.
"""

import os
import signal
import threading
import time
from typing import Literal

import skyward_core as sky


@sky.function
def broken(first: Literal["raised", "killed"] = "raised", after: float = 0.5) -> str:
    """Rank 1 raises and rank 2 is killed, ``first`` names the one that comes first."""
    rank = sky.instance_info().rank
    print(f"rank {rank} is at work", flush=True)
    if rank == 0:
        return "done before the trouble began"
    if rank == 1:
        time.sleep(after if first == "raised" else 2 * after)
        raise ValueError("loss is nan at step 7")
    if rank == 2:
        time.sleep(after if first == "killed" else 2 * after)
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    threading.Event().wait()  # as in a collective whose peer is gone
    return "never"


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=4) as compute:
        try:
            broken() @ compute
        except sky.RunError as error:
            print(f"root cause: rank {error.root_cause.rank}, {error.root_cause.message}")
            print(f"kept: {error.results}")
