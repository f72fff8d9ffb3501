"""Benchmarks of rented machines on the simulated EC2: API calls for many machines, and the start of two machines.

``calls_N`` is the number of AWS calls for N machines, from the start to the verified teardown. ``first_result_s`` is
the time to the first result without the boot time. Its peer is a start on the same hosts by ``sky.SSH``, which may be
three seconds faster. ``loop_lag_ms`` is the 95th percentile of the delay of an event loop of the same process while 200
machines start.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from time import perf_counter
from typing import Any

from .fresh import BenchError, fresh
from .metric import Bar, Metric

MANY = (1, 8, 64, 200)
BOOT = 2.0  # seconds for which machines are pending
CALLS = 32  # for any number that goes into one creation, its placement group and its place in the network
TICK = 0.005


def measure() -> list[Metric]:
    from tests.aws import Bed
    from tests.lab import missing

    with Bed() as bed:
        metrics = []
        for count in MANY:
            bed.simulate()
            called, lag = fresh("aws:up_and_down", bed.environment(), count)
            metrics.append(Metric(f"calls_{count}", called, bar=Bar(at_most=CALLS)))
            if count == max(MANY):
                metrics.append(Metric("loop_lag_ms", lag * 1e3, bar=Bar(at_most=20)))
            bed.heal()
        if why := missing():
            raise BenchError(why)
        bed.boot(BOOT)
        taken = fresh("aws:first_results", bed.environment(), f"{bed.client_address()}/32")
        return [*metrics, _beside(taken["aws"] - BOOT, taken["ssh"])]


def _beside(ours: float, theirs: float) -> Metric:
    return Metric("first_result_s", ours, theirs, Bar(at_most=theirs + 3.0))


def up_and_down(environment: dict[str, str], count: int) -> tuple[int, float]:
    """Return the calls for machines that exist in the API only, and the delay of an otherwise idle event loop."""
    os.environ.update(environment)
    import boto3

    import skyward_core as sky
    from skyward_core.providers.aws import boto_calls, provider

    async def nothing(machine: Any, way: Any) -> Any:
        return replace(machine, state="gone")

    provider.update_machine = nothing  # type: ignore[attr-defined]
    count_of = 0
    plain = boto_calls.AwsCalls._call

    def counted(self: Any, *arguments: Any) -> Any:
        nonlocal count_of
        count_of += 1
        return plain(self, *arguments)

    boto_calls.AwsCalls._call = counted  # type: ignore[assignment, method-assign]
    boto3.client("ec2")  # what is imported once is not what this is about
    aws = sky.AWS(instance_type="g4dn.xlarge", ssh_from="10.0.0.1/32")
    spec = sky.PoolSpec(name="q", provider=aws, nodes=count, options=sky.Options(console=False))

    async def work() -> list[float]:
        late: list[float] = []
        ticking = asyncio.create_task(_tick(late))
        made = await aws.create(spec, "0123456789abcdef")
        ticking.cancel()
        await aws.terminate("q", made)
        pause = 0.1
        while any(each.state != "gone" for each in await aws.describe("q", made)):
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)
        await aws.teardown("q")
        return sorted(late)

    late = asyncio.run(work())
    return count_of, late[int(len(late) * 0.95)]


async def _tick(late: list[float]) -> None:
    while True:
        before = perf_counter()
        await asyncio.sleep(TICK)
        late.append(perf_counter() - before - TICK)


def first_results(environment: dict[str, str], own: str) -> dict[str, float]:
    """Return the seconds to the first result of two rented machines, and of a pool on the same hosts over SSH."""
    os.environ.update(environment)
    import skyward_core as sky
    from skyward_core.providers.aws.instance_tags_and_launch_journal import LaunchJournal

    @sky.function
    def answer() -> int:
        return 42

    options = sky.Options(console=False)
    begun = perf_counter()
    aws = sky.AWS(instance_type="g4dn.xlarge", ssh_from=own)
    with sky.Compute(name="rented", provider=aws, nodes=2, options=options) as compute:
        if answer() @ compute != [42, 42]:
            raise BenchError("a rank gave another answer")
        taken = {"aws": perf_counter() - begun}
        (folder,) = LaunchJournal.find_all("rented")
        hosts = [each.address for each in compute.pool.context.machines]
        user = compute.pool.context.machines[0].extra["user"]
        known_hosts = str(folder.path.parent / "known_hosts")  # the machines have made themselves keys of their own
        ssh = sky.SSH(
            hosts, user=user, keys=str(folder.login_key), known_hosts=known_hosts, config=False, host_keys="accept-new"
        )
        begun = perf_counter()
        with sky.Compute(name="own", provider=ssh, options=options) as compute:
            if answer() @ compute != [42, 42]:
                raise BenchError("a rank gave another answer")
            taken["ssh"] = perf_counter() - begun
    return taken
