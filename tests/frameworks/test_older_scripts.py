"""Scripts of the older generation, run as they are by ``python -m skyward_core --provider local``."""

import json
from pathlib import Path

from tests.support.whole_scripts import run_script


def run(script: str, tmp_path: Path) -> tuple[list[object], str]:
    """What a script prints as JSON lines, and its standard error."""
    done = run_script(script, tmp_path, 120)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")], done.stderr


FORMS = """
import json
import skyward as sky

def world():
    import os
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])

@sky.integrations.tensorflow
@sky.compute
def bare_above():
    return world()

@sky.compute
@sky.integrations.tensorflow
def bare_below():
    return world()

@sky.integrations.tensorflow()
@sky.compute
def called_above():
    return world()

@sky.compute
@sky.integrations.tensorflow()
def called_below():
    return world()

@sky.integrations.tensorflow
@sky.compute
def generator():
    yield world()

@sky.compute
def part(data):
    info = sky.instance_info()
    return [info.is_head, sum(sky.shard(data))]

with sky.ComputePool(provider=sky.AWS(), nodes=2, accelerator=sky.NVIDIA.A100, pip=["numpy"]) as pool:
    for form in (bare_above, bare_below, called_above, called_below):
        print(json.dumps(form() @ pool))
    print(json.dumps([list(values) for values in generator() @ pool]))
    print(json.dumps(part(list(range(10))) @ pool))
"""


def test_every_form_of_the_older_names(tmp_path):
    printed, errors = run(FORMS, tmp_path)
    assert printed == [[2, 2]] * 4 + [[[2], [2]], [[True, 20], [False, 25]]]
    for old, new in [
        ("sky.compute", "@sky.function"),
        ("sky.ComputePool", "sky.Compute"),
        ("sky.NVIDIA.A100", "sky.accelerators.A100()"),
        ("sky.integrations.tensorflow", "plugins=[sky.plugins.tensorflow()]"),
    ]:
        assert errors.count(f"{old} is deprecated: use {new}") == 1
