"""YAML job documents: values with line numbers, validated keys, errors of values, and removal of secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from yaml.reader import ReaderError

from skyward_core.model.errors import JobFileError, convert_errors
from skyward_core.util.redaction import Redactor, url_secrets

MAX_CHARACTERS = 1 << 20  # maximum number of characters of a job file
MAX_VALUES = 20_000  # maximum number of values in a job file; each use of a YAML alias counts the values again
_INVALID_CHARACTERS = re.compile("[\\0\\ud800-\\udfff]")
YamlPath = tuple[str | int, ...]


class YamlDocument:
    """Parsed YAML text.

    Args:
        text: YAML text.
        name: Name of the file, for errors.

    Attributes:
        values: The mapping at the top level.

    Raises:
        JobFileError: If the text is not YAML, is not a mapping, has several documents, or is too large.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._line_numbers: dict[YamlPath, int] = {}
        if len(text) > MAX_CHARACTERS:
            raise JobFileError(f"{name} has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
        try:
            trees = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            words = f"{error.problem or error.context}"
            if "'\\t'" in words:
                words = "a tab is used in place of spaces"
            raise self.make_error(words, line=line) from error
        except ReaderError as error:
            words = f"the character {chr(error.character)!r} is not allowed in YAML"
            raise self.make_error(words, line=text.count("\n", 0, error.position) + 1) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise self.make_error(f"not valid YAML: {error}".partition("\n")[0]) from error
        full = [tree for tree in trees if tree is not None and tree.value != ""]
        if len(full) > 1:
            raise self.make_error(
                "several documents (---), which form a pipeline, are not supported. Launch each from its own file",
                line=full[1].start_mark.line + 1,
            )
        self._count = 0
        self._loader = yaml.SafeLoader("")
        made = self._construct(full[0], ()) if full else {}
        if not isinstance(made, dict):
            raise self.make_error(
                f"the top level must be keys with values, such as run: echo hello, not {_type_label(made)}"
            )
        self.values: dict[str, Any] = made

    def line_of(self, place: YamlPath) -> int:
        """Return the line number of a value, from 1. If unknown, return the line number of the nearest enclosing
        value.
        """
        while place and place not in self._line_numbers:
            place = place[:-1]
        return self._line_numbers.get(place, 1)

    def make_error(self, words: str, place: YamlPath | None = None, line: int = 0) -> JobFileError:
        """Return an error about a value of the job file that names the file and the line."""
        at = line or (self.line_of(place) if place is not None else 0)
        return JobFileError(f"{self.name}{f', line {at}' if at else ''}: {words}")

    def _construct(self, node: yaml.Node, place: YamlPath) -> Any:
        self._count += 1
        if self._count > MAX_VALUES or len(place) > 50:
            raise self.make_error(
                "the document has too many or too deeply nested values", line=node.start_mark.line + 1
            )
        self._line_numbers.setdefault(place, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise self.make_error(f"the tag {node.tag} is not supported", line=node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._construct_mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._construct(each, (*place, number)) for number, each in enumerate(node.value)]
        try:
            value = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            words = f"{node.value!r:.60} cannot be read: {getattr(error, 'problem', None) or error}"
            raise self.make_error(words, line=node.start_mark.line + 1) from error
        self._check_text(value, node)
        # YAML reads 1:30 as the base-60 number 90, so use the original text instead.
        return node.value if isinstance(value, int) and not isinstance(value, bool) and ":" in node.value else value

    def _check_text(self, value: Any, node: yaml.Node) -> None:
        """Reject a text with a character that no command, variable or path can contain, such as a zero byte."""
        if isinstance(value, str) and (odd := _INVALID_CHARACTERS.search(value)):
            raise self.make_error(f"the character {odd[0]!r} is not supported", line=node.start_mark.line + 1)

    def _construct_mapping(self, node: yaml.MappingNode, place: YamlPath) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for at, below in node.value:
            line = at.start_mark.line + 1
            if not isinstance(at, yaml.ScalarNode):
                raise self.make_error("a key must be a single value", line=line)
            key = str(at.value)
            self._check_text(key, at)
            if at.tag == "tag:yaml.org,2002:merge":
                merged = self._construct(below, (*place, "<<"))
                for each in merged if isinstance(merged, list) else [merged]:
                    if not isinstance(each, dict):
                        raise self.make_error("<<: needs keys with values", line=line)
                    made = each | made
                continue
            if (*place, key) in self._line_numbers and key in made:
                raise self.make_error(
                    f"{key} is repeated (first in line {self._line_numbers[(*place, key)]}). Keep one", line=line
                )
            self._line_numbers[(*place, key)] = line
            made[key] = self._construct(below, (*place, key))
        return made


def _type_label(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "nothing"}.get(type(value), type(value).__name__)


# Unsupported key of a job file -> advice on what to use instead, or the reason.
UNSUPPORTED_KEYS: Mapping[str, str] = {
    "service": "run the server as the job, and forward its port",
    "volumes": "use the machines' disks, or copy files with file_mounts",
    "config": "pass provider settings when launching the file",
    "pool": "name the pool when launching the file",
    "inputs": "inputs are paths. Send them with workdir or file_mounts",
    "outputs": "output files are fetched from the pool",
    "event_callback": "set a command in [notify] of skyward.toml, which runs at the end of each run",
    "estimated": "it is not used for planning",
    "experimental": "its keys are internal to SkyPilot",
    "_policy_mutated_user_config": "it is internal to SkyPilot",
    "resources.accelerator_args": "Google TPU machines are not supported",
    "resources.accelerator_args_map": "Google TPU machines are not supported",
    "resources.cluster_name_on_cloud": "it is internal to SkyPilot",
    "resources.volumes": "set disk_size for a larger machine disk",
    "resources.spot_recovery": "use job_recovery",
}
# Ignored key of a job file -> description of what happens instead, which the user sees as a note.
IGNORED_KEYS: Mapping[str, str] = {
    "resources.ports": "ports are not opened publicly; forward a port from the node to this machine",
    "resources.disk_tier": "AWS disks are gp3; other providers use their default",
    "resources.network_tier": "on AWS, EFA is used if the instance type has it",
    "resources.labels": "machines have fixed labels",
    "resources.priority": "runs of a pool run in order",
    "resources.priority_class": "runs of a pool run in order",
}


def _to_text(value: Any) -> Any:
    """Convert a variable's value to the text that SkyPilot uses (``true`` becomes "True")."""
    return str(value) if isinstance(value, int | float | date) else value


def _parse_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _strip_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


Variable = Annotated[str | None, BeforeValidator(_to_text)]
Number = Annotated[float, BeforeValidator(_parse_number)]
AtLeast = Annotated[
    str, BeforeValidator(_strip_text), Field(pattern=r"^\s*[0-9]+(\.[0-9]+)?\s*[A-Za-z]{0,2}\s*\+?\s*$")
]
Size = Annotated[str, BeforeValidator(_strip_text), Field(pattern=r"^\s*[0-9]+(\.[0-9]+)?\s*[A-Za-z]{0,2}\s*$")]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)


class AutostopKeys(_Keys):
    """Keys of ``autostop``: idle time after which the pool ends."""

    idle_minutes: Number | None = Field(default=None, gt=0)
    down: bool = False
    wait_for: Literal["jobs_and_ssh", "jobs", "none"] | None = None


class RecoveryKeys(_Keys):
    """Keys of ``job_recovery``: restarts of the job after lost machines, and after errors."""

    strategy: str | None = None
    max_restarts_on_errors: int = Field(default=0, ge=0, le=1000)


class ResourceKeys(_Keys):
    """Keys of ``resources``: requirements on each node. With ``any_of`` or ``ordered``, the other keys are defaults."""

    infra: str | None = None
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    accelerators: str | dict[str, Number | None] | list[str | dict[str, Number | None] | None] | None = None
    cpus: AtLeast | None = None
    memory: AtLeast | None = None
    instance_type: str | None = None
    use_spot: bool | None = None
    max_hourly_cost: Number | None = Field(default=None, gt=0)
    image_id: str | dict[str, str] | None = None
    disk_size: Size | None = None
    autostop: bool | int | str | AutostopKeys | None = None
    job_recovery: str | RecoveryKeys | None = None
    any_of: list[ResourceKeys] | None = Field(default=None, min_length=1)
    ordered: list[ResourceKeys] | None = Field(default=None, min_length=1)
    # SkyPilot's keys that are accepted but have no effect. A note tells the user.
    ports: Any = None
    disk_tier: Any = None
    network_tier: Any = None
    labels: Any = None
    priority: Any = None
    priority_class: Any = None


class GitKeys(_Keys):
    """Keys of a ``workdir`` that is a git repository, which is cloned as the working folder."""

    url: str = Field(min_length=1)
    ref: str | None = None


class JobKeys(_Keys):
    """All keys of a job file."""

    name: str | None = None
    workdir: str | GitKeys | None = None
    num_nodes: Annotated[int, BeforeValidator(_parse_number)] | None = Field(default=None, ge=1, le=1024)
    resources: ResourceKeys | None = None
    envs: dict[str, Variable] | None = None
    secrets: dict[str, Variable] | None = None
    file_mounts: dict[str, str | dict[str, Any]] | None = None
    setup: str | list[str] | None = None
    run: str | list[str] | None = None


def check_keys(document: YamlDocument, values: Any, model: type[BaseModel], place: YamlPath) -> Iterator[str]:
    """Reject unsupported keys, and yield notes for keys without effect.

    Raises:
        JobFileError: If a key is unknown or not supported. The message names the alternative.
    """
    if not isinstance(values, Mapping):
        return
    for key in values:
        name = ".".join(part for part in (*place, key) if isinstance(part, str))
        name = re.sub(r"\.(any_of|ordered)", "", name)
        if words := UNSUPPORTED_KEYS.get(name):
            raise document.make_error(f"{name} is not supported: {words}", (*place, key))
        if key not in model.model_fields:
            near = get_close_matches(key, model.model_fields, 1)
            hint = f". Did you mean {near[0]}?" if near else f". Known keys: {', '.join(model.model_fields)}"
            raise document.make_error(f"unknown key {key!r:.60}{hint}", (*place, key))
        if name in IGNORED_KEYS and values[key] is not None:
            yield f"{name} (line {document.line_of((*place, key))}) has no effect: {IGNORED_KEYS[name]}"
    if model is JobKeys:
        yield from check_keys(document, values.get("workdir"), GitKeys, ("workdir",))
        yield from check_keys(document, values.get("resources"), ResourceKeys, ("resources",))
    elif model is ResourceKeys:
        yield from check_keys(document, values.get("autostop"), AutostopKeys, (*place, "autostop"))
        yield from check_keys(document, values.get("job_recovery"), RecoveryKeys, (*place, "job_recovery"))
        for name in ("any_of", "ordered"):
            alternatives = values.get(name)
            for number, each in enumerate(alternatives if isinstance(alternatives, list) else ()):
                yield from check_keys(document, each, ResourceKeys, (*place, name, number))


def translate_validation_error(document: YamlDocument, error: ValidationError) -> JobFileError:
    """Return the error for the first invalid value."""
    # For a union, pydantic reports an error for each of its types. The deepest error is about the type that the user
    # meant.
    found = max(error.errors(), key=lambda each: len(each["loc"]))
    # The error's location also contains names of types. Follow only the parts that are keys of the document.
    place: YamlPath = ()
    at: Any = document.values
    for part in found["loc"]:
        try:
            at = at[part]
        except (KeyError, IndexError, TypeError):
            continue
        place = (*place, part)
    name = ".".join(map(str, place)) or "the job file"
    if found["type"] == "missing":
        return document.make_error(f"{name} lacks {found['loc'][-1]}", place)
    words = _EXPECTED.get(found["type"]) or found["msg"].removeprefix("Value error, ")
    words = words.format(**found.get("ctx", {}))
    shown = _describe_value(at)
    if place[:1] in (("envs",), ("secrets",)):
        shown = "its value"  # do not quote the value, because it may be secret
    elif found["type"] == "string_type" and isinstance(at, int | float | date):
        words += ". Put it in quotes"
    return document.make_error(f"{name} cannot be {shown}: {words[:1].lower()}{words[1:]}", place)


_EXPECTED = {
    **dict.fromkeys(("string_type", "string_too_short"), "expected a text"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "expected keys with values"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "expected a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    "list_type": "expected a list",
    "greater_than_equal": "expected {ge} or more",
    "greater_than": "expected more than {gt:g}",
    "less_than_equal": "expected {le} or less",
    "too_short": "expected at least one item",
    "string_pattern_mismatch": "expected a number, such as 32, 32+ or 64GB",
}


def _describe_value(value: Any) -> str:
    """Return a short text about a value of the file, for an error message."""
    if isinstance(value, Mapping | list):
        return ("a list" if isinstance(value, list) else "a mapping") if value else "empty"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return f"{value!r:.60}" if isinstance(value, str) else f"{value!s:.60}"


def strip_secrets(text: str, names: Collection[str], values: Collection[str]) -> str:
    """Return the text of a job file without the values of the file's ``secrets`` and of the given variables.

    Args:
        text: Text of the file.
        names: Variables in the file's ``envs`` whose values are removed.
        values: Secret texts that must not occur in the result, such as values given on the command line.

    Raises:
        JobFileError: If the values cannot be removed, or one of them also occurs elsewhere in the file.
    """
    for begin, end in sorted(_secret_spans(text, set(names)), reverse=True):
        lines = text[begin:end].count("\n") if text[begin:end].endswith("\n") else 0
        text = f"{text[:begin]}null{chr(10) if lines else ''}{text[end:]}"
    written = text.encode()
    # The secret also occurs elsewhere in the file, where its removal would change the job.
    if Redactor(values).redact_bytes(written) != written:
        raise JobFileError("the value of a secret also occurs in another line")
    with convert_errors("the secrets of the job file cannot be removed", JobFileError, JobFileError):
        tables = YamlDocument(text, "it").values
    hidden, envs = (tables.get(name) for name in ("secrets", "envs"))
    remaining = [*(hidden.values() if isinstance(hidden, Mapping) else ())]
    remaining += [value for name, value in envs.items() if name in names] if isinstance(envs, Mapping) else []
    if any(value is not None for value in remaining):
        raise JobFileError("the secrets of the job file cannot be removed")
    if url_secrets(text):
        raise JobFileError("a URL in it contains a password")
    return text


def _secret_spans(text: str, names: Collection[str]) -> set[tuple[int, int]]:
    """Return the start and end positions in a job file of each secret value that must be removed."""
    found: set[tuple[int, int]] = set()  # a set, because an alias has the same position as its anchor
    for tree in yaml.compose_all(text, Loader=yaml.SafeLoader):
        for key, table in tree.value if isinstance(tree, yaml.MappingNode) else ():
            if key.value not in ("secrets", "envs") or not isinstance(table, yaml.MappingNode):
                continue
            for name, node in table.value:
                # Skip an empty value, because inserted text would join its key, as in "TOKEN:null".
                is_empty = node.start_mark.index == node.end_mark.index
                if (key.value == "secrets" or name.value in names) and not is_empty:
                    found.add((node.start_mark.index, node.end_mark.index))
    return found
