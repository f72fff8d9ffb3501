# mypy: ignore-errors
"""Names of three generations of the API, each available as an attribute."""

from __future__ import annotations

import pickle

import pytest

import skyward_core as sky
from skyward_core import providers
from skyward_core.plugins.built_in import accelerate
from skyward_core.plugins.built_in.torch import Automatic
from skyward_core.plugins.plugin import enter_late
from skyward_core.runtime import framework_rendezvous_and_thread_limits, instance_info_and_attempt, metric_logging
from tests.compat.upstream import ACCELERATORS


def test_every_older_accelerator_name_is_available():
    missing = [name for name in ACCELERATORS if not hasattr(sky.accelerators, name)]
    assert missing == []
    made = {name: getattr(sky.accelerators, name)() for name in ACCELERATORS if name != "Custom"}
    assert made["RTX_4070TISUPER"] == made["RTX_4070_Ti_Super"] == sky.accelerators.RTX_4070_Ti_SUPER()
    assert made["GAUDI2"].name == "Gaudi2" and made["TRAINIUM1"].name == "Trainium"
    assert made["B100"].has_cuda and not made["RX_7900XTX"].has_cuda
    assert all(sky.accelerators.parse(str(each)) == each for each in made.values())
    with pytest.raises(AttributeError, match="did you mean"):
        _ = sky.accelerators.A10O


def test_fractional_accelerator_is_parsed_and_refused_by_aws():
    half = sky.accelerators.L4(count=0.5)
    assert (half.count, half.part, half.slices, str(half)) == (1, 0.5, 1, "L4:0.5")
    assert sky.accelerators.parse("l4:0.5") == half
    assert sky.accelerators.L4(2.0) == sky.accelerators.L4(count=2)
    assert half.with_count(4) == sky.accelerators.L4(count=4)
    assert sky.Compute(provider=sky.Local(), accelerator=half).spec.accelerator == half
    with pytest.raises(sky.UsageError, match=r"aws rents whole accelerators, and L4:0\.5 is a part of one"):
        sky.Compute(provider=sky.AWS(region="us-east-1"), accelerator=half)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(sky.UsageError, match="not a number of L4"):
            sky.accelerators.L4(count=wrong)


def test_accelerators_are_made_by_name_and_as_custom_ones():
    assert sky.Accelerator("A100", 4) == sky.accelerators.A100(count=4)
    assert sky.Accelerator.from_name("h100", count=8, memory="80GB") == sky.accelerators.H100(count=8, memory="80GB")
    assert sky.accelerators.Accelerator.from_name("T4") == sky.accelerators.T4()
    own = sky.accelerators.Custom("My-GPU", memory="48GB", count=2, cuda_min="12.0", cuda_max="13.1")
    assert (own.name, own.count, own.min_memory_gb, own.has_cuda) == ("My-GPU", 2, 48, True)
    assert pickle.loads(pickle.dumps(own)) == own
    assert not sky.accelerators.Custom("My-TPU").has_cuda
    with pytest.warns(FutureWarning, match="form_factor=...\\) is ignored"):
        assert sky.accelerators.H100(form_factor="SXM") == sky.accelerators.H100()


def test_instance_info_has_the_attributes_of_three_generations():
    info = sky.InstanceInfo(
        node=1, total_nodes=2, rank=3, world_size=4, local_rank=1, ranks_per_node=2, head_addr="10.0.0.1",
        peers=(instance_info_and_attempt.Peer(0, "10.0.0.1"), instance_info_and_attempt.Peer(1, "10.0.0.2")),
        pool="p", worker=1,
        workers_per_rank=3,
        network=instance_info_and_attempt.Network("eth0", 10.0),
    )  # fmt: skip
    assert (info.job_id, info.compute, info.nodes, info.head, info.host) == ("p", "p", 2, "10.0.0.1", "10.0.0.2")
    assert (info.workers_per_node, info.total_workers, info.global_worker_index) == (6, 12, 10)
    assert info.peers[1]["private_ip"] == "10.0.0.2" and info.network["bandwidth_gbps"] == 10.0
    assert sky.InstanceInfo.current() is None
    with instance_info_and_attempt.using(info):
        assert sky.Info.current() == info


