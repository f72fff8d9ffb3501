"""Generator function whose values arrive while the function is running.

skyward-tui run example:streaming --nodes 4 --arg steps=200
"""

import math
import random
import time

import skyward_core as sky


@sky.function
def learn(steps: int = 100, pause: float = 0.05):
    """Simulate training: yield the metrics of every step."""
    noise = random.Random(sky.instance_info().rank)
    for step in range(steps):
        time.sleep(pause)  # stands for the computation of a training step
        loss = 0.1 + 2.4 * math.exp(-4 * step / steps) + noise.gauss(0, 0.03)
        if step % 10 == 0:
            print(f"step={step} loss={loss:.3f}", flush=True)
        yield {"step": step, "loss": round(loss, 4)}


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=1) as compute:
        for metrics in learn(steps=40) >> compute:
            print(metrics)
