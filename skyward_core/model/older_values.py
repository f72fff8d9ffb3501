"""Values of older generations that nothing heeds here: they keep what they are given, and whoever gets one tells that
it goes unheeded (``sky.Options(health_checker=...)``, a provider elsewhere)."""

from __future__ import annotations

from typing import Any

from .spec import Image

DEFAULT_IMAGE = Image()


class HandedOn:
    """A value that keeps what it is given.

    Args:
        *args: by position.
        **given: by name.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        self.args, self.given = args, given

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        shown = [f"{value!r:.40}" for value in self.args]
        return f"{type(self).__name__}({', '.join(shown + [f'{name}=…' for name in self.given])})"


class HealthChecker(HandedOn):
    __doc__ = HandedOn.__doc__


class LogConfig(HandedOn):
    __doc__ = HandedOn.__doc__


class MetricSpec(HandedOn):
    __doc__ = HandedOn.__doc__


class DockerImage(str):
    """A container's image by its name, which no node here runs in."""

    __slots__ = ()

    @classmethod
    def of(cls, *args: Any, **given: Any) -> DockerImage:
        """By a tag, or by what is wanted of it."""
        return cls("-".join(map(str, (*args, *given.values()))))

    cuda = ubuntu = pytorch = runpod_base = runpod_pytorch = of


class _Makers:
    """A module of older generations, whose functions make such values."""

    def __init__(self, makes: Any) -> None:
        self._makes = makes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._makes


metrics = _Makers(MetricSpec)
containers = DockerImage