def test_accelerate_plugin_sets_the_variables_of_its_configuration():
    config = {
        "mixed_precision": "fp16",
        "distributed_type": "FSDP",
        "fsdp": {"sharding_strategy": "FULL_SHARD", "sync_module_states": True},
        "debug": True,
    }
    plugin = sky.plugins.accelerate(config=config)
    assert plugin == sky.plugins.Accelerate(config) or plugin.config == sky.plugins.Accelerate(config).config
    assert plugin._environment() == {
        "ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
        "FSDP_SYNC_MODULE_STATES": "true", "ACCELERATE_DEBUG_MODE": "true",
    }  # fmt: skip
    answer = sky.plugins.accelerate(config={"deepspeed_config": {"zero_stage": 2, "gradient_clipping": 1.0}})
    assert answer._environment() == {
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2", "ACCELERATE_DEEPSPEED_GRADIENT_CLIPPING": "1.0",
        "ACCELERATE_USE_DEEPSPEED": "true",
    }  # fmt: skip
    for wrong, why in [
        ({"mixed_precison": "no"}, "unknown keys .*: mixed_precison"),
        ({"distributed_type": "FSDP"}, "requires a table 'fsdp'"),
        ({"fsdp": {}, "fsdp_config": {}}, "must be one table"),
        ({"deepspeed": {"zero_stage": 2, "train_batch_size": 8}}, "does not know: train_batch_size"),
    ]:
        with pytest.raises(sky.UsageError, match=why):
            accelerate.read_config(wrong)
    with pytest.warns(FutureWarning, match="num_processes=...\\) is ignored: the pool determines the ranks"):
        accelerate.read_config({"num_processes": 2})


def test_plugin_that_joins_all_ranks_refuses_a_single_call(monkeypatch):
    monkeypatch.setattr(framework_rendezvous_and_thread_limits, "_is_gang_call", False)
    with (
        instance_info_and_attempt.using(sky.InstanceInfo(total_nodes=2, world_size=2, pool="p")),
        pytest.raises(sky.UsageError, match=r"plugin shared joins all 2 ranks, .* this call runs on one rank"),
    ):
        enter_late((sky.plugins.shared(),))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torch_plugin_decorates_only_functions_without_own_group():
    def trains():
        import torch.distributed as dist

        return dist.is_initialized()

    made = Automatic()
    assert made.decorate(trains) is not trains
    assert made.decorate(len) is len
    brings = sky.integrations.torch(backend="gloo")(trains)
    assert made.decorate(brings) is brings
    quiet = sky.silent(brings)
    assert made.decorate(quiet) is quiet


def test_stdout_decorator_lets_several_ranks_print(capsys):
    @sky.stdout(only=[1, 2])
    def speak():
        print("heard")

    for rank in range(3):
        with instance_info_and_attempt.using(sky.InstanceInfo(rank=rank, world_size=3)):
            speak()
    assert capsys.readouterr().out == "heard\n" * 2
    with pytest.raises(TypeError, match="one rank index or several"):
        sky.stderr(only=[1, "head"])


def test_shard_takes_the_part_of_another_node():
    assert sky.shard(list(range(10)), node=1, total_nodes=3) == [1, 4, 7]
    assert sky.shard(list(range(10)), shuffle=True, seed=None) == sky.shard(list(range(10)), shuffle=True, seed=0)
    with pytest.raises(ValueError, match="has no part 3"):
        sky.shard([1, 2], node=3)


def test_jax_plugin_accepts_older_cuda_name():
    assert sky.plugins.jax(cuda="cu124").cuda == "cuda12"
    assert sky.plugins.Jax(cuda="cuda13").cuda == "cuda13"


