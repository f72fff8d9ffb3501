"""The YAML read with line numbers, keys validated, secrets blanked."""

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
MAX_VALUES = 20_000  # values, with all that aliases repeat
_COLLECTION_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_INVALID_CHARACTERS = re.compile("[\\0\\ud800-\\udfff]")
YamlPath = tuple[str | int, ...]


class YamlDocument:
    """What a YAML text says.

    Args:
        text: it.
        name: of its file, for errors.

    Attributes:
        values: the mapping at its top.

    Raises:
        JobFileError: it is no YAML, no mapping, several documents, or too much.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._line_numbers: dict[YamlPath, int] = {}
        if len(text) > MAX_CHARACTERS:
            raise JobFileError(f"{name} has {len(text):,} characters; a job file has at most {MAX_CHARACTERS:,}")
        try:
            trees = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            words = f"{error.problem or error.context}"
            if "'\\t'" in words:
                words = "a tab stands where YAML wants spaces"
            raise self.make_error(words, line=line) from error
        except ReaderError as error:
            words = f"the character {chr(error.character)!r} may not stand in YAML"
            raise self.make_error(words, line=text.count("\n", 0, error.position) + 1) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise self.make_error(f"it cannot be read as YAML: {error}".partition("\n")[0]) from error
        full = [tree for tree in trees if tree is not None and tree.value != ""]
        if len(full) > 1:
            raise self.make_error(
                "it has several documents (---), which is a pipeline of jobs: launch each from a file of its own",
                line=full[1].start_mark.line + 1,
            )
        self._count = 0
        self._loader = yaml.SafeLoader("")
        made = self._construct(full[0], ()) if full else {}
        if not isinstance(made, dict):
            raise self.make_error(
                f"at its top stand keys with values, such as run: echo hello, not {_type_label(made)}"
            )
        self.values: dict[str, Any] = made

    def line_of(self, place: YamlPath) -> int:
        """The line on which something stands, from 1: its own, or that of the nearest thing around it."""
        while place and place not in self._line_numbers:
            place = place[:-1]
        return self._line_numbers.get(place, 1)

    def make_error(self, words: str, place: YamlPath | None = None, line: int = 0) -> JobFileError:
        """An error that says where."""
        at = line or (self.line_of(place) if place is not None else 0)
        return JobFileError(f"{self.name}{f', line {at}' if at else ''}: {words}")

    def _construct(self, node: yaml.Node, place: YamlPath) -> Any:
        self._count += 1
        if self._count > MAX_VALUES or len(place) > 50:
            raise self.make_error("it holds more than any job file needs", line=node.start_mark.line + 1)
        self._line_numbers.setdefault(place, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTION_TAGS:
            raise self.make_error(f"{node.tag} means nothing here", line=node.start_mark.line + 1)
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
        # A port is written 8080, and what 1:30 means to YAML, a number to the base of 60, nobody means by it.
        return node.value if isinstance(value, int) and not isinstance(value, bool) and ":" in node.value else value

    def _check_text(self, value: Any, node: yaml.Node) -> None:
        """No command, variable or path can have what some escapes of YAML mean."""
        if isinstance(value, str) and (odd := _INVALID_CHARACTERS.search(value)):
            words = f"the character {odd[0]!r} is in no text that a machine could be given"
            raise self.make_error(words, line=node.start_mark.line + 1)

    def _construct_mapping(self, node: yaml.MappingNode, place: YamlPath) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for at, below in node.value:
            line = at.start_mark.line + 1
            if not isinstance(at, yaml.ScalarNode):
                raise self.make_error("a key is one word", line=line)
            key = str(at.value)
            self._check_text(key, at)
            if at.tag == "tag:yaml.org,2002:merge":
                merged = self._construct(below, (*place, "<<"))
                for each in merged if isinstance(merged, list) else [merged]:
                    if not isinstance(each, dict):
                        raise self.make_error("<<: takes keys with values", line=line)
                    made = each | made
                continue
            if (*place, key) in self._line_numbers and key in made:
                raise self.make_error(
                    f"{key} stands twice (also in line {self._line_numbers[(*place, key)]}); keep one",
                    line=line,
                )
            self._line_numbers[(*place, key)] = line
            made[key] = self._construct(below, (*place, key))
        return made


def _type_label(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "nothing"}.get(type(value), type(value).__name__)


# Keys that have no place here, and what to use.
UNSUPPORTED_KEYS: Mapping[str, str] = {
    "service": "nothing here serves: run the server as the job, and forward its port",
    "volumes": "no volumes are made or mounted: use what the machines have, or bring files with file_mounts",
    "config": "settings of a provider are given where the file is launched",
    "pool": "name the pool where the file is launched",
    "inputs": "inputs are paths: bring them with workdir or file_mounts",
    "outputs": "what ranks write is fetched from the pool",
    "event_callback": "a command of yours runs at a run's end by [notify] of skyward.toml",
    "estimated": "nothing here plans by it",
    "experimental": "its keys are SkyPilot's own",
    "_policy_mutated_user_config": "it is SkyPilot's own",
    "resources.accelerator_args": "TPU machines of Google are not rented here",
    "resources.accelerator_args_map": "TPU machines of Google are not rented here",
    "resources.cluster_name_on_cloud": "it is SkyPilot's own",
    "resources.volumes": "no volumes are made or mounted: disk_size makes the machine's own disk larger",
    "resources.spot_recovery": "job_recovery is its name",
}
# What is read and changes nothing here, and what holds instead: it is told.
IGNORED_KEYS: Mapping[str, str] = {
    "resources.ports": "no port is opened to the world; one is forwarded from the node to here",
    "resources.disk_tier": "disks are gp3 on AWS, as they come elsewhere",
    "resources.network_tier": "EFA is used on AWS where a type has it",
    "resources.labels": "machines carry labels of their own",
    "resources.job_recovery": "nothing is started again by itself",
    "resources.priority": "runs of a pool take turns",
    "resources.priority_class": "runs of a pool take turns",
}


def _to_text(value: Any) -> Any:
    """A variable's value: numbers, flags and dates become the texts that SkyPilot makes of them (``true``: True)."""
    return str(value) if isinstance(value, int | float | date) else value


