"""Names of providers that other libraries have and this one does not.

Each name gives a value that keeps what it is given. Whoever wants machines of it is told what serves instead, and
``--provider`` puts another provider in its place. A name more is a class more in ``names.py``.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from skyward_core.model.errors import UsageError

_SECRET = re.compile(r"key|token|secret|password|auth|json", re.IGNORECASE)


class UnsupportedProvider:
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
        shown = (f"{name}={self._mask_secret(name, value)}" for name, value in self.parameters.items())
        return f"{type(self).__name__}({', '.join(shown)})"

    @staticmethod
    def _mask_secret(name: str, value: Any) -> str:
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


class GCP(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Google Cloud"


class Hyperstack(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Hyperstack"


class JarvisLabs(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "JarvisLabs"


class Lambda(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Lambda Cloud"


class LambdaCloud(Lambda):
    __doc__ = UnsupportedProvider.__doc__


class MassedCompute(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Massed Compute"


class Novita(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Novita"


class RunPod(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "RunPod"


class Salad(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Salad"


class Scaleway(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Scaleway"


class TensorDock(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "TensorDock"


class VastAI(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Vast.ai"


class Verda(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Verda"


class Vultr(UnsupportedProvider):
    __doc__ = UnsupportedProvider.__doc__
    called: ClassVar[str] = "Vultr"


class Container(UnsupportedProvider):
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
        from skyward_core.providers.local.provider import Local

        return Local()


# What the older settings called them.
PROVIDERS_BY_TYPE: dict[str, type[UnsupportedProvider]] = {
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
