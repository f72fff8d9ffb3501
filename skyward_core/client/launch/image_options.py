"""The environment options of a launch.

A secret is named only: its value is the shell's, when the launch is made, and stands in nothing that is kept.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skyward_core.model.errors import SpecError, UsageError, set_error_field
from skyward_core.tasks.script_inspection import ArgumentField
from skyward_core.transport.working_folder_upload import unmatched_patterns
from skyward_core.util.redaction import (
    MIN_SECRET_LENGTH,
    Redactor,
    is_secret_name,
    secret_values,
    url_secrets,
)
from skyward_core.util.user_files import resolve_path

FIELD = "image_settings"
LISTS = ("pip", "apt", "setup", "includes", "excludes")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# As a shell or an option has it; of "==" a package's version stands behind.
_ASSIGNED = re.compile(r"(?P<name>\w+)['\"]?\s{0,2}[=:](?!=)\s{0,2}['\"]?(?=(?P<value>[^\s'\",;&|)]+))")
_KNOWN = f"{', '.join(LISTS)}, env.NAME and secret"


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What such texts say.

    Attributes:
        lists: of each field that is a list, its values.
        env: variables whose values are said.
        secrets: names of those whose values are the shell's.
    """

    lists: Mapping[str, list[str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()

    def list_values(self, name: str) -> Sequence[str]:
        """The values of a field that is a list."""
        return self.lists.get(name, ())

    def read_secrets(self) -> dict[str, str]:
        """The secrets as the shell has them.

        Raises:
            UsageError: it has not, or one is too short to be blanked in logs.
        """
        with set_error_field(FIELD):
            for name in self.secrets:
                if not os.environ.get(name):
                    raise UsageError(f"the shell has no {name}, which is to be a secret of the ranks: export it first")
                if len(os.environ[name]) < MIN_SECRET_LENGTH:
                    raise UsageError(
                        f"{name} has fewer than {MIN_SECRET_LENGTH} characters, and could not be blanked in logs "
                        "as a secret is"
                    )
            return {name: os.environ[name] for name in self.secrets}

    def check_files(self, folder: Path, *, travels: bool) -> None:
        """See to it that what is said of the working folder can be heeded.

        Args:
            folder: that folder; of it only what the patterns name is looked at, as a plan is made at each key.
            travels: whether it is sent to the ranks.

        Raises:
            UsageError: it cannot.
        """
        said = [name for name in ("includes", "excludes") if self.lists.get(name)]
        if not said:
            return
        with set_error_field(FIELD):
            if not travels:
                raise UsageError(f"ranks work in your own folder here, and nothing travels: leave {said[0]} out")
            if "includes" in said and (nothing := unmatched_patterns(folder, self.lists["includes"])):
                raise UsageError(f"includes: nothing in {resolve_path(folder)} is named by {', '.join(nothing)}")


def parse_image_options(texts: Sequence[str]) -> ImageOptions:
    """What texts ``field=value`` say.

    Raises:
        UsageError: one makes no sense, or holds a secret, which would be kept with the launch.
    """
    lists: dict[str, list[str]] = {}
    env: dict[str, str] = {}
    secrets: list[str] = []
    with set_error_field(FIELD):
        for name, value in map(_parse_option, texts):
            if name in LISTS:
                lists.setdefault(name, []).append(value)
            elif name == "secret":
                secrets.append(_check_variable(value))
            else:
                env[_check_variable(name.removeprefix("env."))] = value
        if both := sorted(env.keys() & set(secrets)):
            raise UsageError(f"{both[0]} is given a value and named as a secret: leave one of them out")
    return ImageOptions(lists, env, secrets)


def _parse_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if name not in (*LISTS, "secret") and not name.startswith("env."):
        raise UsageError(f"there is no {name!r:.40} of an image to be set; there are {_KNOWN}")
    if not equals or not (value.strip() or name.startswith("env.")):
        raise UsageError(f"{name}: write what it is to be as {name}=VALUE")
    if is_secret_name(name.removeprefix("env.")) and name.startswith("env."):
        variable = name.removeprefix("env.")
        raise UsageError(f"{variable} is a secret by its name: write secret={variable}, and export it in the shell")
    if url_secrets(value):
        raise UsageError(f"{name} holds a password or token in a URL, and launches are kept: leave it out")
    if secret := _find_secret(value):
        raise UsageError(
            f"{name} holds what {secret} is, a secret by its name, and launches are kept: write secret={secret} beside "
            f"it, export that in the shell, and ${secret} here"
        )
    return name, value


def _find_secret(text: str) -> str:
    """The name of a secret whose value stands in a text: of one of the shell's, or of one that the text gives a value;
    "" where there is none."""
    for name, value in os.environ.items():
        if is_secret_name(name) and Redactor(secret_values({name: value})).redact_text(text) != text:
            return name
    for found in _ASSIGNED.finditer(text):
        if not found["value"].startswith("$") and secret_values({found["name"]: found["value"]}):
            return found["name"]
    return ""


def _check_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"{name!r:.60} is no name of a variable: use letters, digits and underscores")
    return name


def option_error(error: SpecError) -> SpecError:
    """An image's complaint of a field that was given so."""
    return SpecError(f"{error.field}: {error.reason}", FIELD) if error.field in (*LISTS, "env") else error


@dataclass(frozen=True, slots=True)
class ImageField(ArgumentField):
    """One of them.

    Attributes:
        example: what may be written there.
    """

    example: str = ""

    @property
    def placeholder(self) -> str:
        return f"such as {self.example}"

    def validation_error(self, text: str) -> str:
        try:
            parse_image_options(field_texts(self.name, text))
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


def field_texts(name: str, text: str) -> list[str]:
    """What is written in a field, as texts such as ``pip=einops``.

    Raises:
        ValueError: a quotation in it has no end.
    """
    if not text.strip():
        return []
    if name == "setup":
        return [f"setup={text}"]
    return [_PREFIXES.get(name, f"{name}=") + word for word in shlex.split(text)]


def split_by_field(texts: Iterable[str]) -> Mapping[str, str]:
    """The other way round: what each field says of texts; one that is of none is of a field of its own name."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name.startswith("env."):
            name, value = "env", text.removeprefix("env.")
        found.setdefault("secrets" if name == "secret" else name, []).append(value)
    return {name: " && ".join(values) if name == "setup" else shlex.join(values) for name, values in found.items()}
