"""PyTorch and JAX between hosts: rendezvous, training, collectives over the network."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

import pytest

import skyward_core as sky
from tests.support.cli import EXAMPLES
from tests.support.fewer import without

from . import Lab
from .pools import listening, pool, ssh


@sky.function
def reduced() -> list[Any]:
    import torch
    import torch.distributed as dist

    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return [total.item(), dist.get_backend(), os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"]]


@pytest.mark.proof("4 s of a processor")
def test_the_torch_example_between_hosts(lab: Lab) -> None:
    """That hosts reach each other in a collective, and where, is seen in test_ssh_power.py."""
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
def test_jax_between_hosts(lab: Lab) -> None:
    pytest.importorskip("jax")
    provider = ssh(lab, lab.hosts[:2], python=sys.executable)
    with pool(lab, provider, plugins=[sky.plugins.jax()]) as compute:
        assert gathered() @ compute == [[2, [[0], [1]], lab.hosts[0].address]] * 2
        for host in lab.hosts[:2]:
            assert listening(host) <= {host.address}
