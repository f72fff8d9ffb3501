"""Placeholders for providers of other libraries that this library does not support.

A placeholder stores its parameters. Its errors name an alternative, and ``--provider`` replaces it by another provider.
To add a name, add a class in this file.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from skyward_core.model.errors import UsageError

_SECRET = re.compile(r"key|token|secret|password|auth|json", re.IGNORECASE)


class UnsupportedProvider:
    """Placeholder for a provider of another library; it rents nothing.

    Args:
        **parameters: The parameters of the other library; they can be read and are otherwise ignored.

    Attributes:
        called: Display name of the service.
        parameters: The given parameters, by name.
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
        masked = {name: "…" if _SECRET.search(name) else f"{value!r:.60}" for name, value in self.parameters.items()}
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in masked.items())})"

    def served(self) -> Any:
        """Return the provider that this library uses instead of this placeholder.

        Raises:
            UsageError: If no provider can be used instead.
        """
        raise UsageError(self.refusal())

    @classmethod
    def refusal(cls) -> str:
        """Return the error text that states that the provider is not supported, with alternatives."""
        name = cls.__name__
        return (
            f"sky.{name}: renting machines of {cls.called} is not supported. Rent them yourself and pass "
            'provider=sky.SSH(hosts=["user@host", ...]), or use provider=sky.AWS(). To run the unchanged script on '
            "this machine or with another provider, use `python -m skyward_core --provider local SCRIPT`"
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
    """Placeholder for containers on this machine; processes on this machine (``sky.Local()``) replace them.

    Args:
        **parameters: The parameters of the other library; they can be read and are otherwise ignored.

    Attributes:
        called: Display name of the service.
        parameters: The given parameters, by name.
    """

    def served(self) -> Any:
        """Return the provider for processes on this machine."""
        from skyward_core.providers.local.provider import Local

        return Local()


# Placeholder class by the name in settings and command lines.
PROVIDERS_BY_TYPE: dict[str, type[UnsupportedProvider]] = {
    **{kind.__name__.lower(): kind for kind in UnsupportedProvider.__subclasses__()},
    # Names of these providers in the settings of older API versions.
    "lambda_cloud": Lambda,
    "massed_compute": MassedCompute,
    "vast": VastAI,
}
