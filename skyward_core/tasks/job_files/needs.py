"""The machines that a job file asks for: each way to have them, in plain values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...model.value import Value, value
from .document import Document, Place
from .keys import AutostopKeys, ResourceKeys

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*(\+?)\s*")
_UNITS = {"": 1.0, "gb": 1.0, "gi": 1.0, "g": 1.0, "tb": 2.0**10, "t": 2.0**10}  # in GB
_UNITS |= {"mb": 2.0**-10, "m": 2.0**-10, "kb": 2.0**-20, "k": 2.0**-20}
_TIMES = {"": 60.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
AUTOSTOP = 300.0  # seconds, where only ``true`` is said
ALTERNATIVES = ("any_of", "ordered")


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


class _NeedsReader:
    def __init__(self, document: Document) -> None:
        self._document = document

    def ways(self, keys: ResourceKeys, place: Place) -> Iterator[WantedMachine]:
        """All that resources ask for: alternatives, each with what stands beside them."""
        said = [name for name in ALTERNATIVES if getattr(keys, name) is not None]
        if len(said) > 1:
            raise self._document.error("any_of and ordered: keep one of them", (*place, said[1]))
        if not said:
            yield from self._of_one(keys, place)
            return
        shared = keys.model_dump(exclude_none=True, exclude=set(ALTERNATIVES))
        for number, each in enumerate(getattr(keys, said[0])):
            if each.any_of is not None or each.ordered is not None:
                raise self._document.error(
                    f"{said[0]} inside of {said[0]}: write one list", (*place, said[0], number)
                )
            own = each.model_dump(exclude_none=True)
            if {"cloud", "infra"} & own.keys():
                shared_here = {
                    k: v for k, v in shared.items() if k not in ("cloud", "infra", "region", "zone")
                }
            else:
                shared_here = shared
            yield from self._of_one(ResourceKeys(**shared_here | own), (*place, said[0], number))

    def _of_one(self, keys: ResourceKeys, place: Place) -> Iterator[WantedMachine]:
        cloud, region, zone = self._where(keys, place)
        if isinstance(keys.image_id, Mapping):
            images = dict(keys.image_id)
            image = images.get(region, "") if region else ""
            if not image:
                words = (
                    f"image_id names regions ({', '.join(images)}): say which region, as infra: aws/REGION"
                )
                raise self._document.error(words, (*place, "image_id"))
        else:
            image = keys.image_id or ""
        if image.startswith("docker:"):
            words = "no containers are run here: leave image_id out, and install what is needed in setup"
            raise self._document.error(words, (*place, "image_id"))
        way = WantedMachine(
            cloud=cloud,
            region=region,
            zone=zone,
            vcpus=math.ceil(self._amount(keys.cpus, (*place, "cpus"), units=False)),
            memory_gb=self._amount(keys.memory, (*place, "memory")),
            disk_gb=int(self._amount(keys.disk_size, (*place, "disk_size"))),
            instance_type=keys.instance_type or "",
            image=image,
            spot=bool(keys.use_spot),
            max_hourly=keys.max_hourly_cost or 0.0,
        )
        for name, count in self._accelerators(keys.accelerators, (*place, "accelerators")):
            gpus = math.ceil(count)
            yield replace(way, accelerator=f"{name}:{gpus}" if name else "", gpus=gpus if name else 0)

    def _where(self, keys: ResourceKeys, place: Place) -> tuple[str, str, str]:
        if keys.infra is None:
            return ((keys.cloud or "").lower(), keys.region or "", keys.zone or "")
        if beside := [name for name in ("cloud", "region", "zone") if getattr(keys, name) is not None]:
            raise self._document.error(f"infra says {beside[0]}, too: keep one of them", (*place, beside[0]))
        parts = ["" if part == "*" else part for part in keys.infra.strip().split("/")]
        if len(parts) > 3:
            raise self._document.error(
                f"infra is CLOUD/REGION/ZONE, not {keys.infra!r:.60}", (*place, "infra")
            )
        cloud, region, zone = (*parts, "", "")[:3]
        return cloud.lower(), region, zone

    def _accelerators(self, said: Any, place: Place) -> Iterator[tuple[str, float]]:
        if said is None or said in ([], {}):
            yield "", 0
        elif isinstance(said, str):
            yield self._accelerator(said, None, place)
        elif isinstance(said, Mapping):
            for name, count in said.items():
                yield self._accelerator(name, count, (*place, name))
        else:
            for number, each in enumerate(said):
                if each is None or each == "None":
                    yield "", 0
                else:
                    yield from self._accelerators(each, (*place, number))

    def _accelerator(self, name: str, count: float | None, place: Place) -> tuple[str, float]:
        name, colon, written = name.partition(":")
        try:
            number = float(written) if colon else (1.0 if count is None else float(count))
        except ValueError:
            number = math.nan
        if not 0 < number <= 1024:
            words = f"an accelerator is written NAME:COUNT, such as A100:8, not {name}{colon}{written}"
            raise self._document.error(words, place)
        if colon and count is not None:
            raise self._document.error(f"{name}{colon}{written}: {count:g} says how many twice", place)
        if name.lower().startswith("tpu"):
            raise self._document.error("TPU machines of Google are not rented here", place)
        return name.strip(), number

    def _amount(self, text: str | None, place: Place, *, units: bool = True) -> float:
        if text is None:
            return 0.0
        found = _NUMBER.fullmatch(text)
        unit = found[2].lower() if found else "?"
        if found is None or unit not in _UNITS or (unit and not units):
            raise self._document.error(f"{text!r:.40} is no size; write 32 (GB), 64GB or 32+", place)
        return float(found[1]) * _UNITS[unit]

    def idle_seconds(self, said: Any, place: Place) -> float | None:
        """After how many seconds a pool that nobody uses ends; None for what holds anyway."""
        if said is None or said is False:
            return None
        if said is True:
            return AUTOSTOP
        if isinstance(said, AutostopKeys):
            return AUTOSTOP if said.idle_minutes is None else said.idle_minutes * 60
        found = _NUMBER.fullmatch(str(said))
        if found is None or found[2].lower() not in _TIMES or not float(found[1]):
            raise self._document.error(f"{said!r:.40} is no time; write 10 (minutes), 10m or 2h", place)
        return float(found[1]) * _TIMES[found[2].lower()]


def ways_of(document: Document, keys: ResourceKeys | None) -> tuple[WantedMachine, ...]:
    """The ways to have the machines, in the order of the file.

    Raises:
        JobFileError: something makes no sense; says where.
    """
    if keys is None:
        return (WantedMachine(),)
    return tuple(_NeedsReader(document).ways(keys, ("resources",)))


def idle_seconds(document: Document, keys: ResourceKeys | None) -> float | None:
    """After how many seconds without use the pool is to end; None where the file says nothing of it."""
    return (
        None
        if keys is None
        else _NeedsReader(document).idle_seconds(keys.autostop, ("resources", "autostop"))
    )
