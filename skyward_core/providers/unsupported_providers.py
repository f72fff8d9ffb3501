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

    called: ClassVar[str]
    parameters: dict[str, Any]

    def __init_subclass__(cls, called: str = "") -> None:
        cls.called = called or cls.called
        cls.__doc__ = cls.__doc__ or UnsupportedProvider.__doc__

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


class GCP(UnsupportedProvider, called="Google Cloud"): ...


class Hyperstack(UnsupportedProvider, called="Hyperstack"): ...


class JarvisLabs(UnsupportedProvider, called="JarvisLabs"): ...


class Lambda(UnsupportedProvider, called="Lambda Cloud"): ...


class LambdaCloud(Lambda): ...


class MassedCompute(UnsupportedProvider, called="Massed Compute"): ...


class Novita(UnsupportedProvider, called="Novita"): ...


class RunPod(UnsupportedProvider, called="RunPod"): ...


class Salad(UnsupportedProvider, called="Salad"): ...


class Scaleway(UnsupportedProvider, called="Scaleway"): ...


class TensorDock(UnsupportedProvider, called="TensorDock"): ...


class VastAI(UnsupportedProvider, called="Vast.ai"): ...


class Verda(UnsupportedProvider, called="Verda"): ...


class Vultr(UnsupportedProvider, called="Vultr"): ...


class Container(UnsupportedProvider, called="a container runtime"):
    """Containers of this machine, by their older name: processes of this machine serve instead, as ``sky.Local()`` has
    them.

    Args:
        **parameters: as the older library takes them; they can be read, and nothing heeds them.

    Attributes:
        called: how people spell it.
        parameters: what it was given, by name.
    """

    def served(self) -> Any:
        """The provider that serves in its place: processes of this machine."""
        from skyward_core.providers.local.provider import Local

        return Local()


PROVIDERS_BY_TYPE: dict[str, type[UnsupportedProvider]] = {
    **{kind.__name__.lower(): kind for kind in UnsupportedProvider.__subclasses__()},
    # Words of older settings.
    "lambda_cloud": Lambda,
    "massed_compute": MassedCompute,
    "vast": VastAI,
}
"""Each by the word that settings and command lines have for it."""
