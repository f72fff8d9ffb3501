"""Which Python a script is run with, and why it is that one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from skyward_core.util.light_dataclass import Value, value


@value
class Interpreter(Value):
    """A Python of this machine, as it was chosen for a script.

    Attributes:
        path: of the program; where the environment is still to be made, of the one that will be there.
        prefix: the folder of its environment.
        version: such as "3.12.1"; of a plan, which runs nothing, perhaps "3.12" or "".
        source: what chose it, in words: "--python", ".venv of project train", "this program's own".
        chosen: whether a person, a script, a project or a shell chose it. Otherwise it is only what was at hand.
        base: of an environment that is made for a script, the interpreter that it is made of; else "".
        environment: what is installed there, as the keys of an image.
        notes: what was passed over on the way, and why.
    """

    path: str
    prefix: str
    version: str
    source: str
    chosen: bool = True
    base: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"Python {self.version or '?'} at {self.path} ({self.source})"

    @property
    def minor(self) -> str:
        """Such as "3.12": what bytecode depends on."""
        return ".".join(self.version.split(".")[:2])

    @property
    def for_hosts(self) -> list[str]:
        """What hosts need to run what it has pickled: its version, and a program of it that they may have at the same
        place. Where an environment was made for the script, one is made there, too."""
        return [self.minor, self.base or self.path]

    def describe(self) -> dict[str, Any]:
        """All of it as JSON; addresses of package indexes may hold credentials."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Interpreter:
        """What ``describe`` wrote; what only another release knows is passed over.

        Args:
            data: what it wrote.
        """
        known = {each.name for each in fields(cls)}
        kept = {name: given for name, given in data.items() if name in known}
        return cls(**kept | {"notes": tuple(kept.get("notes", ()))})
