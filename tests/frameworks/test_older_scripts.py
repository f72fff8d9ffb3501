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
        assert errors.count(f"{old} is the older name; write {new}") == 1


TORCH = """
import json
import skyward as sky

@sky.compute
@sky.integrations.torch(backend="nccl")
def train():
    import os
    import torch
    import torch.distributed as dist
    total = torch.ones(1)
    dist.all_reduce(total)
    return [dist.get_backend(), total.item(), os.environ["LOCAL_RANK"], os.environ["NODE_RANK"]]

@sky.integrations.transformers(backend="nccl")
@sky.compute
def tune():
    from accelerate import PartialState
    state = PartialState(cpu=True)
    return [state.num_processes, state.process_index, len(list(sky.DistributedSampler(range(10))))]

with sky.ComputePool(provider=sky.AWS(), nodes=2, accelerator="A100", pip=["torch"]) as pool:
    print(json.dumps(train() @ pool))
    print(json.dumps(tune() @ pool))
"""


def test_the_integration_makes_the_process_group_inside_the_rank(tmp_path):
    printed, _ = run(TORCH, tmp_path)
    assert printed == [[["gloo", 2.0, "0", "0"], ["gloo", 2.0, "0", "1"]], [[2, 0, 5], [2, 1, 5]]]
