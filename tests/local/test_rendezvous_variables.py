"""The variables that torchrun sets, on ranks of pools without a plugin for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import skyward_core as sky

pytestmark = pytest.mark.usefixtures("home")

# What torchrun 2.13 sets, but for OMP_NUM_THREADS and the signals that its own agent passes on.
OF_TORCHRUN = (
    "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK",
    "RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "WORLD_SIZE",
)  # fmt: skip


@pytest.fixture
def pool(home: Any) -> Iterator[Any]:
    with sky.Compute(name="meet", nodes=1, worker=sky.Worker(ranks_per_node=2)) as pool:
        yield pool


@sky.function
def found() -> dict[str, str]:
    return {name: os.environ[name] for name in OF_TORCHRUN if name in os.environ}


@sky.function
def listens() -> int:
    """What a rendezvous of PyTorch does: on every address, by a socket that may share the port."""
    import socket

    if os.environ["RANK"] == "0":
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as server:
            return int(server.getsockname()[1])
    return 0


@sky.function
def ends(how: str) -> None:
    """Writes its error as ``@record`` of PyTorch does, and ends, on one rank; the others wait."""
    import json
    import signal

    if os.environ["RANK"] == "0":
        signal.pause()
    said = {
        "message": "BadBatch: no labels",
        "extraInfo": {"py_callstack": "in load_labels", "timestamp": "1"},
    }
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write(how if how != "said" else json.dumps({"message": said}))
    os._exit(3)


def test_ranks_have_the_variables_of_torchrun_and_a_port_that_is_theirs(pool):
    first, second = found() @ pool
    port = int(first["MASTER_PORT"])
    assert sorted(first) == sorted(OF_TORCHRUN) == sorted(second)
    differ = {name: (first[name], second[name]) for name in OF_TORCHRUN if first[name] != second[name]}
    assert first["TORCHELASTIC_ERROR_FILE"] != second["TORCHELASTIC_ERROR_FILE"]
    del differ["TORCHELASTIC_ERROR_FILE"]
    assert differ == dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), ("0", "1"))
    assert (first["WORLD_SIZE"], first["LOCAL_WORLD_SIZE"], first["GROUP_WORLD_SIZE"]) == ("2", "2", "1")
    # Another one for each broadcast: ranks that are done with one begin the next while others are still at it.
    others, _ = listens() @ pool
    assert port < others < port + 4
    # A task has a world of one rank, and takes nothing from those that come after it.
    alone = found() >> pool
    assert sorted(alone) == sorted(OF_TORCHRUN)
    sizes = {name: alone[name] for name in OF_TORCHRUN if name.endswith(("RANK", "SIZE"))}
    assert sizes == {name: "1" if name.endswith("SIZE") else "0" for name in sizes}
    assert not port <= int(alone["MASTER_PORT"]) < port + 4
    third = str(port + 2)
    assert found() @ pool == [each | {"MASTER_PORT": third} for each in (first, second)]

    for how in ("said", "no JSON", '{"message": 7}'):  # the file is the person's code's own
        with pytest.raises(sky.RunError) as failed:
            ends(how) @ pool
        told = failed.value.outcomes[1].error
        assert told is not None and "exited with status 3" in told.message
        assert told.message.startswith("BadBatch: no labels") == (told.traceback == "in load_labels") == (how == "said")
    again, _ = found() @ pool
    assert again["MASTER_PORT"] != first["MASTER_PORT"]


def test_who_asks_for_it_has_none():
    options = sky.Options(rendezvous=False, console=False)
    with sky.Compute(nodes=1, worker=sky.Worker(ranks_per_node=2), options=options) as pool:
        assert found() @ pool == [{}, {}]
    with sky.Compute(nodes=1, options=sky.Options(console=False)) as pool:
        assert found() @ pool == [{}]
