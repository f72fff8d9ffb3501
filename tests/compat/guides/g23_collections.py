"""Guide: state that ranks share by name, as in older API versions: without a plugin."""

import skyward as sky


@sky.function
def produce(n):
    queue = sky.queue("jobs")
    for i in range(n):
        queue.put(i)
    sky.counter("made", consistency="strong").increment(n)


@sky.function
def consume():
    queue, total = sky.queue("jobs"), 0
    while (job := queue.get(timeout=0.2)) is not None:
        total += job
    rank = sky.instance_info().rank
    sky.dict("sums", "eventual")[str(rank)] = total
    with sky.lock("seen", timeout=30):
        sky.set("ranks").add(rank)
    sky.barrier("end", n=2).wait()
    return total


if __name__ == "__main__":
    with sky.Compute(provider=sky.Scaleway(zone="fr-par-2"), nodes=2) as pool:
        produce(10) >> pool
        assert sum(consume() @ pool) == 45
        assert sky.counter("made").value == pool.counter("made").value == 10
        assert len(pool.dict("sums")) == 2 and set(sky.set("ranks")) == {0, 1}
