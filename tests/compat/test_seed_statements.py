"""Statements of the seed documents, each with its test and verdict.

A verdict is "same", "ours instead" (a difference that ``docs/upgrade/from-skyward.md`` describes), or "not, because"
(with the missing requirement).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]


class Row(NamedTuple):
    """Statement of a seed document.

    Attributes:
        where: Seed, and number of its block.
        statement: Shortened text of the statement.
        test: File below ``tests``, and name of the test.
        verdict: Verdict on the statement.
    """

    where: str
    statement: str
    test: str
    verdict: str


SCRIPTS = "frameworks/test_older_scripts.py::"
GUIDE = SCRIPTS + "test_older_torch_and_trainer_script_runs"
SEEDS = SCRIPTS + "test_older_torch_script_with_both_samplers_runs"
MESH = SCRIPTS + "test_older_jax_and_keras_script_runs"
PLACES = SCRIPTS + "test_older_script_with_places_shards_and_printing_ranks_runs"
TENSORFLOW = "frameworks/test_tensorflow.py::test_older_tensorflow_script_trains_one_model_on_all_ranks"
OLDER = "compat/test_upstream_guides.py::test_upstream_guides_without_a_gpu_run_unchanged"
MIG = "compat/test_names.py::test_mig_profile_of_an_accelerator_sets_the_ranks_per_node"
PAGE = "compat/test_migration.py::test_upgrade_page_names_the_older_import"
PLUGINS = "unit/test_framework_plugins.py::test_framework_plugin_installs_its_packages"
SHARDS = "unit/test_shard.py::test_shards_of_several_arrays_stay_aligned"
TASK = "local/test_rank_worlds.py::test_tasks_of_every_kind_run_in_a_world_of_one"
TORCHRUN = "local/test_rank_worlds.py::test_ranks_have_torchrun_variables_and_a_port_of_their_own"
WHEELS = "unit/test_plugins_torch.py::test_torch_wheels_depend_on_the_accelerator"
ROWS = [
    Row("000.1", "Compute(provider=AWS(), nodes=4, accelerator=A100(), plugins=[plugins.torch()])", SEEDS, "same"),
    Row("000.1", "dist.is_initialized() is True in train() @ compute", SEEDS, "same"),
    Row("000.2", "plugins=[plugins.jax(), plugins.keras(backend='jax')]", PLUGINS, "same"),
    Row("000.3", "x, y = shard(x_full, y_full, shuffle=True, seed=42); x[i] corresponds to y[i]", SHARDS, "same"),
    Row("000.4", "info.node, info.total_nodes, info.is_head", PLACES, "same"),
    Row("000.4", "info.head_addr, info.head_port, info.accelerators, info.peers", PLACES, "same"),
    Row("000.5", "@function over @stdout(only='head')", PLACES, "same"),
    Row("000.5", "only=lambda info: info.node < 2", PLACES, "same"),
    Row("000.5", "@silent", PLACES, "same"),
    Row("000.6", "Options(cluster=False)", PLACES, "same"),
    Row("000", "MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK", TORCHRUN, "same"),
    Row("000", "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID, JAX_LOCAL_DEVICE_COUNT", MESH, "same"),
    Row("000", "plugins.huggingface(token='...')", SEEDS, "same"),
    Row("001.1", "DDP on cuda(), nccl, on 4 nodes with A100", SEEDS, "not, because no GPU: gloo, and DDP by hand"),
    Row("001.1", "DistributedSampler(dataset, num_replicas=world_size, rank=rank); set_epoch", SEEDS, "same"),
    Row("001.2", "plugins.torch(vision='latest', audio='latest')", WHEELS, "same"),
    Row("001.3", "plugins.torch(backend='gloo') without an accelerator",
        WHEELS, "same"),
    Row("001.4", "plugins=[plugins.torch(), plugins.huggingface(token='hf_xxx')]", SEEDS, "same"),
    Row("001", "version='2.3.0', vision='0.18.0', cuda='cu124'", WHEELS, "same"),
    Row("001", "a pool of one node: no process group", TASK, "same"),
    Row("001", "LOCAL_RANK is always 0, as a process is a node", TORCHRUN, "ours instead"),
    Row("002.1", "@compute; ComputePool(provider, nodes, accelerator=NVIDIA.A100, image=Image(...))", GUIDE, "same"),
    Row("002.1", "if dist.is_initialized(): DDP(model), with no plugin named", GUIDE, "same"),
    Row("002.1", "sampler = sky.DistributedSampler(dataset, shuffle=True)", GUIDE, "same"),
    Row("002", "Skyward automatically sets MASTER_ADDR ... NODE_RANK", TORCHRUN, "same"),
    Row("002.2", "@integrations.torch(backend='nccl') over @compute", GUIDE, "same"),
    Row("002.3", "@integrations.keras(backend='jax'): one model, sharded data", MESH, "same"),
    Row("002.3", "keras.datasets.mnist.load_data()", MESH, "not, because nothing is downloaded: made-up pixels"),
    Row("002.4", "@integrations.keras(backend='tensorflow')", TENSORFLOW, "same"),
    Row("002.5", "@integrations.jax(); jax.pmap; ComputePool(pip=['jax[cuda12]'])", MESH, "same"),
    Row("002", "JAX's four variables", MESH, "same"),
    Row("002.6", "@integrations.transformers(backend='nccl'); Trainer(...).train(); evaluate()", GUIDE, "same"),
    Row("002.6", "fp16=True, load_dataset('imdb')", GUIDE, "not, because no GPU and no download: files of its own"),
    Row("002.7", "local_data = shard(full_dataset); sum(local_data)", PLACES, "same"),
    Row("002.8", "shard(x_full, y_full, shuffle=True, seed=42)", SHARDS, "same"),
    Row("002.9", "shard(x_full, shuffle=True, seed=42), the same again", SHARDS, "same"),
    Row("002.10", "DistributedSampler, DataLoader, set_epoch", GUIDE, "same"),
    Row("002.11", "if info.is_head: save_checkpoint; return {'node': ..., 'is_head': ...}", PLACES, "same"),
    Row("002.12", "Accelerator.NVIDIA.A100(mig='3g.40gb'): two workers per GPU", MIG, "same"),
    Row("002.13", "profiles 3g.40gb, 2g.20gb, 1g.10gb: 2, 3 and 7 workers", MIG, "same"),
    Row("002.14", "dist.barrier() before what the head does", SEEDS, "same"),
    Row("002.15", "os.environ['NCCL_DEBUG'] = 'INFO' in a function", OLDER, "same"),
    Row("002.16", "if not dist.is_initialized(): model = MyModel()", GUIDE, "same"),
    Row("003.1", "@compute outermost, @integrations.torch below", GUIDE, "same"),
    Row("003.2", "model = DDP(model) if dist.is_initialized()", GUIDE, "same"),
    Row("003.3", "DistributedSampler of torch, which reads the process group", SEEDS, "same"),
    Row("003.4", "dist.all_reduce(..., op=ReduceOp.SUM)", GUIDE, "same"),
    Row("003.5", "uv run python examples/guides/06_pytorch_distributed.py", PAGE,
        "not, because `import skyward` there is another package's: run it by `python -m skyward_core`"),
]  # fmt: skip


def test_every_seed_statement_has_a_test() -> None:
    for row in ROWS:
        assert row.verdict.startswith(("same", "ours instead", "not, because")), row
        file, name = row.test.split("::")
        assert f"def {name}(" in (TESTS / file).read_text(), row
    assert {row.where[:3] for row in ROWS} == {"000", "001", "002", "003"}
