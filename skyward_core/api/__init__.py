"""Scripting interface: pools as context managers, operators, attaching, sweeps and notebook output."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # other modules import the name only for annotations
    from skyward_core.api.pool_operations import PoolOperations as PoolOperations
