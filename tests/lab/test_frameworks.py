"""PyTorch and JAX between hosts: rendezvous and collectives over the network."""

from __future__ import annotations

import os
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.plugins.plugin import Plugin
from tests.support.fewer import without
from tests.support.pool_logs import last_run, log_of

from . import Lab
from .pools import listening, nothing_runs, pool, ssh, until


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


BY_TORCH = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print("met", dist.get_rank(), dist.get_world_size(), total.item(), os.environ["LOCAL_WORLD_SIZE"], flush=True)
dist.destroy_process_group()
"""
C10D = """
torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node 1 --rdzv_backend c10d --rdzv_id $SKYPILOT_TASK_ID \\
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT by_torch.py
"""


@pytest.mark.proof("torch")
def test_torchrun_c10d_rendezvous_meets_between_hosts(lab: Lab) -> None:
    pytest.importorskip("torch")
    Path("by_torch.py").write_text(BY_TORCH)
    image = sky.Image(env=without("torch._dynamo"))
    with pool(lab, ssh(lab, lab.hosts[:2], python=sys.executable), image=image) as compute:
        sky.shell(C10D) @ compute
        logs = [log_of(compute, last_run(compute), rank).decode() for rank in range(2)]
        met = sorted(line for log in logs for line in log.splitlines() if line.startswith("met"))
        assert met == ["met 0 2 3.0 1", "met 1 2 3.0 1"] and all("met" in log for log in logs)
    nothing_runs(lab)


JOB = """
num_nodes: 2
resources: {accelerators: A100:1}
workdir: .
file_mounts:
  ~/there/word.txt: word.txt
setup: mkdir -p made && cp by_torch.py made
run: |
  cd made
  torchrun --nnodes=$SKYPILOT_NUM_NODES --node_rank=$SKYPILOT_NODE_RANK --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1) --master_port=8008 by_torch.py
  if [ "${SKYPILOT_NODE_RANK}" == "0" ]; then echo "only the head: $(cat ~/there/word.txt)"; fi
"""


@pytest.mark.proof("torch")
def test_torchrun_job_of_the_documentation_meets_between_hosts(lab: Lab) -> None:
    pytest.importorskip("torch")
    for name, text in (("by_torch.py", BY_TORCH), ("job.yaml", JOB), ("word.txt", "brought\n")):
        Path(name).write_text(text)
    with pool(
        lab, ssh(lab, lab.hosts[:2], python=sys.executable), image=sky.Image(env=without("torch._dynamo"))
    ) as compute:
        sky.Task.from_yaml("job.yaml").run_on(compute)
        logs = [log_of(compute, last_run(compute), rank).decode().splitlines() for rank in range(2)]
        met = [[line for line in log if line.startswith(("met", "only"))] for log in logs]
        assert met == [["met 0 2 3.0 1", "only the head: brought"], ["met 1 2 3.0 1"]]


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
