"""The outcome of a call, as a frame tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.outcome import ErrorInfo, Outcome, Summary

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentOutcome


def outcome_of(header: AgentOutcome) -> Outcome:
    """An outcome frame's header as an :class:`Outcome`."""
    return Outcome(
        header["i"],
        header["rank"],
        header["node"],
        header["kind"],
        header.get("seconds", 0.0),
        Summary.from_wire(header.get("summary")),
        ErrorInfo.from_wire(header.get("error")),
        header.get("exit_code"),
        header.get("signal"),
        header.get("items", 0),
        Summary.from_wire(header.get("last")),
        header.get("numbers"),
    )
