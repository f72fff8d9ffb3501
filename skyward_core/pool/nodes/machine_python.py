"""The Python of a pool, written down with each of its machines."""

from __future__ import annotations

from dataclasses import replace

from ...model.interpreter import Interpreter
from ...model.machine import Machine
from ...store.ledger_rows import PoolRow


def with_python(machine: Machine, row: PoolRow) -> Machine:
    """A machine as it is written down: with its pool's Python, for who comes to it later with another."""
    python = row.spec.get("interpreter")
    if not python:
        return machine
    return replace(machine, extra=machine.extra | {"loaded_with": Interpreter.from_json(python).for_hosts})
