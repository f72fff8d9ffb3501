"""JAX is told who takes part as soon as somebody imports it, and is in all else as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DISTRIBUTED = """
up = False

def initialize(coordinator_address=None, num_processes=None, process_id=None, cluster_detection_method=None,
               coordinator_bind_address=None):
    global up
    print("initialize", coordinator_address, num_processes, process_id)
    up = True

def shutdown():
    global up
    up = False

def is_initialized():
    return up
"""
JAX = """
class config:
    jax_cpu_collectives_implementation, jax_enable_preemption_service = None, True
    update = classmethod(setattr)

from jax import distributed
"""
SCRIPT = """
import importlib.util, inspect, sys
from skyward_core.runtime import instance_info as used_up
from skyward_core.runtime.instance_info import InstanceInfo
from skyward_core.runtime.rendezvous import TorchrunEnvironment as ForCalls

OWN = InstanceInfo(head_addr="192.0.2.2", head_port=9)
calls = ForCalls(InstanceInfo(rank=1, world_size=2, head_addr="192.0.2.1", head_port=5), OWN, "unused")
if sys.argv[1] == "late":
    importlib.util.find_spec("jax.distributed")  # who only looks changes nothing
import jax
from jax.distributed import initialize, shutdown

calls.start_call(False)
initialize("mine:1", 1, 0)  # a task's own affair
shutdown()
print(used_up.not_reusable_reason())
calls.start_call(True)
initialize()
initialize(num_processes=2)
try:
    initialize(num_processes=3)
except Exception as error:
    print(type(error).__name__, "num_processes=3" in str(error))
print(jax.config.jax_cpu_collectives_implementation, jax.config.jax_enable_preemption_service)
module = jax.distributed
print(module.__loader__ is module.__spec__.loader, type(module.__loader__).__name__)
print("def is_initialized" in inspect.getsource(module))
"""


def told(path: Path, how: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], env={"PYTHONPATH": str(path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_initialize_is_told_who_takes_part(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(JAX)
    (tmp_path / "jax" / "distributed.py").write_text(DISTRIBUTED)
    expected = [
        "initialize mine:1 1 0",
        "it shut JAX's distributed runtime down",
        "initialize 192.0.2.1:9 2 1",  # a port after those that broadcasts take in turns
        "UsageError True",
        "gloo False",
        "True SourceFileLoader",
        "True",
    ]
    assert told(tmp_path, "") == expected
    assert told(tmp_path, "late") == expected
