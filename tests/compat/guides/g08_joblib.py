"""Guide: joblib's ``Parallel`` with the pool as its backend."""

import math

import skyward as sky
from joblib import Parallel, delayed


def root(x: int) -> float:
    return math.sqrt(x)


if __name__ == "__main__":
    with sky.Compute(
        provider=sky.AWS(),
        nodes=2,
        worker=sky.Worker(concurrency=2),
        plugins=[sky.plugins.joblib()],
    ):
        assert Parallel(n_jobs=-1)(delayed(root)(i**2) for i in range(12)) == list(range(12))
