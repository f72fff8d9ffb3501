"""Guide: second generation's names of pool operations, a sweep over threads, and a timeout of a group."""

import itertools

import skyward as sky


@sky.function(timeout=120)
def trial(lr: float, depth: int) -> dict:
    return {"lr": lr, "depth": depth, "score": -abs(lr - 0.1) - depth * 0.001}


@sky.function
def heavy(n):
    return sum(range(n))


if __name__ == "__main__":
    grid = list(itertools.product([0.01, 0.1, 1.0], [2, 4]))
    with sky.Compute(
        sky.Spec(
            provider=sky.VastAI(geolocation="EU"),
            accelerator=sky.accelerators.RTX_4090(),
            max_hourly_cost=0.8,
        ),
        sky.Spec(provider=sky.RunPod(cloud_type="community"), accelerator=sky.accelerators.RTX_4090()),
        options=sky.Options(
            selection="cheapest",
            worker=sky.Worker(concurrency=4, executor="thread"),
            default_compute_timeout=600,
            shutdown_timeout=30,
        ),
    ) as compute:
        best = None
        for result in sky.gather(*(trial(*each) for each in grid), stream=True, ordered=False) >> compute:
            if best is None or result["score"] > best["score"]:
                best = result
        assert best["lr"] == 0.1 and best["depth"] == 2
        assert (heavy(10) & heavy(100)).with_timeout(60) >> compute == (45, 4950)
        assert compute.run_parallel(heavy(3) & heavy(4)) == (3, 6)
        assert compute.concurrency == 4
