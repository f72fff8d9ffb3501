# mypy: ignore-errors
"""Arguments of earlier API generations: each is honored, reported as ignored, or refused."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

import skyward_core as sky
from skyward_core import providers
from skyward_core.api import active_pool_and_operand_checks
from skyward_core.providers import provider_class


def test_specs_of_unsupported_providers_are_skipped():
    compute = sky.Compute(
        sky.Spec(provider=sky.VastAI(), accelerator="A100"),
        sky.Spec(provider=sky.AWS(region="us-east-1"), accelerator="A100"),
    )
    assert isinstance(compute.spec.provider, sky.AWS)
    assert compute._startup_notes == ["sky.VastAI() is skipped: renting machines of Vast.ai is not supported"]
    with pytest.raises(sky.UsageError, match="machines of RunPod"):
        sky.Compute(sky.Spec(provider=sky.RunPod()), sky.Spec(provider=sky.Verda()))


def test_unsupported_and_unknown_provider_names_are_rejected():
    with pytest.raises(sky.UsageError, match="renting machines of RunPod is not supported"):
        provider_class("runpod")
    with pytest.raises(sky.UsageError, match="no provider is called 'elsewhere'"):
        provider_class("elsewhere")


def test_deprecated_aws_arguments_work_or_warn():
    provider = sky.AWS(
        region="us-east-1", subnet_id="subnet-1", security_group_id="sg-1", username="me", ubuntu_version="24.04"
    )
    assert (provider.subnet, provider.security_group, provider.ssh_user) == ("subnet-1", "sg-1", "me")
    with pytest.warns(FutureWarning, match=r"sky\.AWS\(exclude_burstable=...\) is ignored") as caught:
        sky.AWS(exclude_burstable=True)
    assert caught[0].filename == __file__
    with pytest.raises(sky.UsageError, match=r"access_key_id: .* is not supported: credentials come from boto3"):
        sky.AWS(access_key_id="AKIA")
    with pytest.raises(TypeError):
        sky.AWS(regoin="x")


def test_deprecated_options_work_or_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = sky.Options(
            provision_timeout=600, bootstrap_timeout=300, retry_on_interruption=0, cluster=None, console="silent"
        )
        assert (options.start_timeout, options.cluster, options.console) == (900, True, False)
        assert sky.Options(provision_timeout=60).start_timeout == 300
        assert sky.Options(ready_timeout=50).start_timeout == 50
        assert sky.Options(checkpoints="s3://bucket/runs").checkpoint_store == "s3://bucket/runs"
        assert sky.Options(provision_timeout=600, start_timeout=20).start_timeout == 20
    with pytest.warns(FutureWarning, match=r"sky\.Options\(retry_on_interruption=...\) is ignored") as caught:
        sky.Options(retry_on_interruption=3)
    assert caught[0].filename == __file__
    with pytest.raises(sky.UsageError, match="are the same argument, with different values"):
        sky.Options(ready_timeout=3, start_timeout=4)
    with pytest.raises(TypeError):
        sky.Options(retry_on_interuption=3)
    compute = sky.Compute(options=sky.Options(worker=sky.Worker(concurrency=3)))
    assert compute.spec.worker.concurrency == 3
    assert compute.spec.options.worker is None
    with pytest.raises(sky.UsageError, match="worker: different values are given"):
        sky.Compute(worker=sky.Worker(), options=sky.Options(worker=sky.Worker(concurrency=3)))


def test_nodes_accept_arguments_of_three_api_generations():
    for four in (sky.Nodes(4), sky.Nodes(initial=4), sky.Nodes(desired=4, max=None), (4, 4)):
        assert sky.Compute(nodes=four).spec.nodes == 4
    assert sky.Compute(nodes=sky.Nodes(min=2, max=8)).spec.nodes == sky.Nodes(min=2, max=8)
    for grows in (lambda: sky.Nodes(initial=2, min=2, max=8), lambda: sky.Nodes(desired=2, max=8)):
        with pytest.raises(sky.UsageError, match=r"pools that grow or shrink .* nodes=sky\.Nodes\(min=2, max=8\)"):
            grows()
    with pytest.raises(sky.UsageError, match="pools that grow or shrink"):
        sky.Compute(nodes=(2, 8))


def test_worker_and_image_accept_arguments_of_three_api_generations():
    worker = sky.Worker(executor="auto", buffer=0, reuse_processes=True)
    assert (worker.executor, sky.Worker(executor="loky").executor) == ("process", "process")
    with pytest.warns(FutureWarning, match="buffer=...\\) is ignored"):
        sky.Worker(buffer=4)
    auto = sky.Worker(concurrency="auto")
    a100 = sky.accelerators.A100
    assert sky.Compute(worker=auto, accelerator=a100(count=4)).spec.concurrency == 4
    assert sky.Compute(worker=auto, accelerator=a100(mig="3g.40gb")).spec.concurrency == 2
    assert sky.Compute(worker=auto).spec.concurrency >= 1
    with pytest.raises(sky.UsageError, match='concurrency: "auto" requires'):
        sky.Compute(provider=sky.SSH(hosts=["h"]), worker=auto)
    assert sky.Image(python="auto", skyward_source="local").python is None
    with pytest.raises(sky.UsageError, match="shell_vars"):
        sky.Image(shell_vars={"A": "date"})


def test_compute_accepts_deprecated_arguments():
    image = sky.Image(env={"A": "1"})
    compute = sky.Compute(sky.Spec(sky.Local(), image=image, ttl=60, plugins=[sky.plugins.Torch()]), console=False)
    assert compute.spec.image == image
    assert (compute.spec.options.ttl, compute.spec.options.console) == (60, False)
    assert [plugin.name for plugin in compute.plugins] == ["torch"]
    assert sky.Compute(ttl=0).spec.options.ttl is None
    assert sky.Compute(volumes=[], ports=(), retry=None, delete_on_exit=True).spec.nodes == 1
    for refused in ({"volumes": ["v"]}, {"ports": [1]}, {"delete_on_exit": False}, {"url": "http://x"}):
        with pytest.raises(sky.UsageError, match="is not supported"):
            sky.Compute(**refused)
    with pytest.raises(TypeError, match=r"sky\.Compute has no argument 'nodse'; did you mean 'nodes'"):
        sky.Compute(nodse=3)
    with pytest.raises(sky.UsageError, match="disk_gb"):
        sky.Compute(provider=sky.Local(), disk_gb=50)
    rented = sky.Compute(provider=sky.AWS(region="us-east-1"), cpus=0.5, disk_gb=50, region="us-east-1")
    assert (rented.spec.wish.vcpus, rented.spec.provider.disk_gb) == (1, 50)


class Pool:
    def run_one(self, pending):
        return (self, pending.name)

    run_all = run_group = submit = run_one


@sky.function
def work():
    return 1


def test_library_name_as_operand_means_the_open_pool():
    with pytest.raises(sky.PoolError, match="no block is open"):
        work() >> sky
    outer, inner = Pool(), Pool()
    active_pool_and_operand_checks.push_pool(outer)
    active_pool_and_operand_checks.push_pool(inner)
    try:
        assert work() >> sky == (inner, "work")
        assert work() @ sky.sky == (inner, "work")
        assert (work() > sky) == (inner, "work")
        assert "2 blocks are open, and none in this thread" in str(call_from_another_thread())
    finally:
        active_pool_and_operand_checks.remove_pool(inner)
    assert call_from_another_thread() == (outer, "work")
    active_pool_and_operand_checks.remove_pool(outer)
    with pytest.raises(sky.PoolError, match="no block is open"):
        work() >> sky.sky


def call_from_another_thread():
    """Return the outcome of a call from another thread."""
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(lambda: work() >> sky)
        return done.exception() or done.result()


def test_deprecated_stream_is_head_and_info_names_work():
    @sky.stream
    def numbers(n):
        yield from range(n)

    assert numbers(3).streams
    assert list(numbers.local(3)) == [0, 1, 2]
    with pytest.raises(TypeError, match=r"has no yield. Use @function"):
        sky.stream(len)
    assert sky.is_head()
    assert sky.Info is sky.InstanceInfo
    assert not sky.is_head(sky.InstanceInfo(rank=1, world_size=2))
    received = []
    with sky.redirect_output(received.append) as (out, err):
        print("in", end="")
        assert out is err and isinstance(out, sky.CallbackWriter)
        with sky.redirect_output(lambda text: received.append(text.upper())):
            print("deeper", end="")
    print("out")
    assert received == ["in", "DEEPER"] or received == ["in", "", "DEEPER", ""]


POOLS = """
[providers.cheap]
type = "runpod"
cloud_type = "secure"