def test_instance_info_names_accelerators_and_peers_of_three_generations():
    info = sky.InstanceInfo(
        rank=1,
        node=1,
        total_nodes=2,
        world_size=2,
        peers=(instance_info_and_attempt.Peer(0, "10.0.0.1"), instance_info_and_attempt.Peer(1, "10.0.0.2", (7,))),
        accelerator="NVIDIA A100-SXM4-40GB",
        accelerators=2,
        network=instance_info_and_attempt.Network("eth0"),
    )
    for seen in (info, pickle.loads(pickle.dumps(info)), sky.InstanceInfo.from_json(info.to_json())):
        gpu = seen.accelerator
        assert gpu == "NVIDIA A100-SXM4-40GB" and "A100" in gpu and gpu[:6] == "NVIDIA"
        assert (gpu["type"], gpu["count"], gpu["memory_gb"], gpu["is_trainium"]) == ("A100", 2, 40.0, False)
        assert (gpu.name, gpu.type, gpu.memory, gpu.memory_gb) == ("A100", "A100", "40GB", 40.0)
        assert gpu.get("vendor", "?") == "?" and gpu.get("type") == "A100"
        assert ",".join(seen.peers) == "10.0.0.1,10.0.0.2" and seen.peers.index(seen.host) == seen.rank
        assert f"{seen.peers[1]}:{seen.peers[1].ports[0]}" == "10.0.0.2:7"
        assert seen.peers[1].get("private_ip") == seen.peers[1]["address"] == seen.peers[1].address
        assert seen.peers[0].get("zone") is None and {seen.peers[0]: 1}["10.0.0.1"] == 1
        assert (seen.network.get("interface"), seen.network.get("bandwidth_gbps", 1.0)) == ("eth0", 1.0)
    none = sky.InstanceInfo().accelerator
    assert not none and (none["type"], none["count"], none.get("memory_gb"), none.memory) == ("", 0, None, "")


@pytest.mark.parametrize(
    ("driver_name", "model", "memory"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 80),
        ("Tesla T4", "T4", 16),
        ("NVIDIA GeForce RTX 4090", "RTX-4090", 24),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada", 48),
        ("NVIDIA L4, NVIDIA T4", "L4", 24),
        ("Some GPU 9", "Some GPU 9", None),
    ],
)
def test_accelerator_model_of_a_driver_name_is_that_of_the_catalogue(driver_name, model, memory):
    found = instance_info_and_attempt.AcceleratorModel(driver_name, 1)
    assert (found.name, found.memory_gb) == (model, memory)


def test_call_options_of_the_newest_generation_are_warned_about():
    with pytest.warns(FutureWarning, match=r"sky.function\(retry=...\) is ignored: .* starts failed calls again"):
        again = sky.function(retry=lambda why, attempt: attempt < 3)(abs)
    with pytest.warns(FutureWarning, match=r"queue_timeout=...\) is ignored: the time in the queue is not limited"):
        call = again(-1).with_queue_timeout(5)
    assert call.with_retry(None).local() == 1
    with pytest.raises(TypeError, match=r"sky.function has no argument 'retries'; did you mean 'retry'"):
        sky.function(retries=3)
    with pytest.warns(FutureWarning, match=r"sky.Compute\(retry=...\) is ignored"):
        sky.Compute(provider=sky.Local(), retry=lambda why, attempt: True)
    group = (again(-1) & again(-2)).with_timeout(3)
    assert [item.timeout for item in group.items] == [3, 3] and group.ordered
    with pytest.raises(ValueError, match=r"more than 0 seconds"):
        group.with_timeout(0)


def test_compute_pool_accepts_options_as_keyword_arguments():
    with pytest.warns(FutureWarning):
        pool = sky.ComputePool(provider=sky.Local(), provision_timeout=600, logging=False, nodes=1)
    assert pool.spec.options.start_timeout == 600


def test_import_of_a_missing_older_name_explains_its_absence():
    with pytest.raises(ImportError, match=r"cannot import 'Volume' from 'skyward_core'\. .* are not mounted"):
        from skyward_core import Volume  # noqa: F401
    with pytest.raises(ImportError, match=r"cannot import 'cuml' .* with sky.Image"):
        from skyward_core.plugins import cuml  # noqa: F401
    with pytest.raises(ImportError, match=r"cannot import name 'nothing' from"):
        from skyward_core import nothing  # noqa: F401
    assert not hasattr(sky, "Volume") and not hasattr(sky.plugins, "mps")


