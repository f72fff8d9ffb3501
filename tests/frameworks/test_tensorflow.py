"""The tensorflow plugin on real pools: TF_CONFIG always, TensorFlow itself where it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.plugins import Plugin
from tests.support.whole_scripts import run_script

QUIET = sky.Options(console=False, start_timeout=120)


@sky.function
def listens() -> tuple[int, list[str], bool]:
    """Return whether this rank can listen at its address in TF_CONFIG."""
    import os
    import socket

    config = json.loads(os.environ["TF_CONFIG"])
    index, workers = config["task"]["index"], config["cluster"]["worker"]
    host, _, port = workers[index].rpartition(":")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))
        server.listen()
        return index, workers, host == sky.instance_info().address


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("plugin", [sky.plugins.tensorflow(), sky.plugins.keras(backend="tensorflow")])
def test_every_rank_has_a_tensorflow_port_that_its_node_reserves(plugin: Plugin) -> None:
    worker = sky.Worker(ranks_per_node=2)
    with sky.Compute(nodes=2, worker=worker, plugins=[Light(plugin)], options=QUIET) as compute:
        seen = listens() @ compute
    assert [index for index, _, _ in seen] == [0, 1, 2, 3]
    assert all(here for _, _, here in seen)
    (workers,) = {tuple(workers) for _, workers, _ in seen}
    assert len(set(workers)) == 4, "nodes of one machine do not keep the same ports"


class Light(Plugin):
    """Variant of another plugin that installs no packages."""

    name = "light"

    def __init__(self, plugin: Plugin) -> None:
        self.around_process = plugin.around_process  # type: ignore[method-assign]


@sky.function
def train(seed: int) -> tuple[int, float, float, list[float]]:
    """Fit a line on shards of one batch. Return the number of replicas, the first and last loss, and the fitted
    line.
    """
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    x = np.random.default_rng(seed).random((64, 4), dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True) * 2)).batch(16)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = strategy.experimental_distribute_dataset(data.with_options(options))
    with strategy.scope():
        weights = tf.Variable(tf.zeros((4, 1)))

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((inputs @ weights - labels) ** 2) / 16
        context = tf.distribute.get_replica_context()
        weights.assign_sub(0.05 * context.all_reduce("SUM", tape.gradient(loss, weights)))
        return loss

    @tf.function  # type: ignore[untyped-decorator, unused-ignore]
    def everywhere(inputs: Any, labels: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, (inputs, labels)), axis=None)

    losses = [float(everywhere(*batch)) for _ in range(5) for batch in batches]
    return strategy.num_replicas_in_sync, losses[0], losses[-1], weights.numpy()[:, 0].tolist()


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed")
@pytest.mark.parametrize(("nodes", "per_node"), [(2, 1), (1, 2)])
def test_multi_worker_mirrored_strategy_spans_the_pool(nodes: int, per_node: int) -> None:
    worker = sky.Worker(ranks_per_node=per_node)
    plugins = [Light(sky.plugins.tensorflow())]
    with sky.Compute(nodes=nodes, worker=worker, plugins=plugins, options=QUIET) as compute:
        first, second = train(0) @ compute
    assert first == second, "replicas agree"
    replicas, before, after, weights = first
    assert replicas == 2
    assert after < before / 10
    assert weights == pytest.approx([2.0] * 4, abs=0.5)


AS_FIRST_WRITTEN = """
import json
import skyward as sky

@sky.integrations.tensorflow
@sky.compute
def train(steps):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tf.Variable([[0.0], [0.0]])
    x = tf.random.stateless_uniform((8, 2), seed=(1, 2))
    mine = sky.shard(x)
    assert tf.is_tensor(sky.shard(x, shuffle=True, seed=42)) and mine.shape == (4, 2)

    @tf.function
    def step():
        def replica():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((mine @ weights - tf.reduce_sum(mine, 1, keepdims=True)) ** 2)
            gradient = tf.distribute.get_replica_context().all_reduce("MEAN", tape.gradient(loss, weights))
            weights.assign_sub(0.5 * gradient)
            return loss
        return strategy.reduce("MEAN", strategy.run(replica), axis=None)

    losses = [float(step()) for _ in range(steps)]
    return strategy.num_replicas_in_sync, losses[0], losses[-1], weights.numpy()[:, 0].tolist()

@sky.integrations.keras(backend="tensorflow", seed=7)
@sky.compute
def fit():
    import keras, tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    return keras.config.backend(), strategy.num_replicas_in_sync, [w.numpy().tolist() for w in model.weights]

with sky.ComputePool(provider=sky.AWS(), nodes=2) as pool:
    print("RESULTS", json.dumps([train(20) @ pool, fit() @ pool]))
"""


@pytest.mark.proof("tensorflow, 700 MB: pip install tensorflow-cpu; 15 s of a processor")
def test_older_tensorflow_script_trains_one_model_on_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    done = run_script(AS_FIRST_WRITTEN, tmp_path, 180, TF_CPP_MIN_LOG_LEVEL="3")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULTS ")]
    (first, second), (one, other) = json.loads(line.removeprefix("RESULTS "))
    assert first == second, "replicas agree"
    assert first[0] == 2 and first[2] < first[1] / 10
    assert one == other and one[:2] == ["tensorflow", 2], "of one seed all ranks begin alike"
