"""JAX, and Keras on it, across real ranks."""

import os
import re
import signal
import time
from typing import Any

import pytest

import skyward_core as sky
from skyward_tui.examples import jax_mesh, keras_fit
from tests.support.fates import gone, listening, pids
from tests.support.hangs import hang_told

PLUGINS = [sky.plugins.jax()]
NOT_INSTALLED = "sklearn pandas IPython"  # optional in keras, and loaded where they are


@sky.function
def gather() -> dict[str, Any]:
    import jax
    from jax.experimental import multihost_utils

    mine = jax.numpy.full((2,), sky.instance_info().rank)
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_COUNT")
    return {
        "processes": jax.process_count(),
        "devices": [jax.device_count(), jax.local_device_count()],
        "gathered": multihost_utils.process_allgather(mine).tolist(),
        "environment": {name: os.environ[name] for name in names},
    }


@pytest.mark.proof("1 s of a processor")
def test_jax_broadcast_has_the_devices_of_all_ranks(pool):
    for rank, seen in enumerate(gather() @ pool):
        assert seen["processes"] == 2
        assert seen["devices"] == [2, 1]
        assert seen["gathered"] == [[0, 0], [1, 1]]
        address = seen["environment"].pop("JAX_COORDINATOR_ADDRESS")
        assert address.startswith("127.0.0.1:")
        assert seen["environment"] == {
            "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(rank),
            "JAX_LOCAL_DEVICE_COUNT": "1",
        }


@sky.function
def processes() -> tuple[int, bool]:
    import jax

    return jax.process_count(), len(jax.devices()) == jax.local_device_count()


@pytest.mark.proof("4 s of a processor")
def test_jax_task_has_only_the_devices_of_its_process(pool):
    assert processes() @ pool == [(2, False)] * 2
    assert list(sky.gather(processes(), processes()) >> pool) == [(1, True)] * 2
    assert processes() @ pool == [(2, False)] * 2


@sky.function
def descend(steps: int) -> list[float]:
    """Run a linear regression by shard_map over all devices. A single rank uses its only device."""
    import jax
    import numpy as np
    from jax import numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = x.sum(axis=1)
    spread = NamedSharding(mesh, PartitionSpec("data"))
    # Blocks, not strides: an array over the mesh is made of contiguous parts.
    xs, ys = (jax.make_array_from_process_local_data(spread, a) for a in sky.shard(x, y, drop_last=True))

    def step(w: Any, xs: Any, ys: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.mean((xs @ w - ys) ** 2))(w)
        return w - 0.1 * jax.lax.pmean(gradient, "data")

    data, everywhere = PartitionSpec("data"), PartitionSpec()
    update = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(everywhere, data, data), out_specs=everywhere, check_vma=False)
    )
    w = jax.device_put(np.zeros(4, dtype="float32"), NamedSharding(mesh, everywhere))
    for _ in range(steps):
        w = update(w, xs, ys)
    return [float(v) for v in w.addressable_data(0)]


def test_jax_step_over_the_mesh_equals_one_process(pool):
    first, second = descend(5) @ pool
    assert first == second
    assert first == pytest.approx(descend.local(5), abs=1e-5)
    mesh, same = jax_mesh.descend(steps=20, samples=256, lr=0.3) @ pool  # the packaged example
    assert mesh == same
    assert mesh["loss"] < 0.1


@sky.function
def fit() -> dict[str, Any]:
    import hashlib

    import keras
    import numpy as np

    x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    y = (x.sum(1) > 0).astype("int32")
    xs, ys = sky.shard(x, y, shuffle=True, seed=42)
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss=loss)
    history = model.fit(xs, ys, epochs=3, batch_size=8, verbose=0)
    return {
        "backend": keras.config.backend(),
        "distribution": type(keras.distribution.distribution()).__name__,
        "losses": history.history["loss"],
        "hash": hashlib.sha256(b"".join(np.asarray(w).tobytes() for w in model.get_weights())).hexdigest(),
    }


@pytest.mark.proof("4 s of a processor")
def test_keras_on_jax_trains_on_all_devices(proofs):
    plugins = [sky.plugins.jax(), sky.plugins.keras(backend="jax")]
    with sky.Compute(nodes=2, plugins=plugins, options=sky.Options(console=False)) as pool:
        first, second = fit() @ pool
        if proofs:  # the packaged example, which compiles as much again
            fitted, same = keras_fit.fit(epochs=2, samples=512) @ pool
            assert fitted == same
            assert fitted["accuracy"] > 0.5
    assert first == second
    assert (first["backend"], first["distribution"]) == ("jax", "DataParallel")
    assert first["losses"][-1] < first["losses"][0]


@sky.function
def fail_in_the_middle(how: str) -> None:
    import jax
    from jax.experimental import multihost_utils

    multihost_utils.process_allgather(jax.numpy.ones(1))
    if sky.instance_info().rank == 1:
        if how == "raise":
            raise ArithmeticError("bad batch")
        os.kill(os.getpid(), signal.SIGKILL)
    multihost_utils.process_allgather(jax.numpy.ones(1))


@pytest.mark.proof("4 s of a processor")
@pytest.mark.parametrize(("how", "kind", "exit_code"), [("kill", "exited", 137), ("raise", "raised", None)])
def test_jax_rank_that_fails_in_a_collective_stops_its_peer(pool, how, kind, exit_code):
    ranks = pids() @ pool
    with pytest.raises(sky.RunError) as caught:
        fail_in_the_middle(how).with_timeout(60) @ pool
    cause = caught.value.root_cause
    assert (cause.rank, cause.outcome, cause.exit_code) == (1, kind, exit_code)
    assert caught.value.outcomes[0].kind in ("raised", "exited", "collateral"), "its peer was not left hanging"
    assert set(pids() @ pool).isdisjoint(ranks), "the next run has fresh ranks"
    assert gone(ranks)


def test_jax_ranks_listen_on_loopback_only(pool):
    found = listening() @ pool
    assert found[0], "the ranks have met somewhere"
    assert {address for rank in found for address in rank} == {"127.0.0.1"}


@sky.function
def one_never_computes() -> float:
    """Run a collective computation that one of four ranks does not join."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    mine = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), np.ones(1))
    if sky.instance_info().rank == 2:
        loads()
    return float(jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(mine))


def loads() -> None:
    while True:
        time.sleep(1)


@pytest.mark.proof("4 s of a processor")
def test_jax_rank_that_never_joins_a_computation_is_named():
    worker = sky.Worker(ranks_per_node=4)
    with sky.Compute(worker=worker, plugins=PLUGINS, options=sky.Options(console=False, grace=1.0)) as pool:
        (text,) = hang_told(pool, lambda: one_never_computes() @ pool, "loads")
    # Where each of them is within it changes from run to run, and may be told, too.
    pattern = r"ranks 0-1,3 are in a computation of all devices \(jax\).*; rank 2 is not: loads, test_jax\.py:\d+"
    assert re.fullmatch(pattern, text)