[providers.mine]
type = "aws"
region = "us-east-1"

[pools.train]
provider = "local"
nodes = 2
ttl = 60
provision_timeout = 600
selection = "cheapest"

[pools.train.image]
pip = ["numpy"]
env = { A = "1" }

[pools.train.worker]
concurrency = 2

[pools.train.plugins]
torch = { backend = "gloo" }
jax = true

[pools.my_cheap]
provider = "cheap"
accelerator = "A100:8"

[pools.rented]
provider = "mine"
accelerator = "T4"
max_hourly_cost = 3.0

[pools.grows]
nodes = [2, 8]

[pools.wrong]
nodse = 3

[pools.empty]
"""


def test_compute_name_selects_a_pool_table_of_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "skyward.toml").write_text("[pools.train]\nnodes = 7\nmax_hourly_cost = 9.0\n")
    folder = tmp_path / "work"
    folder.mkdir(mode=0o700)
    monkeypatch.chdir(folder)
    (folder / "skyward.toml").write_text(POOLS)
    with pytest.raises(sky.UsageError, match="has no offers to choose from by max_hourly_cost"):
        sky.Compute(name="train")
    (tmp_path / "home" / "skyward.toml").write_text("[pools.train]\nnodes = 7\n")
    (folder / "skyward.toml").write_text(POOLS.replace('selection = "cheapest"\n', ""))
    spec = sky.Compute(name="train").spec
    assert (spec.name, spec.nodes, spec.worker.concurrency, spec.image.env) == ("train", 2, 2, {"A": "1"})
    assert (spec.options.ttl, spec.options.start_timeout) == (60, 600)
    assert spec.plugins == (sky.plugins.torch(backend="gloo"), sky.plugins.jax())
    assert sky.Compute(provider=sky.Local(), name="train").spec.nodes == 1
    assert isinstance(sky.Compute(name="empty").spec.provider, sky.Local)
    rented = sky.Compute(name="rented").spec
    assert (rented.provider.region, rented.wish.max_hourly) == (("us-east-1",), 3.0)
    with pytest.raises(sky.UsageError, match="machines of RunPod"):
        sky.Compute(name="my_cheap")
    monkeypatch.setattr(providers, "provider_override", "local")
    monkeypatch.setattr(providers, "override_settings", {"hosts": "a,b"})
    with pytest.raises(sky.UsageError, match="provider local has no setting 'hosts'"):
        sky.Compute(name="my_cheap")
    monkeypatch.setattr(providers, "provider_override", "ssh")
    assert sky.Compute(name="my_cheap").spec.provider.hosts == ("a", "b")
    monkeypatch.setattr(providers, "provider_override", "local")
    monkeypatch.setattr(providers, "override_settings", {})
    cheap = sky.Compute(name="my_cheap")
    assert (cheap.spec.name, str(cheap.spec.accelerator)) == ("my-cheap", "A100:8")
    assert "replaces sky.RunPod(cloud_type='secure')" in cheap._startup_notes[0]
    for name, why in [
        (
            "tain",
            r"\[pools\.tain\] of a skyward\.toml, .* did you mean 'train'\? For a new pool give a provider: .*'tain'",
        ),
        ("wrong", r"\[pools\.wrong\] of skyward\.toml: unknown key 'nodse'; did you mean 'nodes'\?"),
        ("grows", "pools that grow or shrink"),
    ]:
        for more in ({}, {"options": sky.Options()}):
            with pytest.raises(sky.UsageError, match=why):
                sky.Compute(name=name, **more)
