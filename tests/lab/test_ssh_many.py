"""Many hosts, and few file descriptors on the client."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

from .conftest import MakeLab
from .pools import Client

WANTED = 18  # more than the 16 that are seen to at once, and all that two cores have time for
FEW = 6  # but for proofs
MEMORY = 120 << 20  # bytes for one host: its sshd, an agent, a rank, and the rank that is started ahead


def how_many() -> int:
    """Of proofs: 18 hosts; 128 on a machine of eight cores; fewer where the memory does not take them."""
    cores = len(os.sched_getaffinity(0))
    meminfo = Path("/proc/meminfo").read_text()
    free = int(meminfo.partition("MemAvailable:")[2].split()[0]) << 10
    return max(4, min(128 if cores >= 8 else WANTED, free // MEMORY))


def test_many_hosts_come_up_answer_and_go_with_few_descriptors(make_lab: MakeLab, proofs: bool) -> None:
    count = how_many() if proofs else FEW
    if proofs and count < WANTED:
        warnings.warn(f"this machine has the memory for {count} hosts, not for {WANTED}", stacklevel=1)
    lab = make_lab(count)
    descriptors = min(256, 24 + 3 * count)  # an idle client has 11, and each host costs it 2
    with Client(
        lab,
        f"""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))
        @sky.function
        def where(word):
            import socket
            return word, socket.gethostname(), sky.instance_info().rank
        quiet["start_timeout"] = 300.0
        with sky.Compute(provider=ssh, options=sky.Options(**quiet)) as compute:
            for word in ("first", "second"):
                values = where(word) @ compute
                assert [(said, rank) for said, _, rank in values] == [(word, r) for r in range({count})], values
            names = [name for _, name, _ in values]
        print(json.dumps([names, compute.receipt.to_json()]), flush=True)
        """,
    ) as client:
        out, err = client.process.communicate(timeout=300)
    assert client.process.returncode == 0, err
    names, receipt = json.loads(out)
    assert names == [host.name for host in lab.hosts]
    assert receipt["created"] == count and len(receipt["gone"]) == count and not receipt["unaccounted"]
