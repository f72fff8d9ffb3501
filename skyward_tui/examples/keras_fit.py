"""model.fit over a pool: Keras 3 on JAX, data-parallel over all devices.

skyward-tui run example:keras_fit --nodes 2 --plugin jax --plugin keras --arg epochs=3

The plugins select the backend and set a DataParallel distribution. Everything below is plain Keras.
"""

import skyward_core as sky


@sky.function
@sky.stdout(only="head")
def fit(epochs: int = 3, batch_size: int = 64, samples: int = 4096) -> dict:
    """Fit a small classifier; each rank provides its own shard of every batch."""
    import keras
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=(samples, 16)).astype("float32")
    y = (np.sin(x).sum(axis=1) > 0).astype("int32")
    # ``drop_last`` makes all shards equally large, because all ranks must provide the same number of batches.
    x_local, y_local = sky.shard(x, y, shuffle=True, seed=42, drop_last=True)

    model = keras.Sequential(
        [
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    report = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: sky.log(step=epoch + 1, loss=logs["loss"], accuracy=logs["accuracy"])
    )
    history = model.fit(x_local, y_local, epochs=epochs, batch_size=batch_size, verbose=2, callbacks=[report])
    return {"loss": history.history["loss"][-1], "accuracy": history.history["accuracy"][-1]}


if __name__ == "__main__":
    plugins = [sky.plugins.jax(), sky.plugins.keras(backend="jax")]
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=plugins) as compute:
        results = fit() @ compute
    print(f"loss {results[0]['loss']:.4f}, accuracy {results[0]['accuracy']:.2%} on {len(results)} ranks")
