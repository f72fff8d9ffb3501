"""PyTorch and JAX between hosts: rendezvous, training, collectives over the network."""

from __future__ import annotations

import os
import runpy
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.plugins.plugin import Plugin
from tests.support.cli import EXAMPLES
from tests.support.fewer import without
from tests.support.pool_logs import last_run, log_of

from . import Lab
from .pools import listening, nothing_runs, pool, ssh, until


@sky.function
def reduced() -> list[Any]:
    import torch
    import torch.distributed as dist

    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return [total.item(), dist.get_backend(), os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"]]


@pytest.mark.proof("4 s of a processor")
def test_torch_example_trains_between_hosts(lab: Lab) -> None:
    """test_ssh_faults.py checks which addresses a collective uses."""
    pytest.importorskip("torch")
    example = runpy.run_path(str(EXAMPLES / "ddp.py"))["train"]
    hosts = lab.hosts[:2]
    provider = ssh(lab, hosts, python=sys.executable)  # which has the frameworks: hosts reach no package index
    image = sky.Image(env=without("torch._dynamo"))
    with pool(lab, provider, plugins=[sky.plugins.torch()], image=image) as compute:
        for total, backend, address, interface in reduced() @ compute:
            assert (total, backend, address) == (3.0, "gloo", hosts[0].address)
            assert interface != "lo"
        for host in hosts:
            assert listening(host) <= {host.address}
        results, logs = example(epochs=3) @ compute, compute.pool.archive.logs
        assert [result["rank"] for result in results] == [0, 1]
        assert len({result["weights"] for result in results}) == 1
    # Torn down, all that was printed is here.
    printed = (logs / "r000.out").read_text().splitlines()
    losses = [float(line.partition("loss=")[2].split()[0]) for line in printed]
    assert len(losses) == 3 and losses[-1] < losses[0] / 2
    assert losses[-1] == pytest.approx(results[0]["loss"], abs=1e-4)


@sky.function
def gathered() -> list[Any]:
    import jax
    from jax.experimental import multihost_utils

    ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
    return [jax.device_count(), ranks.tolist(), os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[0]]


@pytest.mark.proof("3 s of a processor")
def test_jax_ranks_meet_between_hosts(lab: Lab) -> None:
    pytest.importorskip("jax")
    provider = ssh(lab, lab.hosts[:2], python=sys.executable)
    with pool(lab, provider, plugins=[sky.plugins.jax()]) as compute:
        assert gathered() @ compute == [[2, [[0], [1]], lab.hosts[0].address]] * 2
        for host in lab.hosts[:2]:
            assert listening(host) <= {host.address}


# Launchers that a command starts on each node, and that find each other by the command's variables.
#
# `test_job_files.py` tests torchrun with a static rendezvous.


BY_TORCH = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print("met", dist.get_rank(), dist.get_world_size(), total.item(), os.environ["LOCAL_WORLD_SIZE"], flush=True)
dist.destroy_process_group()
"""
BY_ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.tensor([1.0 + accelerator.process_index]))
print("met", accelerator.process_index, accelerator.num_processes, total.item(), 1, flush=True)
accelerator.end_training()
"""
C10D = """
torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node 1 --rdzv_backend c10d --rdzv_id $SKYPILOT_TASK_ID \\
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT by_torch.py
"""
ACCELERATE = """
accelerate launch --cpu --num_machines $SKYPILOT_NUM_NODES --num_processes $SKYPILOT_NUM_NODES \\
    --machine_rank $SKYPILOT_NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT by_accelerate.py
"""


def meets(lab: Lab, command: str, **wishes: str) -> None:
    """Start one process from each node's launcher, and return the sum over both processes."""
    for name, text in (("by_torch.py", BY_TORCH), ("by_accelerate.py", BY_ACCELERATE)):
        Path(name).write_text(text)
    image = sky.Image(env=wishes)
    with pool(lab, ssh(lab, lab.hosts[:2], python=sys.executable), image=image) as compute:
        sky.shell(command) @ compute
        logs = [log_of(compute, last_run(compute), rank).decode() for rank in range(2)]
        met = sorted(line for log in logs for line in log.splitlines() if line.startswith("met"))
        assert met == ["met 0 2 3.0 1", "met 1 2 3.0 1"] and all("met" in log for log in logs)
    nothing_runs(lab)


@pytest.mark.proof("torch")
def test_torchrun_c10d_rendezvous_meets_between_hosts(lab: Lab) -> None:
    pytest.importorskip("torch")
    meets(lab, C10D, **without("torch._dynamo"))


@pytest.mark.proof("accelerate")
def test_accelerate_launch_meets_between_hosts(lab: Lab) -> None:
    pytest.importorskip("accelerate")
    meets(lab, ACCELERATE)


# Web pages of a head, found by a client that did not make the pool.


PORT, SECRET = 6789, "known-to-who-made-it"


@dataclass(frozen=True)
class Pages(Plugin):
    """Plugin with a web page on the head's loopback interface."""

    name: ClassVar[str] = "pages"

    def dashboard_at(self, pool: str) -> tuple[int, str]:
        return PORT, f"{SECRET}/status"


SERVER = """
import http.server, sys

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())
    do_HEAD = do_GET

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""


@pytest.mark.proof("1 s of a processor")
def test_dashboards_of_the_head_are_forwarded_to_the_client(lab: Lab) -> None:
    head = lab.hosts[0]
    (head.home / "serve.py").write_text(SERVER)
    with pool(lab, ssh(lab, [head]), plugins=[Pages()]) as compute:
        looking = Session()
        try:
            assert looking.dashboards(compute.name).result() == [], "nobody listens yet"
            ports = (PORT, 6006)
            serve = "python3 serve.py {} >/dev/null 2>&1 & echo $!"
            running = [int(head.run(serve.format(port))) for port in ports]
            until(lambda: len(looking.dashboards(compute.name).result()) == 2, "both")
            found = {each.name: each.address for each in looking.dashboards(compute.name).result()}
            assert found.keys() == {"pages", "tensorboard"}
            assert found["pages"].startswith("http://127.0.0.1:") and f":{PORT}/" not in found["pages"]
            for name, path in (("pages", f"/{SECRET}/status"), ("tensorboard", "/")):
                with urllib.request.urlopen(found[name], timeout=10) as page:
                    assert page.read().decode() == path
            for pid in running:
                head.run(f"kill {pid}")
            until(lambda: looking.dashboards(compute.name).result() == [], "they are gone")
        finally:
            looking.detach()
