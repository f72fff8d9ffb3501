"""joblib and scikit-learn of the client, run on the pool."""

import os
import subprocess
import sys

import pytest

import skyward_core as sky

PLUGINS = [sky.plugins.sklearn()]


def where(x):
    return x * x, os.getpid()


def test_joblib_parallel_runs_on_the_pool_in_order(pool):
    import joblib

    results = joblib.Parallel()(joblib.delayed(where)(i) for i in range(20))
    assert [square for square, _ in results] == [i * i for i in range(20)]
    pids = {pid for _, pid in results}
    assert os.getpid() not in pids
    assert len(pids) == 2


def test_joblib_generator_returns_results_in_order(pool):
    import joblib

    parallel = joblib.Parallel(n_jobs=2, return_as="generator")
    assert [square for square, _ in parallel(joblib.delayed(where)(i) for i in range(6))] == [0, 1, 4, 9, 16, 25]


def fails(x):
    if x == 3:
        raise LookupError("no three")
    return x


def test_joblib_error_is_raised_by_the_caller(pool):
    import joblib

    with pytest.raises(sky.RunError) as caught:
        joblib.Parallel()(joblib.delayed(fails)(i) for i in range(6))
    assert isinstance(caught.value.__cause__, LookupError)
    assert joblib.Parallel()(joblib.delayed(where)(i) for i in range(2))  # the pool is well


@pytest.mark.proof("4 s of a processor")
def test_grid_search_of_scikit_learn_runs_on_the_pool(pool):
    import numpy as np
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    x = np.random.default_rng(0).normal(size=(60, 3))
    search = GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 4]}, cv=3)
    search.fit(x, x[:, 0] > 0)
    assert search.best_score_ > 0.9


def test_joblib_backend_is_restored_after_the_pool_ends():
    import joblib

    before = joblib.Parallel()._backend
    plugins = [sky.plugins.joblib(n_jobs=3)]
    with sky.Compute(nodes=1, plugins=plugins, options=sky.Options(console=False)):
        assert joblib.Parallel()._backend is not before
        assert joblib.Parallel().n_jobs == 3
    assert joblib.Parallel()._backend is before


# No main guard: a child that ran the script would make pools without end.
CHILDREN = """
import multiprocess, joblib, skyward_core as sky

class Wide:
    def __init__(self, x): self.x = x

def wide(x): return Wide(x * x)

@sky.function
def work():
    parallel = joblib.Parallel(n_jobs=2, backend="loky")
    squares = [each.x for each in parallel(joblib.delayed(wide)(i) for i in range(4))]
    with multiprocess.get_context("spawn").Pool(1) as pool:
        return squares, pool.map(wide, [3])[0].x

with sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False)) as compute:
    print(work() >> compute)
"""


@pytest.mark.proof("2 s of a processor")
def test_joblib_child_processes_have_the_definitions_of_the_script(tmp_path):
    (script := tmp_path / "children.py").write_text(CHILDREN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=90)
    assert done.stdout == "([0, 1, 4, 9], 9)\n", done.stderr
