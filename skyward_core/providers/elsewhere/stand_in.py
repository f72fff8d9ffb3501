"""What all names of providers elsewhere share."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from ...model.errors import UsageError

_SECRET = re.compile(r"key|token|secret|password|auth|json", re.IGNORECASE)


class StandIn:
    """A provider by its older name. Nothing is rented by it.

    Args:
        **parameters: as the older library takes them; they can be read, and nothing heeds them.

    Attributes:
        called: how people spell it.
        parameters: what it was given, by name.
    """

    called: ClassVar[str] = ""
    parameters: dict[str, Any]

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in vars(self).get("parameters", {}):
            return self.parameters[name]
        raise AttributeError(f"sky.{type(self).__name__}() was given no {name!r}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        shown = (f"{name}={self._shown(name, value)}" for name, value in self.parameters.items())
        return f"{type(self).__name__}({', '.join(shown)})"

    @staticmethod
    def _shown(name: str, value: Any) -> str:
        return "…" if _SECRET.search(name) else f"{value!r:.60}"

    def served(self) -> Any:
        """The provider that serves in its place.

        Raises:
            UsageError: none does; says what to do.
        """
        raise UsageError(self.refusal())

    @classmethod
    def refusal(cls) -> str:
        """Why nothing can be had of it here, and what to do."""
        name = cls.__name__
        return (
            f"sky.{name} names machines of {cls.called}, which are not rented here: rent them there and name them, "
            f'provider=sky.SSH(hosts=["user@host", ...]), or have others, provider=sky.AWS(). Or leave the script as '
            "it is: `python -m skyward_core --provider local SCRIPT` runs it here, or on any provider that you name"
        )
