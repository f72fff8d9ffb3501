"""Guide: newest generation's names: streams, types, instance info, start options, and pool methods."""

import skyward as sky
from skyward import Info, Pending


@sky.stream
def steps(n):
    for i in range(n):
        yield {"step": i, "loss": 1 / (i + 1)}


@sky.function(timeout=60, queue_timeout=30, retry=None)
def place() -> dict:
    info: Info = sky.instance_info()
    return {
        "rank": info.rank,
        "nodes": info.nodes,
        "head": info.head,
        "peers": ",".join(info.peers),
        "mine": info.peers[info.rank] == info.host,
    }


@sky.function(retry=lambda reason, attempt: attempt < 2)
def times(i: int) -> int:
    return 2 * i


if __name__ == "__main__":
    with sky.Compute(
        provider=sky.Lambda(region="us-west-1"),
        nodes=2,
        executor=sky.Executor(type="process", concurrency=2),
        options=sky.Options(provision_timeout=900, ssh_timeout=240, worker_timeout=180, ready_timeout=900),
        ttl=1200,
        delete_on_exit=True,
    ) as pool:
        a, b = place() @ pool
        assert (a["rank"], b["rank"], a["nodes"]) == (0, 1, 2) and a["mine"] and b["mine"]
        assert a["head"] == b["head"] and len(a["peers"].split(",")) == 2
        task: Pending[int] = times(9).with_timeout(5)
        assert task >> pool == 18 and pool.start(times(5)).result() == 10
        assert pool.gather(sky.gather(times(1), times(2))) == [2, 4]
        assert list(pool.gather_stream(times(1) & times(2))) == [2, 4]
        assert list(pool.stream(steps(2))) == [{"step": 0, "loss": 1.0}, {"step": 1, "loss": 0.5}]
        for verb in (lambda: pool.resize(4), lambda: pool.update(sky.Image()), pool.events):
            try:
                verb()
            except sky.SkywardError as error:
                assert "is not supported" in str(error)
            else:
                raise AssertionError
