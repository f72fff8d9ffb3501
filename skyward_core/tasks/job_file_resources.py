"""Resources of a job file as wanted machines: alternatives, locations, accelerators, amounts and idle time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from skyward_core.model.spec_field_checks import duration
from skyward_core.tasks.job_yaml_validation import AutostopKeys, ResourceKeys, YamlDocument, YamlPath
from skyward_core.util.light_dataclass import Value, value

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*(\+?)\s*")
_SIZE_UNITS = {"": 1.0, "gb": 1.0, "gi": 1.0, "g": 1.0, "tb": 2.0**10, "t": 2.0**10}  # size unit -> its value in GB
_SIZE_UNITS |= {"mb": 2.0**-10, "m": 2.0**-10, "kb": 2.0**-20, "k": 2.0**-20}
DEFAULT_IDLE_SECONDS = 300.0  # idle seconds after which the pool ends if a job file contains "autostop: true"
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
