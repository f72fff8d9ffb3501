"""Which Python is to run on a host: the one that functions are pickled by, so that it reads what they are."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ...model.value import Value, value
from ..base import MINOR


@value(frozen=True)
class WantedPython(Value):
    """See the module.

    Attributes:
        named: the interpreter that somebody has named for the host, or "" to look for one.
        minor: its version, such as "3.12".
        here: one of this machine, which the host may have at the same place, or "".
        fetches: whether a uv there may fetch it; who only looks at a host changes nothing there.
    """

    named: str = ""
    minor: str = MINOR
    here: str = sys.executable
    fetches: bool = True

    @classmethod
    def of(cls, named: str | None, loaded_with: Sequence[str] | None) -> WantedPython:
        """What ranks need by what their functions are pickled.

        Args:
            loaded_with: as :attr:`...model.interpreter.Interpreter.for_hosts` has it; None for what runs this.
        """
        minor, here = loaded_with or (MINOR, "")
        return cls(named or "", minor, sys.executable if minor == MINOR else here)

    @property
    def is_ours(self) -> bool:
        """Whether it has the version of the Python that runs this, and so reads its bytecode."""
        return self.minor == MINOR

    @property
    def is_what(self) -> str:
        """What its version is that of, in words that follow "the version that"."""
        return "runs here" if self.is_ours else "the script is loaded with"