def _parse_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted")
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
    """When a pool that nobody uses ends."""

    idle_minutes: Number | None = Field(default=None, gt=0)
    down: bool = False
    wait_for: Literal["jobs_and_ssh", "jobs", "none"] | None = None


class ResourceKeys(_Keys):
    """What each node is; of ``any_of`` and ``ordered`` the rest are defaults."""

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
    any_of: list[ResourceKeys] | None = Field(default=None, min_length=1)
    ordered: list[ResourceKeys] | None = Field(default=None, min_length=1)
    # Read, and told of.
    ports: Any = None
    disk_tier: Any = None
    network_tier: Any = None
    labels: Any = None
    job_recovery: Any = None
    priority: Any = None
    priority_class: Any = None


class GitKeys(_Keys):
    """A repository that is the working folder."""

    url: str = Field(min_length=1)
    ref: str | None = None


class JobKeys(_Keys):
    """A whole job file."""

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
DEFAULT_IDLE_SECONDS = 300.0  # seconds, where only ``true`` is said
ALTERNATIVE_KEYS = ("any_of", "ordered")


@value(frozen=True)
class WantedMachine(Value):
    """One way to have the machines.

    Attributes:
        cloud: where, by SkyPilot's name; "" for anywhere. ``region`` and ``zone``: there.
        accelerator: such as "A100:8"; "" for none.
        gpus: how many of it each machine has.
        vcpus: at least so many; 0 for any. ``memory_gb`` and ``disk_gb`` alike.
        max_hourly: dollars an hour of one; 0 for any price.
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
    """Reader of the resources of a job file. Its methods raise JobFileError, which says where."""

    def __init__(self, document: YamlDocument) -> None:
        self._document = document

    def read_alternatives(self, keys: ResourceKeys, place: YamlPath) -> Iterator[WantedMachine]:
        """Yield the machines that resources allow, in the order of the file, each with what stands beside them."""
        said = [name for name in ALTERNATIVE_KEYS if getattr(keys, name) is not None]
        if len(said) > 1:
            raise self._document.make_error("any_of and ordered: keep one of them", (*place, said[1]))
        if not said:
            yield from self._read_alternative(keys, place)
            return
        shared = keys.model_dump(exclude_none=True, exclude=set(ALTERNATIVE_KEYS))
        for number, each in enumerate(getattr(keys, said[0])):
            if each.any_of is not None or each.ordered is not None:
                raise self._document.make_error(
                    f"{said[0]} inside of {said[0]}: write one list", (*place, said[0], number)
                )
            own = each.model_dump(exclude_none=True)
            if {"cloud", "infra"} & own.keys():
                shared_here = {k: v for k, v in shared.items() if k not in ("cloud", "infra", "region", "zone")}
            else:
                shared_here = shared
            yield from self._read_alternative(ResourceKeys(**shared_here | own), (*place, said[0], number))

    def _read_alternative(self, keys: ResourceKeys, place: YamlPath) -> Iterator[WantedMachine]:
        cloud, region, zone = self._read_location(keys, place)
        if isinstance(keys.image_id, Mapping):
            images = dict(keys.image_id)
            image = images.get(region, "") if region else ""
            if not image:
                words = f"image_id names regions ({', '.join(images)}): say which region, as infra: aws/REGION"
                raise self._document.make_error(words, (*place, "image_id"))
        else:
            image = keys.image_id or ""
        if image.startswith("docker:"):
            words = "no containers are run here: leave image_id out, and install what is needed in setup"
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
            raise self._document.make_error(f"infra says {beside[0]}, too: keep one of them", (*place, beside[0]))
        parts = ["" if part == "*" else part for part in keys.infra.strip().split("/")]
        if len(parts) > 3:
            raise self._document.make_error(f"infra is CLOUD/REGION/ZONE, not {keys.infra!r:.60}", (*place, "infra"))
        cloud, region, zone = (*parts, "", "")[:3]
        return cloud.lower(), region, zone

    def _read_accelerators(self, said: Any, place: YamlPath) -> Iterator[tuple[str, float]]:
        if said is None or said in ([], {}):
            yield "", 0
        elif isinstance(said, str):
            yield self._read_accelerator(said, None, place)
        elif isinstance(said, Mapping):
            for name, count in said.items():
                yield self._read_accelerator(name, count, (*place, name))
        else:
            for number, each in enumerate(said):
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
            words = f"an accelerator is written NAME:COUNT, such as A100:8, not {name}{colon}{written}"
            raise self._document.make_error(words, place)
        if colon and count is not None:
            raise self._document.make_error(f"{name}{colon}{written}: {count:g} says how many twice", place)
        if name.lower().startswith("tpu"):
            raise self._document.make_error("TPU machines of Google are not rented here", place)
        return name.strip(), number

    def _read_amount(self, text: str | None, place: YamlPath, *, units: bool = True) -> float:
        if text is None:
            return 0.0
        found = _NUMBER.fullmatch(text)
        unit = found[2].lower() if found else "?"
        if found is None or unit not in _SIZE_UNITS or (unit and not units):
            raise self._document.make_error(f"{text!r:.40} is no size; write 32 (GB), 64GB or 32+", place)
        return float(found[1]) * _SIZE_UNITS[unit]

    def read_idle_seconds(self, said: Any, place: YamlPath) -> float | None:
        """After how many seconds a pool that nobody uses ends; None for what holds anyway."""
        if said is None or said is False:
            return None
        if said is True:
            return DEFAULT_IDLE_SECONDS
        if isinstance(said, AutostopKeys):
            return DEFAULT_IDLE_SECONDS if said.idle_minutes is None else said.idle_minutes * 60
        text = str(said).strip()
        try:
            if seconds := duration(f"{text}m" if text.replace(".", "", 1).isdigit() else text):
                return seconds
        except ValueError:
            pass
        raise self._document.make_error(f"{said!r:.40} is no time; write 10 (minutes), 10m or 2h", place)


def strip_secrets(text: str, names: Collection[str], values: Collection[str]) -> str:
    """The same with nothing where the values of its ``secrets``, and of other variables, stand; whoever runs it has to
    give them anew.

    Args:
        text: what stands in the file.
        names: those variables of its ``envs``.
        values: texts that may stand nowhere in it, such as what was given in place of what it says.

    Raises:
        JobFileError: they cannot be left out, or one stands in it beside them.
    """
    places = sorted(_secret_spans(text, set(names)), reverse=True)
    for begin, end in places:
        lines = text[begin:end].count("\n") if text[begin:end].endswith("\n") else 0
        text = f"{text[:begin]}null{chr(10) if lines else ''}{text[end:]}"
    written = text.encode()
    if Redactor(values).redact_bytes(written) != written:  # without it that line would do something else
        raise JobFileError("the value of a secret stands in another line of it, too")
    try:
        tables = YamlDocument(text, "it").values
    except JobFileError as error:
        raise JobFileError(f"its secrets cannot be left out of it: {error}") from error
    hidden, envs = (tables.get(name) for name in ("secrets", "envs"))
    left = [*(hidden.values() if isinstance(hidden, Mapping) else ())]
    left += [value for name, value in envs.items() if name in names] if isinstance(envs, Mapping) else []
    if any(value is not None for value in left):
        raise JobFileError("its secrets cannot be left out of it")
    if url_secrets(text):
        raise JobFileError("a password stands in a URL in it")
    return text


def _secret_spans(text: str, names: Collection[str]) -> set[tuple[int, int]]:
    """From where to where values stand that are left out."""
    found: set[tuple[int, int]] = set()  # an alias stands where its anchor does
    for tree in yaml.compose_all(text, Loader=yaml.SafeLoader):
        for key, table in tree.value if isinstance(tree, yaml.MappingNode) else ():
            if key.value not in ("secrets", "envs") or not isinstance(table, yaml.MappingNode):
                continue
            for name, node in table.value:
                if key.value == "secrets" or name.value in names:
                    found.add((node.start_mark.index, node.end_mark.index))
    return found
