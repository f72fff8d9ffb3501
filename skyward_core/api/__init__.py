"""What scripts use: pools as context managers, the operators, attaching, what they print."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for annotations of what pools use
    from skyward_core.api.operators import PoolOperations as PoolOperations
