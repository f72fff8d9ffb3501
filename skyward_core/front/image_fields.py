"""What a launch says of its ranks' environment, as the fields of a form: one for each kind of text ``field=value``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..model.errors import UsageError
from ..tasks.argument_fields import ArgumentField
from .image_asked import image_asked

__all__ = ["IMAGE_FIELDS", "ImageField", "by_field", "texts_of"]


@dataclass(frozen=True, slots=True)
class ImageField(ArgumentField):
    """One of them.

    Attributes:
        example: what may be written there.
    """

    example: str = ""

    @property
    def look(self) -> str:
        return f"such as {self.example}"

    def amiss(self, text: str) -> str:
        try:
            image_asked(texts_of(self.name, text))
        except (UsageError, ValueError) as error:
            return str(error)
        return ""


def _field(name: str, example: str, help: str) -> ImageField:
    return ImageField(name, "text", "", None, required=False, help=help, example=example)


IMAGE_FIELDS: Sequence[ImageField] = (
    _field("pip", "einops 'rich>=13'", "packages that pip installs for the ranks"),
    _field("apt", "libsndfile1", "packages of the machines' system"),
    _field("setup", "make -C data", "a command on each machine before its first rank; && joins several"),
    _field("env", "NAME=value OTHER=1", "variables of the ranks; no secrets, as launches are kept"),
    _field("secrets", "HF_TOKEN", "variables whose values are this shell's, and are kept nowhere"),
    _field("includes", "data/** *.yaml", "ignored files of the working folder that travel all the same"),
    _field("excludes", "*.ckpt", "files of it that stay"),
)
_PREFIXES = {"env": "env.", "secrets": "secret="}


def texts_of(name: str, text: str) -> list[str]:
    """What is written in a field, as texts such as ``pip=einops``.

    Raises:
        ValueError: a quotation in it has no end.
    """
    if not text.strip():
        return []
    if name == "setup":
        return [f"setup={text}"]
    return [_PREFIXES.get(name, f"{name}=") + word for word in shlex.split(text)]


def by_field(texts: Iterable[str]) -> Mapping[str, str]:
    """The other way round: what each field says of texts; one that is of none is of a field of its own name."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name.startswith("env."):
            name, value = "env", text.removeprefix("env.")
        found.setdefault("secrets" if name == "secret" else name, []).append(value)
    return {
        name: " && ".join(values) if name == "setup" else shlex.join(values) for name, values in found.items()
    }
