"""Room for what a pool holds open here: a connection for each node, and the logs of each rank."""

from __future__ import annotations

import os

from ..model.errors import UsageError

LOGS = 3  # of a rank: what it prints, its errors, its numbers
NODE = 3  # for its connections
SPARE = 64  # for the script, and for what comes and goes
LEAST_SPARE = 16


def make_room(nodes: int, ranks: int, least: int | None = None) -> None:
    """Raise this process's own limit of open files so far as such a pool asks for it, and as the system lets us.

    Args:
        nodes: how many at most.
        ranks: how many on each.
        least: how many nodes it must be; None for all.

    Raises:
        UsageError: the system does not let us have even the connections.
    """
    import resource  # late: not all starts come this far

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    held = len(os.listdir("/dev/fd"))  # noqa: PTH208  no pathlib for a number
    wanted = held + nodes * (NODE + LOGS * ranks) + SPARE
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY:
        needed = held + (nodes if least is None else least) + LEAST_SPARE
        if hard < needed:
            raise UsageError(
                f"{nodes} nodes need at least {needed} open files here, and this process may have {hard}: "
                f"raise that (ulimit -Hn {wanted}, or LimitNOFILE= of its service), or have fewer nodes"
            )
        wanted = min(wanted, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
