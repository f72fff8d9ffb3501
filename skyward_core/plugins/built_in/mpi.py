"""Plugin ``mpi``: a host file, and ssh between the nodes, for ``mpirun`` and similar launchers.

Host files: https://docs.open-mpi.org/en/main/launching-apps/scheduling.html. Variables of Open MPI, MPICH and Intel
MPI: https://docs.open-mpi.org/en/main/launching-apps/ssh.html and
https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to/Using_the_Hydra_Process_Manager.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from skyward_core.model.errors import UsageError
from skyward_core.plugins.plugin_server_start_and_stop import (
    ServerPlugin,
    find_program,
    generated_field,
    port_field,
    set_variables,
)
from skyward_core.plugins.ssh_between_nodes import make_key_pair, secret_lines, write_gang_hosts

if TYPE_CHECKING:
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo


@dataclass(frozen=True)
class Mpi(ServerPlugin):
    """Passwordless ``ssh`` between the nodes, and a host file.

    A command on one rank starts processes on all nodes: ``mpirun --hostfile $SKYWARD_HOSTFILE -np 8 train``. For this
    purpose each host runs an sshd of the pool, which accepts only the pool's key and ends with the pool.

    Args:
        slots: Processes for each node in the host file. None for the number of the node's GPUs, or without GPUs the
            number of its ranks.
        launcher: Program that must be installed on each node; runs fail with an error if it is missing. "" for no
            check.
        port: Port of each node's sshd. None for a port derived from the pool's name. No port is used if all nodes are
            on one host.

    Attributes:
        login: Private and public key that nodes use to log in.
        host: Private and public key of every node's sshd.

    Raises:
        UsageError: If ``port`` is invalid, or if ``slots`` is less than 1.
    """

    name: ClassVar[str] = "mpi"
    help: ClassVar[str] = "host files, and ssh between the nodes, for mpirun"
    place: ClassVar[int] = 13
    gang: ClassVar[bool] = False
    needs_peers = "ssh between the nodes"
    _package: ClassVar[str] = "openmpi-bin"  # Debian package with the MPI launcher
    pool_ports = (18_000, 1_000)
    slots: int | None = field(
        default=None, metadata={"help": "processes for each node (default: its GPUs, or its ranks)"}
    )
    launcher: str = field(default="mpirun", metadata={"help": "program that must be installed on each node"})
    port: int | None = port_field("each node's sshd")
    login: tuple[str, str] = generated_field(make_key_pair)
    host: tuple[str, str] = generated_field(make_key_pair)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots is not None and self.slots < 1:
            raise UsageError(
                f"slots must be 1 or more, got {self.slots}. Use None for a node's number of GPUs, or of ranks."
            )

    def secrets(self) -> Sequence[str]:
        return [*secret_lines(self.login[0]), *secret_lines(self.host[0])]

    @contextmanager
    def around_app(self, info: InstanceInfo) -> Iterator[None]:
        from skyward_core.plugins import ssh_between_nodes

        if self.launcher and self._needs_launcher(info):
            advice = f' {self.name}(launcher="") skips this check.'
            find_program([self.launcher], self._package, str(Path(sys.executable).parent), advice=advice)
        if len({peer.address for peer in info.peers}) < 2:  # all nodes are on one host
            yield
            return
        port = self.port_of(info.pool)
        first = next(peer.node for peer in info.peers if peer.address == info.address)
        with ssh_between_nodes.prepare_node_files(info, port, self.login, self.host) as folder:
            if first != info.node:  # several nodes on one host share an sshd, which the first of them runs
                yield
                return
            with ssh_between_nodes.run_sshd(self.name, folder, info.address, port, self.host[0], self.login[1]):
                yield

    def around_process(self, info: InstanceInfo) -> AbstractContextManager[object]:

        return set_variables(write_gang_hosts(info, self.slots or info.accelerators or info.ranks_per_node))

    def _needs_launcher(self, info: InstanceInfo) -> bool:
        return True


PLUGIN = Mpi
