"""JAX's multi-process guide (docs.jax.dev/en/latest/multi_process.html): one mesh, each process feeds a part of the
batch.

Without a cluster that JAX detects, all three arguments of `initialize` are given.
"""

import sys

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

out, *place = sys.argv[1:]
if place:
    jax.distributed.initialize(place[0], int(place[1]), int(place[2]))
else:
    jax.distributed.initialize()

mesh = jax.make_mesh((jax.device_count(),), ("batch",))
by_batch, everywhere = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())


@jax.jit
def step(weights, x, y):
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
    return weights - 0.05 * slope, loss


weights = jax.device_put(np.zeros((4, 1), np.float32), everywhere)
chance = np.random.default_rng(jax.process_index())
for _ in range(20):
    x = chance.normal(size=(8, 4)).astype(np.float32)
    x, y = (jax.make_array_from_process_local_data(by_batch, part) for part in (x, x.sum(1, keepdims=True)))
    weights, loss = step(weights, x, y)
if jax.process_index() == 0:
    np.savez(out, weights=np.asarray(weights), loss=np.asarray(loss), world=jax.process_count())
