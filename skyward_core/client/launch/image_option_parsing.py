"""Environment options of a launch (``--image-set``).

The user gives secrets by name only. Their values are read from the process environment at launch and are never saved.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skyward_core.client.launch.parameter_form_fields import ArgumentField
from skyward_core.model.errors import SpecError, UsageError, set_error_field
from skyward_core.transport.working_folder_upload import unmatched_patterns
from skyward_core.util.redaction import (
    MIN_SECRET_LENGTH,
    Redactor,
    is_secret_name,
    secret_values,
    url_secrets,
)
from skyward_core.util.safe_file_access import resolve_path

FIELD = "image_settings"
LISTS = ("pip", "apt", "setup", "includes", "excludes")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Pattern of an assignment in a shell command or an option. "==" does not match, because a package version follows it.
_ASSIGNED = re.compile(r"(?P<name>\w+)['\"]?\s{0,2}[=:](?!=)\s{0,2}['\"]?(?=(?P<value>[^\s'\",;&|)]+))")
_KNOWN = f"{', '.join(LISTS)}, env.NAME and secret"


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """Parsed environment options of a launch.

    Attributes:
        lists: Values of each field that is a list.
        env: Variables with their values.
        secrets: Names of secret variables, whose values come from the process environment.
    """

    lists: Mapping[str, list[str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()

    def read_secrets(self) -> dict[str, str]:
        """Return the secrets with their values from the process environment.

        Raises:
            UsageError: If a variable is not set, or its value is too short to be redacted in logs.
        """
        with set_error_field(FIELD):
            for name in self.secrets:
                if not os.environ.get(name):
                    raise UsageError(f"secret {name} is not set in this shell. Run export {name}=... first")
                if len(os.environ[name]) < MIN_SECRET_LENGTH:
                    raise UsageError(
                        f"secret {name} has fewer than {MIN_SECRET_LENGTH} characters, too few to be redacted in logs. "
                        "Use a longer value"
                    )
            return {name: os.environ[name] for name in self.secrets}

    def check_files(self, folder: Path, *, travels: bool) -> None:
        """Check that the options about the working folder can be honored.

        Args:
            folder: The working folder. Only the files that match the patterns are read, because plans are made often.
            travels: Whether the working folder is sent to the ranks.

        Raises:
            UsageError: If an option cannot be honored.
        """
        given = [name for name in ("includes", "excludes") if self.lists.get(name)]
        if not given:
            return
        with set_error_field(FIELD):
            if not travels:
                raise UsageError(f"ranks on this machine work in your own folder. Remove {given[0]}")
            if "includes" in given and (unmatched := unmatched_patterns(folder, self.lists["includes"])):
                raise UsageError(f"includes: no file in {resolve_path(folder)} matches {', '.join(unmatched)}")


def parse_image_options(texts: Sequence[str]) -> ImageOptions:
    """Parse the texts ``field=value`` of the option ``--image-set``.

    Raises:
        UsageError: If a text is invalid, or contains a secret: the launch is saved, and secrets must not be.
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
            raise UsageError(f"{both[0]} has a value and is a secret. Remove one of them")
    return ImageOptions(lists, env, secrets)


def _parse_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if name not in (*LISTS, "secret") and not name.startswith("env."):
        raise UsageError(f"unknown image option {name!r:.40}. Known: {_KNOWN}")
    if not equals or not (value.strip() or name.startswith("env.")):
        raise UsageError(f"{name} has no value. Write {name}=VALUE")
    if is_secret_name(name.removeprefix("env.")) and name.startswith("env."):
        variable = name.removeprefix("env.")
        raise UsageError(f"{variable} has the name of a secret. Write secret={variable}, and export it in the shell")
    if url_secrets(value):
        raise UsageError(
            f"{name} contains a password or token in a URL, which would be saved with the launch. Remove it"
        )
    if secret := _find_secret(value):
        raise UsageError(
            f"{name} contains the value of {secret}, which has the name of a secret and would be saved with "
            f"the launch. Add secret={secret}, export it in the shell, and write ${secret} here"
        )
    return name, value


def _find_secret(text: str) -> str:
    """Return the name of the secret whose value a text contains; "" if it contains none. The value may come from the
    environment or from an assignment in the text.
    """
    for name, value in os.environ.items():
        if is_secret_name(name) and Redactor(secret_values({name: value})).redact_text(text) != text:
            return name
    for found in _ASSIGNED.finditer(text):
        if not found["value"].startswith("$") and secret_values({found["name"]: found["value"]}):
            return found["name"]
    return ""


def _check_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise UsageError(f"{name!r:.60} is not a variable name. Use letters, digits and underscores")
    return name


def option_error(error: SpecError) -> SpecError:
    """Convert an error about a field of ``sky.Image`` into an error that names the option ``--image-set``."""
    return SpecError(f"{error.field}: {error.reason}", FIELD) if error.field in (*LISTS, "env") else error


@dataclass(frozen=True, slots=True)
class ImageField(ArgumentField):
    """Form field of an environment option.

    Attributes:
        example: Example of a value.
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
    _field("pip", "einops 'rich>=13'", "packages to install with pip"),
    _field("apt", "libsndfile1", "system packages to install with apt"),
    _field("setup", "make -C data", "command to run on each machine before its first rank; join several with &&"),
    _field("env", "NAME=value OTHER=1", "environment variables; no secrets, because launches are saved"),
    _field("secrets", "HF_TOKEN", "variables with this shell's values, which are never saved"),
    _field("includes", "data/** *.yaml", "ignored files of the working folder to send anyway"),
    _field("excludes", "*.ckpt", "files of the working folder not to send"),
)
_PREFIXES = {"env": "env.", "secrets": "secret="}


def field_texts(name: str, text: str) -> list[str]:
    """Return the content of a form field as option texts such as ``pip=einops``.

    Raises:
        ValueError: If a quotation mark is not closed.
    """
    if not text.strip():
        return []
    if name == "setup":
        return [f"setup={text}"]
    return [_PREFIXES.get(name, f"{name}=") + word for word in shlex.split(text)]


def split_by_field(texts: Iterable[str]) -> Mapping[str, str]:
    """Return the content of each form field, the inverse of :func:`field_texts`. Texts without a form field are grouped
    by the name before "=".
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name.startswith("env."):
            name, value = "env", text.removeprefix("env.")
        found.setdefault("secrets" if name == "secret" else name, []).append(value)
    return {name: " && ".join(values) if name == "setup" else shlex.join(values) for name, values in found.items()}
