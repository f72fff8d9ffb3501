"""What frames of one kind may be."""

from __future__ import annotations

from collections.abc import Mapping

from .value_checks import Checks

HEAD = 8 << 20  # bytes of a header, unless its kind is known to need more


class FrameForm:
    """What frames of one kind say; keys that must be there, keys that may, and the most bytes of body and header."""

    __slots__ = ("body", "checks", "head", "may", "needs", "says")

    def __init__(
        self,
        says: str,
        needs: Checks = {},  # noqa: B006
        may: Checks = {},  # noqa: B006
        body: int = 0,
        head: int = HEAD,
    ) -> None:
        self.says = says
        self.needs = needs
        self.may = may
        self.checks = {**needs, **may}
        self.body = body
        self.head = head


Forms = Mapping[str, FrameForm]
