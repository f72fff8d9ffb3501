"""What stands in a job file: the keys of SkyPilot's task YAML that mean something here, and what is said of the others.

Names and meanings are those of https://docs.skypilot.co/en/latest/reference/yaml-spec.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

# Keys that have no place here, and what to use.
REFUSED: Mapping[str, str] = {
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
NOTED: Mapping[str, str] = {
    "resources.ports": "no port is opened to the world; one is forwarded from the node to here",
    "resources.disk_tier": "disks are gp3 on AWS, as they come elsewhere",
    "resources.network_tier": "EFA is used on AWS where a type has it",
    "resources.labels": "machines carry labels of their own",
    "resources.job_recovery": "nothing is started again by itself",
    "resources.priority": "runs of a pool take turns",
    "resources.priority_class": "runs of a pool take turns",
}


def _text(value: Any) -> Any:
    """A variable's value: numbers, flags and dates become the texts that SkyPilot makes of them (``true``: True)."""
    return str(value) if isinstance(value, int | float | date) else value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted")
    return value


def _cut(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


Variable = Annotated[str | None, BeforeValidator(_text)]
Number = Annotated[float, BeforeValidator(_number)]
AtLeast = Annotated[
    str, BeforeValidator(_cut), Field(pattern=r"^\s*[0-9]+(\.[0-9]+)?\s*[A-Za-z]{0,2}\s*\+?\s*$")
]
Size = Annotated[str, BeforeValidator(_cut), Field(pattern=r"^\s*[0-9]+(\.[0-9]+)?\s*[A-Za-z]{0,2}\s*$")]


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
    num_nodes: Annotated[int, BeforeValidator(_number)] | None = Field(default=None, ge=1, le=1024)
    resources: ResourceKeys | None = None
    envs: dict[str, Variable] | None = None
    secrets: dict[str, Variable] | None = None
    file_mounts: dict[str, str | dict[str, Any]] | None = None
    setup: str | list[str] | None = None
    run: str | list[str] | None = None