def test_aws_credentials_are_refused_unless_another_provider_is_used(monkeypatch):
    with pytest.raises(sky.SpecError, match=r"access_key_id=...\) is not supported: credentials come from boto3"):
        sky.AWS(access_key_id="AKIA", secret_access_key="s")
    monkeypatch.setattr(providers, "provider_override", "local")
    with pytest.warns(FutureWarning, match=r"is ignored: --provider local serves instead"):
        made = sky.AWS(
            access_key_id="AKIA", secret_access_key="s", instance_profile_arn="auto", security_group_id="sg-1"
        )
    assert sky.Compute(provider=made).spec.provider.name == "local"


def test_compute_attached_names_missing_pool_and_wrong_arguments():
    with pytest.raises(sky.PoolError, match=r"no pool named 'elsewhere' is up"):
        sky.Compute.attached("elsewhere", console=True)
    with pytest.raises(sky.SpecError, match=r"database=...\) is not supported: there is no daemon"):
        sky.Compute.attached("elsewhere", database="x.db")
    with pytest.raises(TypeError, match=r"sky.Compute.attached has no argument 'port'"):
        sky.Compute.attached("elsewhere", port=1)


def test_plugin_built_of_functions_has_its_bootstrap_commands():
    mine = sky.plugins.Plugin.create("mine").with_bootstrap(lambda cluster: ("true", ["echo a", ("echo b",)]))
    spec = sky.Compute(
        provider=sky.Local(), plugins=[mine, sky.plugins.around_process("other", lambda info: None)]
    ).spec
    assert mine.bootstrap(spec) == ["true", "echo a", "echo b"]
    with pytest.raises(sky.UsageError, match=r"with_launcher is not supported"):
        mine.with_launcher(lambda command, context: command)
    with pytest.raises(sky.UsageError, match=r"must be a shell command as text, got <"):
        mine.with_bootstrap(lambda cluster: (lambda: 1,)).bootstrap(spec)


def test_options_add_up_the_older_start_timeouts():
    assert sky.Options(provision_timeout=900, ssh_timeout=240, worker_timeout=180).start_timeout == 1320
    both = sky.Options(provision_timeout=900, ssh_timeout=240, worker_timeout=180, ready_timeout=900)
    assert both.start_timeout == 900, "the whole counts, whatever its parts may take"
    assert sky.Options(ready_timeout=None, provision_timeout=400).start_timeout == 400


def test_names_of_pending_calls_are_types():
    assert sky.Pending is sky.Streaming is sky.PendingFunction
    assert sky.Group is sky.PendingFunctionGroup is sky.PendingGroup
    assert sky.TaskFailedError is sky.RunError


def test_older_configuration_values_compare_pickle_and_print():
    one, same = sky.HealthChecker(abs, interval=5), sky.HealthChecker(abs, interval=5)
    assert one == same and hash(one) == hash(same) and one != sky.LogConfig(abs, interval=5)
    assert pickle.loads(pickle.dumps(one)) == one and repr(sky.LogConfig(level="x")) == "LogConfig(level=…)"
    assert sky.DockerImage("nvidia/cuda") == "nvidia/cuda" and sky.containers.ubuntu("24.04") == "24.04"
    assert isinstance(sky.metrics.GPU(index=0), sky.MetricSpec)


def test_emit_prints_a_line_and_logs_its_metrics(capsys, monkeypatch):
    logged = []
    monkeypatch.setattr(metric_logging, "log", lambda **numbers: logged.append(numbers))
    sky.emit("epoch", {"loss": 0.5, "n": 3, "best": True, "note": "ok"})
    sky.emit("lr", 0.1)
    sky.emit("saved")
    assert logged == [{"epoch.loss": 0.5, "epoch.n": 3}, {"lr": 0.1}]
    message = 'epoch {"loss": 0.5, "n": 3, "best": true, "note": "ok"}\nlr 0.1\nsaved\n'
    assert capsys.readouterr().out == message


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mig_profile_of_an_accelerator_sets_the_ranks_per_node():
    for profile, workers in (("3g.40gb", 2), ("2g.20gb", 3), ("1g.10gb", 7)):
        pool = sky.ComputePool(accelerator=sky.Accelerator.NVIDIA.A100(mig=profile, memory="80GB"))
        assert pool.spec.ranks_per_node == workers
