"""The outcome of a call, as a frame tells it."""

from __future__ import annotations

from ...model.outcome import ErrorInfo, Outcome, Summary
from ...wire.frames import Header


def outcome_of(header: Header) -> Outcome:
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
    )
