"""What only some providers have: what they know of the Python that their machines need. As with
:mod:`.capabilities`, whoever wants it asks by isinstance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .machine import Check


@runtime_checkable
class NeedsPython(Protocol):
    """Its machines may lack the Python that a script is loaded with, and which its functions need there."""

    def needs_python(self, minor: str) -> str:
        """What a plan says of that, in words.

        Args:
            minor: its version, such as "3.12".
        """


@runtime_checkable
class ChecksPython(Protocol):
    """Its check-up can tell whether its machines have the Python that a script is loaded with."""

    async def check_for(self, loaded_with: Sequence[str] | None) -> list[Check]:
        """As ``check``, for such a script.

        Args:
            loaded_with: as :attr:`.interpreter.Interpreter.for_hosts` has it; None for what runs this.
        """
