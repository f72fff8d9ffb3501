"""What pools, runs, ranks, nodes and machines can be: each list once."""

from __future__ import annotations

from typing import Literal

# connecting: the ledger has it, and the way to its machines is being made. unfinished: its start was broken off, as the
# process that brought it up is gone.
PoolStatus = Literal[
    "starting", "connecting", "up", "degraded", "stopping", "gone", "failed", "unreachable", "unfinished"
]
# lost: its pool ended, and nobody knows how it went; kept: its pool ended, and what it gave can still be fetched; left:
# it goes on, but this client has gone from it.
RunStatus = Literal["running", "done", "failed", "cancelled", "lost", "kept", "left"]
# sweep: a task for each combination of arguments, of which none stops the others. "": an agent tells of a run, and
# nobody of what kind it is. map: its calls are made while it goes on, and what is shown of it is a row for each rank.
RunKind = Literal["broadcast", "single", "gather", "sweep", "map", ""]

# How a pool stands to its budget. asked: all of it is spent, and a person is asked what to do.
BudgetStatus = Literal["within", "near", "asked", "spent"]

# A node's way up, in this order.
NodePhase = Literal["requested", "running", "connected", "synced", "installed", "ready", "gone"]
# What is said ahead of a rented machine's end, which is not ours to decide. rebalance: it is likelier than it was.
NoticeKind = Literal["terminate", "stop", "hibernate", "rebalance"]
# What a rank's process is at; "" where it is idle, as far as is known.
RankPhase = Literal["", "starting", "importing", "joining", "running", "paused"]

OutcomeKind = Literal["returned", "raised", "exited", "lost", "collateral"]
# Of one rank of a broadcast, or one task of a gather.
TaskStatus = Literal["waiting", "running", "returned", "raised", "exited", "lost", "collateral"]

# running; orphaned: it is there, but no agent runs on it, and one can be started again; ending: its agent, or what ran
# there, has not quite ended; unreachable: nothing can be said of it now, and the trouble may be the way to it; lost:
# nobody gets an answer from it, other nodes neither.
MachineStatus = Literal["running", "orphaned", "ending", "unreachable", "lost", "gone"]

# What is told of a run while it goes on, the worst first.
AlertKind = Literal["gpu", "nan", "stall", "memory", "throttled", "straggler", "plateau"]
