"""Benchmark of the download of a large output file over SSH, compared with scp from the same host."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from .fresh import BenchError, fresh
from .metric import Bar, Metric
from .ssh import PROJECT, Hosts

SIZE = 1_000_000_000
ROUNDS = 3


def measure() -> list[Metric]:
    from tests.lab import Lab, missing

    if why := missing():
        raise BenchError(why)
    with Lab(1) as lab:
        (host,) = lab.hosts
        hosts = asdict(Hosts((host.address,), lab.user, str(lab.key), str(lab.known_hosts)))
        rounds = [fresh("outputs:both", hosts) for _ in range(ROUNDS)]
        host.wipe_home()
    ours, theirs = (median(each[who] for each in rounds) for who in ("ours", "theirs"))
    return [Metric("output_mb_per_s", SIZE / 1e6 / ours, SIZE / 1e6 / theirs, Bar(ratio_at_least=0.8))]


def both(hosts: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of both downloads of the same file, one after the other."""
    import skyward_core as sky

    @sky.function
    def write(size: int) -> str:
        import os
        from pathlib import Path

        with open("large.pt", "wb") as file:
            for _ in range(0, size, 1 << 20):
                file.write(os.urandom(1 << 20))
            file.truncate(size)
        return str(Path("large.pt").absolute())

    chosen = {"user": hosts["user"], "keys": hosts["key"], "known_hosts": hosts["known_hosts"], "config": False}
    options = sky.Options(console=False)
    image = sky.Image(workdir=PROJECT)
    with (
        tempfile.TemporaryDirectory() as folder,
        sky.Compute(provider=sky.SSH(list(hosts["addresses"]), **chosen), image=image, options=options) as compute,
    ):
        there = write(SIZE) >> compute
        taken = {"theirs": _scp(hosts, there, Path(folder) / "theirs")}
        begun = perf_counter()
        (path,) = compute.fetch("large.pt", to=Path(folder) / "ours")
        taken["ours"] = perf_counter() - begun
        if path.stat().st_size != SIZE:
            raise BenchError(f"{path.stat().st_size:,} bytes came of {SIZE:,}")
    return taken


def _scp(hosts: dict[str, Any], path: str, target: Path) -> float:
    options = ["-F", os.devnull, "-i", hosts["key"], "-o", f"UserKnownHostsFile={hosts['known_hosts']}"]
    begun = perf_counter()
    source = f"{hosts['user']}@{hosts['addresses'][0]}:{path}"
    done = subprocess.run(["scp", "-q", *options, source, str(target)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"scp: {done.stderr}")
    return perf_counter() - begun
