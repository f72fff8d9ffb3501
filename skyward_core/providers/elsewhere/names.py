"""The names, each a class; see the package."""

from __future__ import annotations

from typing import Any, ClassVar

from .stand_in import StandIn


class GCP(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Google Cloud"


class Hyperstack(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Hyperstack"


class JarvisLabs(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "JarvisLabs"


class Lambda(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Lambda Cloud"


class LambdaCloud(Lambda):
    __doc__ = StandIn.__doc__


class MassedCompute(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Massed Compute"


class Novita(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Novita"


class RunPod(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "RunPod"


class Salad(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Salad"


class Scaleway(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Scaleway"


class TensorDock(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "TensorDock"


class VastAI(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Vast.ai"


class Verda(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Verda"


class Vultr(StandIn):
    __doc__ = StandIn.__doc__
    called: ClassVar[str] = "Vultr"


class Container(StandIn):
    """Containers of this machine, by their older name: processes of this machine serve instead, as ``sky.Local()`` has
    them.

    Args:
        **parameters: as the older library takes them; they can be read, and nothing heeds them.

    Attributes:
        called: how people spell it.
        parameters: what it was given, by name.
    """

    called: ClassVar[str] = "a container runtime"

    def served(self) -> Any:
        """The provider that serves in its place: processes of this machine."""
        from ..local.provider import Local

        return Local()


# What the older settings called them.
OF_TYPE: dict[str, type[StandIn]] = {
    "lambda": Lambda,
    "lambda_cloud": Lambda,
    "massed_compute": MassedCompute,
    "vast": VastAI,
} | {
    kind.__name__.lower(): kind
    for kind in (
        GCP, Hyperstack, JarvisLabs, MassedCompute, Novita, RunPod, Salad, Scaleway, TensorDock, VastAI, Verda, Vultr,
        Container,
    )
}  # fmt: skip
"""Each by the word that settings and command lines have for it."""
