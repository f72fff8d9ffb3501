"""A pool as its client manages it: nodes, links, runs, teardown. Asynchronous; runs on one event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # names that the modules of this package import only for annotations
    from skyward_core.pool.budget_and_cloud_expiry_date import PoolLimits as PoolLimits
    from skyward_core.pool.machine_metrics_recorder import MetricsRecorder as MetricsRecorder
    from skyward_core.pool.node_recovery import NodeRecovery as NodeRecovery
    from skyward_core.pool.output_files import Outputs as Outputs
    from skyward_core.pool.pool_context import PoolContext as PoolContext
    from skyward_core.pool.pool_context import PoolEnd as PoolEnd
    from skyward_core.pool.runs.run import Run as Run
    from skyward_core.pool.runs.scheduler import RunScheduler as RunScheduler
    from skyward_core.pool.startup_and_machine_verification import PoolStartup as PoolStartup
    from skyward_core.pool.teardown import PoolShutdown as PoolShutdown
