"""The torch plugin: wheels, rendezvous variables, threads and interfaces."""

import os

import pytest

from skyward_core import plugins
from skyward_core.model.specs import Image, PoolSpec
from skyward_core.plugins.built_in.torch import FLIGHT_RECORDER_VARIABLES
from skyward_core.runtime import framework_rendezvous_and_thread_limits as framework_rendezvous_and_thread_limits
from skyward_core.runtime.framework_rendezvous_and_thread_limits import (
    find_interface,
    limit_machine_share,
    limit_threads,
)
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, Peer
from tests.support.plugin_gang import places, run_gang

GPU = "A100:8"
NO_CUDA = "MI300X"


def image_for(plugin, accelerator=None, image=None):
    return plugin.transform(image or Image(), PoolSpec(name="p", provider=None, accelerator=accelerator))


@pytest.mark.parametrize(
    ("parameters", "accelerator", "pip", "index"),
    [
        ({}, None, ("torch",), "cpu"),
        ({}, NO_CUDA, ("torch",), "cpu"),
        ({}, GPU, ("torch",), "cu128"),
        (
            {"cuda": "cu124", "version": "2.3.0", "vision": "0.18.0"},
            GPU,
            ("torch==2.3.0", "torchvision==0.18.0"),
            "cu124",
        ),
        ({"vision": "latest", "audio": "latest"}, GPU, ("torch", "torchvision", "torchaudio"), "cu128"),
        ({"version": ">=2.3"}, None, ("torch>=2.3",), "cpu"),
    ],
)
def test_torch_wheels_depend_on_the_accelerator(parameters, accelerator, pip, index):
    image = image_for(plugins.torch(**parameters), accelerator)
    assert image.pip == pip
    (given,) = image.pip_indexes
    assert given.url == f"https://download.pytorch.org/whl/{index}"
    assert given.packages == tuple(name.split("=")[0].rstrip("<>") for name in pip)


def test_torch_plugin_keeps_packages_of_the_image():
    image = image_for(plugins.torch(), image=Image(pip=("numpy", "torch==2.1"), env={"A": "1"}))
    assert image == Image(pip=("numpy", "torch==2.1"), env={"A": "1"})


def test_environment_variables_of_the_user_override_the_plugin():
    (report,) = run_gang(
        """
        from skyward_core.runtime.framework_rendezvous_and_thread_limits import set_permanent_variables as set_for_good
        set_for_good(info)
        print(json.dumps([os.environ[k] for k in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "MASTER_ADDR")]))
        """,
        places(2)[:1],
        OMP_NUM_THREADS="3",
        GLOO_SOCKET_IFNAME="eth7",
        MASTER_ADDR="192.0.2.1",
    )
    assert report == ["3", "eth7", "127.0.0.1"]


def test_cpu_threads_are_divided_among_ranks_of_one_machine(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)), raising=False)
    alone = (Peer(0, "10.0.0.1"), Peer(1, "10.0.0.2"))
    here = (Peer(0, "127.0.0.1"), Peer(1, "127.0.0.1"))
    for ranks, peers, threads in ((4, alone, "4"), (4, here, "2"), (64, here, "1")):
        monkeypatch.setattr("os.environ", {})
        limit_threads(InstanceInfo(ranks_per_node=ranks, peers=peers))
        assert os.environ["OMP_NUM_THREADS"] == threads


def test_task_process_is_limited_to_its_gpus_and_cpu_threads(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    limit_machine_share(1 << 20, "2,3")
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]) == ("2,3", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    limit_machine_share(1, "")
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"]) == ("2,3", "7")


def test_network_interface_of_an_address_is_found():
    assert find_interface("127.0.0.1") in ("lo", "lo0")
    assert find_interface("203.0.113.9") is None  # reserved for documentation: on no machine


@pytest.mark.parametrize(
    ("given", "set_to"),
    [
        ({}, {"TORCH_FR_BUFFER_SIZE": "2000"}),
        ({"TORCH_FR_BUFFER_SIZE": "7"}, {"TORCH_FR_BUFFER_SIZE": "7"}),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}),
    ],
)
def test_flight_recorder_is_enabled_unless_the_user_sets_it(given, set_to, monkeypatch):
    # The plugin sets a rank's variables for good, and this process goes on with other tests.
    data = {name: value for name, value in os.environ.items() if name not in FLIGHT_RECORDER_VARIABLES}
    monkeypatch.setattr(os, "environ", data | given)
    monkeypatch.setattr(framework_rendezvous_and_thread_limits, "_by_plugin", {})
    with plugins.torch(init=False).around_process(places(2, 1)[0]):
        assert {name: os.environ[name] for name in FLIGHT_RECORDER_VARIABLES if name in os.environ} == set_to
