"""Linear regression with shard_map over a mesh of all devices of the pool.

skyward-tui run example:jax_mesh --nodes 2 --plugin jax --arg steps=50

The jax plugin calls jax.distributed.initialize before the function starts. Everything below is plain JAX.
"""

import skyward_core as sky


@sky.function
@sky.stdout(only="head")
def descend(steps: int = 50, samples: int = 4096, features: int = 16, lr: float = 0.1) -> dict:
    """Run gradient descent on the whole batch; return the final loss and the error of the weights."""
    import jax
    import numpy as np
    from jax import numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    over_data, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    print(f"{jax.process_count()} processes, mesh of {mesh.size} devices")

    random = np.random.default_rng(0)  # the same seed on every rank, so every rank generates the same data
    truth = random.normal(size=features).astype("float32")
    x = random.normal(size=(samples, features)).astype("float32")
    # drop_last returns contiguous blocks, which match the layout of an array over a mesh.
    xs, ys = (
        jax.make_array_from_process_local_data(over_data, part) for part in sky.shard(x, x @ truth, drop_last=True)
    )

    def step(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        loss, gradient = jax.lax.pmean((loss, gradient), "data")  # mean over all devices of all nodes
        return w - lr * gradient, loss

    data, whole = PartitionSpec("data"), PartitionSpec()
    update = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(whole, data, data), out_specs=(whole, whole), check_vma=False)
    )
    w = jax.device_put(np.zeros(features, dtype="float32"), everywhere)
    for number in range(steps):
        w, loss = update(w, xs, ys)
        if number % 10 == 9:
            sky.log(step=number + 1, loss=loss)
            print(f"step {number + 1}/{steps} loss={float(loss):.6f}", flush=True)
    off = float(np.abs(np.asarray(w.addressable_data(0)) - truth).max())
    return {"loss": float(loss), "off": off}


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.jax()]) as compute:
        results = descend() @ compute
    assert results[0] == results[1], "the ranks disagree"
    print(f"loss {results[0]['loss']:.6f}; weights off by {results[0]['off']:.4f} at most")
