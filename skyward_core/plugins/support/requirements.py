"""What plugins ask pip for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...model.errors import UsageError

if TYPE_CHECKING:
    from ...model.spec import Image, PipIndex, PoolSpec

_PIN = re.compile(r"\d[\w.!+*-]*")
_CONSTRAINT = re.compile(r"\s*(==|>=|<=|~=|!=|<|>|===)")


def requirement(package: str, version: str | None) -> str:
    """A requirement as pip takes it.

    Args:
        version: "latest" or None for any, a bare version to pin, or constraints such as ">=2.3,<3".

    Raises:
        UsageError: the version is none of these.
    """
    if version is None or version == "latest":
        return package
    if _PIN.fullmatch(version):
        return f"{package}=={version}"
    if _CONSTRAINT.match(version):
        return f"{package}{version.strip()}"
    raise UsageError(f'{version!r} is no version of {package}: use "latest", "2.3.0" or ">=2.3"')


def has_cuda(pool_spec: PoolSpec) -> bool:
    """Whether the pool's accelerator runs CUDA."""
    from ...model.accelerators import resolve

    accelerator = resolve(pool_spec.accelerator)
    return accelerator is not None and accelerator.has_cuda


def with_pip(image: Image, requirements: Iterable[str], index: PipIndex | None = None) -> Image:
    """The image with requirements (and an index) added behind what it has; nothing is added twice.

    A package that the image names already keeps the person's own requirement.
    """
    have = {_package(text) for text in image.pip}
    new = tuple(text for text in requirements if _package(text) not in have)
    indexes = image.pip_indexes
    if index is not None and new and index not in indexes:
        indexes = (*indexes, index)
    return replace(image, pip=(*image.pip, *new), pip_indexes=indexes)


def with_env(image: Image, **values: str) -> Image:
    """The image with environment variables added; those that it sets already stay."""
    return replace(image, env=values | image.env)


def _package(text: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", text)
    return re.sub(r"[-_.]+", "-", match.group(1)).lower() if match else text
