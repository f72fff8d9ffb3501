# mypy: ignore-errors
"""Statements of the seed documents, each with its test and verdict.

Statements that need a framework are tested in ``tests/frameworks``; all others here, on one pool of two nodes. A
verdict is "same", "ours instead" (a difference that ``docs/upgrade/from-skyward.md`` describes), or "not, because"
(with the missing requirement).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import skyward_core as sky
from skyward_core.api import older_api_names

FRAMEWORKS = Path(__file__).parents[1] / "frameworks"


class Row(NamedTuple):
    """Statement of a seed document.

    Attributes:
        where: Seed, and number of its block.
        statement: Shortened text of the statement.
        test: Function of this file, or file and name of a test in ``tests/frameworks``.
        verdict: Verdict on the statement.
    """

    where: str
    statement: str
    test: str
    verdict: str


GUIDE, SEEDS = (
    "test_older_scripts.py::test_older_torch_and_trainer_script_runs",
    "test_older_scripts.py::test_older_torch_script_with_both_samplers_runs",
)
MESH = "test_older_scripts.py::test_older_jax_and_keras_script_runs"
PLACES = "test_older_scripts.py::test_older_script_with_places_shards_and_printing_ranks_runs"
TENSORFLOW = "test_tensorflow.py::test_older_tensorflow_script_trains_one_model_on_all_ranks"
ROWS = [
    Row("000.1", "Compute(provider=AWS(), nodes=4, accelerator=A100(), plugins=[plugins.torch()])", SEEDS, "same"),
    Row("000.1", "dist.is_initialized() is True in train() @ compute", SEEDS, "same"),
    Row("000.2", "plugins=[plugins.jax(), plugins.keras(backend='jax')]", "plugins_keep_their_names", "same"),
    Row("000.3", "x, y = shard(x_full, y_full, shuffle=True, seed=42); x[i] corresponds to y[i]",
        "shards_of_two_lists_are_aligned", "same"),
    Row("000.4", "info.node, info.total_nodes, info.is_head", "instance_info_places_each_node", "same"),
    Row("000.4", "info.head_addr, info.head_port, info.accelerators, info.peers",
        "instance_info_places_each_node", "same"),
    Row("000.5", "@function over @stdout(only='head')", PLACES, "same"),
    Row("000.5", "only=lambda info: info.node < 2", PLACES, "same"),
    Row("000.5", "@silent", PLACES, "same"),
    Row("000.6", "Options(cluster=False)", PLACES, "same"),
    Row("000", "MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK", "broadcast_has_distributed_variables", "same"),
    Row("000", "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID, JAX_LOCAL_DEVICE_COUNT", MESH, "same"),
    Row("000", "plugins.huggingface(token='...')", SEEDS, "same"),
    Row("001.1", "DDP on cuda(), nccl, on 4 nodes with A100", SEEDS, "not, because no GPU: gloo, and DDP by hand"),
    Row("001.1", "DistributedSampler(dataset, num_replicas=world_size, rank=rank); set_epoch", SEEDS, "same"),
    Row("001.2", "plugins.torch(vision='latest', audio='latest')", "torch_plugin_parameters_set_the_packages", "same"),
    Row("001.3", "plugins.torch(backend='gloo') without an accelerator",
        "torch_plugin_parameters_set_the_packages", "same"),
    Row("001.4", "plugins=[plugins.torch(), plugins.huggingface(token='hf_xxx')]", SEEDS, "same"),
    Row("001", "version='2.3.0', vision='0.18.0', cuda='cu124'", "torch_plugin_parameters_set_the_packages", "same"),
    Row("001", "a pool of one node: no process group", "task_has_variables_of_a_world_of_one", "same"),
    Row("001", "LOCAL_RANK is always 0, as a process is a node", "broadcast_has_distributed_variables", "ours instead"),
    Row("002.1", "@compute; ComputePool(provider, nodes, accelerator=NVIDIA.A100, image=Image(...))", GUIDE, "same"),
    Row("002.1", "if dist.is_initialized(): DDP(model), with no plugin named", GUIDE, "same"),
    Row("002.1", "sampler = sky.DistributedSampler(dataset, shuffle=True)", GUIDE, "same"),
    Row("002", "Skyward automatically sets MASTER_ADDR ... NODE_RANK", "broadcast_has_distributed_variables", "same"),
    Row("002.2", "@integrations.torch(backend='nccl') over @compute", GUIDE, "same"),
    Row("002.3", "@integrations.keras(backend='jax'): one model, sharded data", MESH, "same"),
    Row("002.3", "keras.datasets.mnist.load_data()", MESH, "not, because nothing is downloaded: made-up pixels"),
    Row("002.4", "@integrations.keras(backend='tensorflow')", TENSORFLOW, "same"),
    Row("002.5", "@integrations.jax(); jax.pmap; ComputePool(pip=['jax[cuda12]'])", MESH, "same"),
    Row("002", "JAX's four variables", MESH, "same"),
    Row("002.6", "@integrations.transformers(backend='nccl'); Trainer(...).train(); evaluate()", GUIDE, "same"),
    Row("002.6", "fp16=True, load_dataset('imdb')", GUIDE, "not, because no GPU and no download: files of its own"),
    Row("002.7", "local_data = shard(full_dataset); sum(local_data)", "instance_info_places_each_node", "same"),
    Row("002.8", "shard(x_full, y_full, shuffle=True, seed=42)", "shards_of_two_lists_are_aligned", "same"),
    Row("002.9", "shard(x_full, shuffle=True, seed=42), the same again", "shards_of_two_lists_are_aligned", "same"),
    Row("002.10", "DistributedSampler, DataLoader, set_epoch", GUIDE, "same"),
    Row("002.11", "if info.is_head: save_checkpoint; return {'node': ..., 'is_head': ...}",
        "instance_info_places_each_node", "same"),
    Row("002.12", "Accelerator.NVIDIA.A100(mig='3g.40gb'): two workers per GPU",
        "mig_profiles_set_the_number_of_workers", "same"),
    Row("002.13", "profiles 3g.40gb, 2g.20gb, 1g.10gb: 2, 3 and 7 workers",
        "mig_profiles_set_the_number_of_workers", "same"),
    Row("002.14", "dist.barrier() before what the head does", SEEDS, "same"),
    Row("002.15", "os.environ['NCCL_DEBUG'] = 'INFO' in a function", "image_env_sets_a_variable", "same"),
    Row("002.16", "if not dist.is_initialized(): model = MyModel()", GUIDE, "same"),
    Row("003.1", "@compute outermost, @integrations.torch below", GUIDE, "same"),
    Row("003.2", "model = DDP(model) if dist.is_initialized()", GUIDE, "same"),
    Row("003.3", "DistributedSampler of torch, which reads the process group", SEEDS, "same"),
    Row("003.4", "dist.all_reduce(..., op=ReduceOp.SUM)", GUIDE, "same"),
    Row("003.5", "uv run python examples/guides/06_pytorch_distributed.py", "upgrade_page_names_the_older_import",
        "not, because `import skyward` there is another package's: run it by `python -m skyward_core`"),
]  # fmt: skip


@pytest.fixture(scope="module")
def pool():
    with pytest.warns(FutureWarning), sky.ComputePool(provider=sky.Local(), nodes=2, pip=[], env={"A": "1"}) as pool:
        yield pool


def of_this_file() -> set[str]:
    return {row.test for row in ROWS if "::" not in row.test}


def test_every_seed_statement_has_a_test() -> None:
    for row in ROWS:
        assert row.verdict.startswith(("same", "ours instead", "not, because")), row
        if "::" in row.test:
            file, name = row.test.split("::")
            assert f"def {name}(" in (FRAMEWORKS / file).read_text(), row
        else:
            assert f"test_{row.test}" in globals(), row
    assert {name.removeprefix("test_") for name in globals() if name.startswith("test_")} - of_this_file() == {
        "every_seed_statement_has_a_test"
    }
    assert {row.where[:3] for row in ROWS} == {"000", "001", "002", "003"}


def places(values):
    info = sky.instance_info()
    mine = sky.shard(values)
    items = [info.node, info.total_nodes, info.is_head, info.accelerators, len(info.peers)]
    return [*items, sum(mine), bool(info.head_addr), info.head_port > 0]


def test_instance_info_places_each_node(pool) -> None:
    found = sky.function(places)(list(range(10))) @ pool
    assert [each[:3] for each in found] == [[0, 2, True], [1, 2, False]]
    assert [each[4:] for each in found] == [[2, 20, True, True], [2, 25, True, True]]


def shards(x, y):
    first, second = sky.shard(x, y, shuffle=True, seed=42)
    assert first == sky.shard(x, shuffle=True, seed=42)
    return [[one, other] for one, other in zip(first, second, strict=True)]


def test_shards_of_two_lists_are_aligned(pool) -> None:
    numbers = list(range(9))
    found = sky.function(shards)(numbers, [str(each) for each in numbers]) @ pool
    assert all(str(one) == other for each in found for one, other in each)
    assert sorted(one for each in found for one, _ in each) == numbers
    assert [len(each) for each in found] == [5, 4]


def set_variables():
    import os

    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    return [os.environ.get(name) for name in names] + [bool(os.environ.get("MASTER_ADDR")), "MASTER_PORT" in os.environ]


def test_broadcast_has_distributed_variables(pool) -> None:
    assert sky.function(set_variables)() @ pool == [
        ["2", str(rank), "0", "1", str(rank), True, True] for rank in (0, 1)
    ]


def test_task_has_variables_of_a_world_of_one(pool) -> None:
    assert sky.function(set_variables)() >> pool == ["1", "0", "0", "1", "0", True, True]


def own_variable():
    import os

    os.environ["NCCL_DEBUG"] = "INFO"
    return [os.environ["NCCL_DEBUG"], os.environ["A"]]


def test_image_env_sets_a_variable(pool) -> None:
    assert sky.function(own_variable)() @ pool == [["INFO", "1"]] * 2


def test_plugins_keep_their_names() -> None:
    made = [sky.plugins.jax(), sky.plugins.keras(backend="jax")]
    spec = sky.Compute(provider=sky.Local(), nodes=2, plugins=made).spec
    assert [each.name for each in spec.plugins] == ["jax", "keras"]


def test_torch_plugin_parameters_set_the_packages() -> None:
    rented = sky.Compute(provider=sky.AWS(region="r"), nodes=2, accelerator=sky.accelerators.A100()).spec
    made = sky.plugins.torch(version="2.3.0", vision="0.18.0", audio="latest", cuda="cu124")
    image = made.transform(sky.Image(), rented)
    assert image.pip == ("torch==2.3.0", "torchvision==0.18.0", "torchaudio")
    assert image.pip_indexes[0].url.endswith("/whl/cu124")
    plain = sky.Compute(provider=sky.AWS(region="r"), nodes=4).spec
    assert sky.plugins.torch(backend="gloo").transform(sky.Image(), plain).pip_indexes[0].url.endswith("/whl/cpu")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mig_profiles_set_the_number_of_workers() -> None:
    for profile, workers in (("3g.40gb", 2), ("2g.20gb", 3), ("1g.10gb", 7)):
        made = older_api_names.ComputePool(accelerator=sky.Accelerator.NVIDIA.A100(mig=profile, memory="80GB"))
        assert made.spec.ranks_per_node == workers


def test_upgrade_page_names_the_older_import() -> None:
    page = (Path(__file__).parents[2] / "docs" / "upgrade" / "from-skyward.md").read_text()
    assert re.search(r"`import skyward as sky` finds this library when a script is run by", page)
