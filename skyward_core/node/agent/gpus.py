"""``ranks_per_node="gpu"``: how many ranks this node gets, and which device each of them sees."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

LIST = (
    "import sys; bundle, path = sys.argv[1:];"
    "sys.path[:0] = [bundle] if bundle else [];"
    "sys.path += [e for e in path.split(':') if e and e not in sys.path];"
    "from skyward_core.runtime.devices import devices; print(*devices(), sep='\\n')"
)
PATIENCE = 60  # seconds; a driver that has to wake its GPUs first takes some


def gpus_of(node: int, python: str, bundle: str, path: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The devices of this node, as ``CUDA_VISIBLE_DEVICES`` names them.

    A child asks the driver: its library would stay in an agent for good, and can hang.

    Args:
        node: who we are, for the message.
        python, bundle, path, env: what ranks run with.

    Raises:
        ValueError: this node has no GPU that could be found; says what to do.
    """
    command = [python, "-c", LIST, bundle, ":".join(path)]
    try:
        asked = subprocess.run(
            command,
            env=os.environ | dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        found, why = [], f"the NVIDIA driver has not answered for {PATIENCE} s"
    else:
        said = asked.stderr.strip().splitlines() or ["it lists none"]
        found = asked.stdout.split() if asked.returncode == 0 else []
        why = said[-1].removeprefix("skyward_core.model.errors.PoolError: ")
    if not found:
        raise ValueError(
            f'ranks_per_node="gpu" needs a GPU and node {node} has none ({why}); '
            "give the number of ranks: ranks_per_node=2, say"
        )
    return found
