"""Python interpreter of a script, and the reason for its choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from skyward_core.util.light_dataclass import Value, value


@value
class Interpreter(Value):
    """Python interpreter on this machine that was chosen for a script.

    Attributes:
        path: Path of the program, which may not exist yet if its environment must be created.
        prefix: Folder of the interpreter's environment.
        version: Version, such as "3.12.1". A plan runs no interpreter, so its version may be incomplete ("3.12") or "".
        source: Reason for the choice: "--python", ".venv of project train" or "this program's own".
        chosen: Whether the user, a script, a project or a shell chose it. False for the default.
        base: Interpreter from which the script's environment is created; "" if no environment is created.
        environment: Packages installed in it, as the fields of an image.
        notes: Rejected candidates and the reasons.
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
        """Minor version, such as "3.12". Bytecode depends on it."""
        return ".".join(self.version.split(".")[:2])

    @property
    def for_hosts(self) -> list[str]:
        """Python that hosts need to run pickled functions: its version, and a path that may also exist on hosts.

        If an environment is created for the script on this machine, hosts create one as well.
        """
        return [self.minor, self.base or self.path]

    def describe(self) -> dict[str, Any]:
        """Return all attributes as JSON types. URLs of package indexes may contain credentials."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Interpreter:
        """Return the interpreter that ``describe`` wrote. Unknown keys of other releases are ignored.

        Args:
            data: Result of ``describe``.
        """
        known = {each.name for each in fields(cls)}
        values = {name: given for name, given in data.items() if name in known}
        return cls(**values | {"notes": tuple(values.get("notes", ()))})
