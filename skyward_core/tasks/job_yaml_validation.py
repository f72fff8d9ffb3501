"""YAML job documents: values with line numbers, validated keys, and removal of secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from yaml.reader import ReaderError

from skyward_core.model.errors import JobFileError
from skyward_core.model.spec_field_checks import duration
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.redaction import Redactor, url_secrets

MAX_CHARACTERS = 1 << 20  # characters
MAX_VALUES = 20_000  # values, counting repetitions by aliases
_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
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
        """Return an error that names the file and the line."""
        at = line or (self.line_of(place) if place is not None else 0)
        return JobFileError(f"{self.name}{f', line {at}' if at else ''}: {words}")

    def _construct(self, node: yaml.Node, place: YamlPath) -> Any:
        self._count += 1
        if self._count > MAX_VALUES or len(place) > 50:
            raise self.make_error(
                "the document has too many or too deeply nested values", line=node.start_mark.line + 1
            )
        self._line_numbers.setdefault(place, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTION_TAGS:
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
        # YAML reads 1:30 as a base-60 number, so the text is used instead.
        return node.value if isinstance(value, int) and not isinstance(value, bool) and ":" in node.value else value

    def _check_text(self, value: Any, node: yaml.Node) -> None:
        """Reject characters that no command, variable or path can contain."""
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


# Unsupported keys, with the alternative or the reason.
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
# Keys without effect, with a description of what happens instead. The user is notified.
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
    """Idle time after which the pool ends."""

    idle_minutes: Number | None = Field(default=None, gt=0)
    down: bool = False
    wait_for: Literal["jobs_and_ssh", "jobs", "none"] | None = None


class RecoveryKeys(_Keys):
    """Restarts of the job after lost machines, and after errors."""

    strategy: str | None = None
    max_restarts_on_errors: int = Field(default=0, ge=0, le=1000)


class ResourceKeys(_Keys):
    """Requirements on each node; with ``any_of`` or ``ordered``, the other keys are defaults."""

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
    # Accepted without effect. The user is notified.
    ports: Any = None
    disk_tier: Any = None
    network_tier: Any = None
    labels: Any = None
    priority: Any = None
    priority_class: Any = None


class GitKeys(_Keys):
    """Repository that is cloned as the working folder."""

    url: str = Field(min_length=1)
    ref: str | None = None


class JobKeys(_Keys):
    """Complete job file."""

    name: str | None = None
    workdir: str | GitKeys | None = None
    num_nodes: Annotated[int, BeforeValidator(_parse_number)] | None = Field(default=None, ge=1, le=1024)
    resources: ResourceKeys | None = None
    envs: dict[str, Variable] | None = None
    secrets: dict[str, Variable] | None = None
    file_mounts: dict[str, str | dict[str, Any]] | None = None
    setup: str | list[str] | None = None
    run: str | list[str] | None = None


_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*(\+?)\s*")
_SIZE_UNITS = {"": 1.0, "gb": 1.0, "gi": 1.0, "g": 1.0, "tb": 2.0**10, "t": 2.0**10}  # in GB
_SIZE_UNITS |= {"mb": 2.0**-10, "m": 2.0**-10, "kb": 2.0**-20, "k": 2.0**-20}
DEFAULT_IDLE_SECONDS = 300.0  # seconds, for autostop: true
ALTERNATIVE_KEYS = ("any_of", "ordered")


@value(frozen=True)
class WantedMachine(Value):
    """One alternative for the machines.

    Attributes:
        cloud: SkyPilot's name of the cloud; "" for any. ``region`` and ``zone`` are locations in that cloud.
        accelerator: Such as "A100:8"; "" for none.
        gpus: Accelerators per machine.
        vcpus: Minimum number of vCPUs; 0 for any. ``memory_gb`` and ``disk_gb`` are minimums, too.
        max_hourly: Maximum price of one machine in dollars per hour; 0 for any.
    """

    cloud: str = ""
    region: str = ""
    zone: str = ""
    accelerator: str = ""
    gpus: int = 0
    vcpus: int = 0
    memory_gb: float = 0.0
    disk_gb: int = 0
    instance_type: str = ""
    image: str = ""
    spot: bool = False
    max_hourly: float = 0.0


class ResourceReader:
    """Reader of the resources of a job file. Its methods raise a JobFileError that names the line."""

    def __init__(self, document: YamlDocument) -> None:
        self._document = document

    def read_alternatives(self, keys: ResourceKeys, place: YamlPath) -> Iterator[WantedMachine]:
        """Yield the alternative machines in file order, each completed with the shared keys."""
        present = [name for name in ALTERNATIVE_KEYS if getattr(keys, name) is not None]
        if len(present) > 1:
            raise self._document.make_error("any_of and ordered are both set. Keep one", (*place, present[1]))
        if not present:
            yield from self._read_alternative(keys, place)
            return
        shared = keys.model_dump(exclude_none=True, exclude=set(ALTERNATIVE_KEYS))
        for number, each in enumerate(getattr(keys, present[0])):
            if each.any_of is not None or each.ordered is not None:
                raise self._document.make_error(
                    f"{present[0]} is nested in {present[0]}. Write one list", (*place, present[0], number)
                )
            own = each.model_dump(exclude_none=True)
            if {"cloud", "infra"} & own.keys():
                shared_here = {k: v for k, v in shared.items() if k not in ("cloud", "infra", "region", "zone")}
            else:
                shared_here = shared
            yield from self._read_alternative(ResourceKeys(**shared_here | own), (*place, present[0], number))

    def _read_alternative(self, keys: ResourceKeys, place: YamlPath) -> Iterator[WantedMachine]:
        cloud, region, zone = self._read_location(keys, place)
        if isinstance(keys.image_id, Mapping):
            images = dict(keys.image_id)
            image = images.get(region, "") if region else ""
            if not image:
                words = f"image_id names regions ({', '.join(images)}). Set a region, such as infra: aws/REGION"
                raise self._document.make_error(words, (*place, "image_id"))
        else:
            image = keys.image_id or ""
        if image.startswith("docker:"):
            words = "containers are not supported. Remove image_id, and install packages in setup"
            raise self._document.make_error(words, (*place, "image_id"))
        way = WantedMachine(
            cloud=cloud,
            region=region,
            zone=zone,
            vcpus=math.ceil(self._read_amount(keys.cpus, (*place, "cpus"), units=False)),
            memory_gb=self._read_amount(keys.memory, (*place, "memory")),
            disk_gb=int(self._read_amount(keys.disk_size, (*place, "disk_size"))),
            instance_type=keys.instance_type or "",
            image=image,
            spot=bool(keys.use_spot),
            max_hourly=keys.max_hourly_cost or 0.0,
        )
        for name, count in self._read_accelerators(keys.accelerators, (*place, "accelerators")):
            gpus = math.ceil(count)
            yield replace(way, accelerator=f"{name}:{gpus}" if name else "", gpus=gpus if name else 0)

    def _read_location(self, keys: ResourceKeys, place: YamlPath) -> tuple[str, str, str]:
        if keys.infra is None:
            return ((keys.cloud or "").lower(), keys.region or "", keys.zone or "")
        if beside := [name for name in ("cloud", "region", "zone") if getattr(keys, name) is not None]:
            raise self._document.make_error(
                f"{beside[0]} is already part of infra. Keep one of them", (*place, beside[0])
            )
        parts = ["" if part == "*" else part for part in keys.infra.strip().split("/")]
        if len(parts) > 3:
            raise self._document.make_error(
                f"infra must be CLOUD/REGION/ZONE, not {keys.infra!r:.60}", (*place, "infra")
            )
        cloud, region, zone = (*parts, "", "")[:3]
        return cloud.lower(), region, zone

    def _read_accelerators(self, accelerators: Any, place: YamlPath) -> Iterator[tuple[str, float]]:
        if accelerators is None or accelerators in ([], {}):
            yield "", 0
        elif isinstance(accelerators, str):
            yield self._read_accelerator(accelerators, None, place)
        elif isinstance(accelerators, Mapping):
            yield from (self._read_accelerator(name, count, (*place, name)) for name, count in accelerators.items())
        else:
            for number, each in enumerate(accelerators):
                if each is None or each == "None":
                    yield "", 0
                else:
                    yield from self._read_accelerators(each, (*place, number))

    def _read_accelerator(self, name: str, count: float | None, place: YamlPath) -> tuple[str, float]:
        name, colon, written = name.partition(":")
        try:
            number = float(written) if colon else (1.0 if count is None else float(count))
        except ValueError:
            number = math.nan
        if not 0 < number <= 1024:
            words = f"an accelerator must be NAME:COUNT, such as A100:8, not {name}{colon}{written}"
            raise self._document.make_error(words, place)
        if colon and count is not None:
            raise self._document.make_error(f"{name}{colon}{written}: the count is repeated ({count:g})", place)
        if name.lower().startswith("tpu"):
            raise self._document.make_error("Google TPU machines are not supported", place)
        return name.strip(), number

    def _read_amount(self, text: str | None, place: YamlPath, *, units: bool = True) -> float:
        if text is None:
            return 0.0
        found = _NUMBER.fullmatch(text)
        unit = found[2].lower() if found else "?"
        if found is None or unit not in _SIZE_UNITS or (unit and not units):
            raise self._document.make_error(f"{text!r:.40} is not a size. Write 32 (GB), 64GB or 32+", place)
        return float(found[1]) * _SIZE_UNITS[unit]

    def read_idle_seconds(self, autostop: Any, place: YamlPath) -> float | None:
        """Return the idle time in seconds after which the pool ends. None if the file does not set it."""
        if autostop is None or autostop is False:
            return None
        if autostop is True:
            return DEFAULT_IDLE_SECONDS
        if isinstance(autostop, AutostopKeys):
            return DEFAULT_IDLE_SECONDS if autostop.idle_minutes is None else autostop.idle_minutes * 60
        text = str(autostop).strip()
        try:
            if seconds := duration(f"{text}m" if text.replace(".", "", 1).isdigit() else text):
                return seconds
        except ValueError:
            pass
        raise self._document.make_error(f"{autostop!r:.40} is not a duration. Write 10 (minutes), 10m or 2h", place)


def strip_secrets(text: str, names: Collection[str], values: Collection[str]) -> str:
    """Return the text of a job file without the values of the file's ``secrets`` and of the given variables.

    Args:
        text: Text of the file.
        names: Variables in the file's ``envs`` whose values are removed.
        values: Secret texts that must not occur in the result, such as values given on the command line.

    Raises:
        JobFileError: If the values cannot be removed, or one of them also occurs elsewhere in the file.
    """
    places = sorted(_secret_spans(text, set(names)), reverse=True)
    for begin, end in places:
        lines = text[begin:end].count("\n") if text[begin:end].endswith("\n") else 0
        text = f"{text[:begin]}null{chr(10) if lines else ''}{text[end:]}"
    written = text.encode()
    if Redactor(values).redact_bytes(written) != written:  # replacing this occurrence would change the job
        raise JobFileError("the value of a secret also occurs in another line")
    try:
        tables = YamlDocument(text, "it").values
    except JobFileError as error:
        raise JobFileError(f"the secrets of the job file cannot be removed: {error}") from error
    hidden, envs = (tables.get(name) for name in ("secrets", "envs"))
    remaining = [*(hidden.values() if isinstance(hidden, Mapping) else ())]
    remaining += [value for name, value in envs.items() if name in names] if isinstance(envs, Mapping) else []
    if any(value is not None for value in remaining):
        raise JobFileError("the secrets of the job file cannot be removed")
    if url_secrets(text):
        raise JobFileError("a URL in it contains a password")
    return text


def _secret_spans(text: str, names: Collection[str]) -> set[tuple[int, int]]:
    """Return the start and end of each value that must be removed."""
    found: set[tuple[int, int]] = set()  # an alias has the position of its anchor
    for tree in yaml.compose_all(text, Loader=yaml.SafeLoader):
        for key, table in tree.value if isinstance(tree, yaml.MappingNode) else ():
            if key.value not in ("secrets", "envs") or not isinstance(table, yaml.MappingNode):
                continue
            for name, node in table.value:
                is_empty = node.start_mark.index == node.end_mark.index  # "null" would join the name: TOKEN:null
                if (key.value == "secrets" or name.value in names) and not is_empty:
                    found.add((node.start_mark.index, node.end_mark.index))
    return found
