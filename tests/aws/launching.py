"""RunInstances: checks that EC2 makes before it launches machines, and that moto lacks."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import capacity_blocks
from .answers import Refused
from .images import IMAGES
from .machine import Machine, Order
from .prices import on_demand, spot
from .quotas import DEFAULT, quota_of
from .request import Call
from .rules import NoCapacity
from .world import ACCOUNT, World

_USER_DATA_LIMIT = 16384


@dataclass(frozen=True, slots=True)
class Launched:
    """Launch that an idempotency token stands for."""

    params: dict[str, Any]
    reservation: Any


def run(
    world: World, moto_runs: Callable[..., Any], backend: Any, image: str, data: Any, groups: Any, **rest: Any
) -> Any:
    """Replace moto's ``run_instances`` and return a reservation.

    Raises:
        Refused: For the reasons for which EC2 rejects a launch.
    """
    call = world.call
    token = _token(call)
    if token is not None and (known := world.tokens.get(token)) is not None:
        return _again(world, call, known)
    launch = _Launch(world, call, backend, rest)
    count = launch.count()
    if "RunInstances" in world.rules.half:
        count = max(1, count // 2)
    if not launch.names_subnet:
        rest["placement"] = launch.zone
    reservation = moto_runs(backend, image, count, data, groups, **rest)
    for capacity in launch.limits:
        capacity.left -= count
    for instance in reservation.instances:
        instance.lifecycle = None if launch.market == "on-demand" else launch.market
        instance.placement.group_name = call.params.get("Placement.GroupName")
        machine = Machine(world, instance, launch.order(instance))
        world.machines[machine.id] = machine
        machine.begin()
    if token is not None:
        world.tokens[token] = Launched(call.params, reservation)
    return reservation


def _token(call: Call) -> tuple[str, str | None, str] | None:
    """Return the token's key. A token is valid in the zone that the call names, otherwise in the region."""
    given = call.params.get("ClientToken")
    names = ("Placement.AvailabilityZone", "SubnetId", "NetworkInterface.1.SubnetId")
    place = next((call.params[name] for name in names if name in call.params), None)
    return (call.region, place, given) if given else None


def _again(world: World, call: Call, known: Launched) -> Any:
    if known.params != call.params:
        raise Refused(
            "IdempotentParameterMismatch",
            "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
        )
    if all(world.machines[i.id].state in ("shutting-down", "terminated") for i in known.reservation.instances):
        raise Refused(
            "IdempotentInstanceTerminated",
            f"The client token '{call.params['ClientToken']}' is associated with an instance that has been terminated. "
            "Please use a different client token.",
        )
    return known.reservation


class _Launch:
    """One launch request, which is checked completely before any machine is created."""

    def __init__(self, world: World, call: Call, backend: Any, rest: dict[str, Any]) -> None:
        from moto.ec2.models.instance_types import INSTANCE_TYPES

        self._world = world
        self._call = call
        self._backend = backend
        self._rest = rest
        self.kind = call.params.get("InstanceType", "m1.small")
        self.market = call.params.get("InstanceMarketOptions.MarketType", "on-demand")
        if self.kind not in INSTANCE_TYPES:
            raise Refused("InvalidParameterValue", f"Invalid value '{self.kind}' for InstanceType.")
        self._type = INSTANCE_TYPES[self.kind]
        self._data = self._user_data()
        self._check_image()
        self._check_names()
        self._check_cards()
        capacity_blocks.check(world, call)
        subnets = [rest.get("subnet_id"), *(nic.get("SubnetId") for nic in rest.get("nics", []))]
        self._subnet = next((name for name in subnets if name), None)
        self.names_subnet = self._subnet is not None
        self.zone = self._zone()
        self._check_spot_price()

    @property
    def limits(self) -> list[NoCapacity]:
        return self._limits(self.zone)

    def count(self) -> int:
        """Number of machines to launch: as many as available up to MaxCount, or none if fewer than MinCount."""
        least, most = int(self._call.params["MinCount"]), int(self._call.params["MaxCount"])
        if not 1 <= least <= most:
            raise Refused(
                "InvalidParameterValue", "The minimum count must be at least 1 and at most the maximum count."
            )
        left = min([most, *(limit.left for limit in self.limits)])
        self._check_quota(least)
        if left < least:
            self._refuse_capacity()
        return left

    def order(self, instance: Any) -> Order:
        params, region = self._call.params, self._call.region
        key = params.get("KeyName", "")
        pair = self._backend.key_pairs.get(key)
        hourly = on_demand(self.kind, region)
        if self.market == "spot":
            hourly = spot(self.kind, region, self.zone)
        elif self.market == "capacity-block":
            hourly = 0.0  # paid already
        return Order(
            type=self.kind,
            zone=self.zone,
            region=region,
            market=self.market,
            hourly=hourly,
            ami=params["ImageId"],
            key=key,
            public_key=pair.public_key if pair else "",
            user_data=self._data,
            shutdown=params.get("InstanceInitiatedShutdownBehavior", "stop"),
            hop_limit=int(params.get("MetadataOptions.HttpPutResponseHopLimit", 1)),
            needs_token=params.get("MetadataOptions.HttpTokens", "required") == "required",
            public=instance.nics[0].public_ip is not None,
            has_gpus="GpuInfo" in self._type,
            group=params.get("Placement.GroupName", ""),
            index=int(instance.ami_launch_index),
        )

    def _user_data(self) -> bytes:
        try:
            data = base64.b64decode(self._call.params.get("UserData", ""), validate=True)
        except binascii.Error:
            raise Refused("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.") from None
        if len(data) > _USER_DATA_LIMIT:
            raise Refused("InvalidParameterValue", f"User data is limited to {_USER_DATA_LIMIT} bytes")
        return data

    def _check_image(self) -> None:
        ami = self._call.params.get("ImageId")
        if not ami:
            raise Refused("MissingParameter", "The request must contain the parameter ImageId")
        if ami not in IMAGES:
            raise Refused("InvalidAMIID.NotFound", f"The image id '[{ami}]' does not exist")
        architecture, able = IMAGES[ami].architecture, self._type["ProcessorInfo"]["SupportedArchitectures"]
        if architecture not in able:
            raise Refused(
                "InvalidParameterValue",
                f"The architecture '{','.join(able)}' of the specified instance type does not match the architecture "
                f"'{architecture}' of the specified AMI. Specify an instance type and an AMI that have matching "
                "architectures, and try again.",
            )

    def _check_names(self) -> None:
        params = self._call.params
        if (key := params.get("KeyName")) and key not in self._backend.key_pairs:
            raise Refused("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")
        if any(name.startswith("IamInstanceProfile.") for name in params):
            self._check_profile()
        group = params.get("Placement.GroupName")
        if group and (self._call.region, group) not in self._world.groups:
            raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")

    def _check_cards(self) -> None:
        nics = self._rest.get("nics", [])
        if len(nics) > 1 and any(nic.get("AssociatePublicIpAddress") for nic in nics):
            raise Refused(
                "InvalidParameterCombination",
                "The associatePublicIPAddress parameter cannot be specified when launching with multiple network "
                "interfaces.",
            )

    def _check_profile(self) -> None:
        from moto.iam.models import iam_backends

        params = self._call.params
        profiles = iam_backends[ACCOUNT]["aws"].instance_profiles.values()
        for field, known in (("Name", {each.name for each in profiles}), ("Arn", {each.arn for each in profiles})):
            given = params.get(f"IamInstanceProfile.{field}")
            if given and given not in known:
                where = f"iamInstanceProfile.{field.lower()}"
                raise Refused(
                    "InvalidParameterValue",
                    f"Value ({given}) for parameter {where} is invalid. Invalid IAM Instance Profile {field.lower()}",
                )

    def _check_spot_price(self) -> None:
        offered = self._call.params.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        least = spot(self.kind, self._call.region, self.zone)
        if self.market == "spot" and offered and float(offered) < least:
            raise Refused(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {offered} is lower than the minimum required Spot request "
                f"fulfillment price of {least}.",
            )

    def _zone(self) -> str:
        """Return the zone that the call names, or the first zone with capacity for the type."""
        zone_name = self._call.params.get("Placement.AvailabilityZone")
        if self._subnet is not None:
            zone = str(self._backend.get_subnet(self._subnet).availability_zone)
            if zone_name not in (None, zone):
                raise Refused(
                    "InvalidParameterValue", f"The availability zone '{zone_name}' is not that of the subnet, '{zone}'."
                )
            zone_name = zone
        elif self._backend.get_default_vpc() is None:
            raise Refused(
                "VPCIdNotSpecified",
                "No default VPC for this user. GroupName is only supported for EC2-Classic and default VPC.",
            )
        zones = sorted(subnet.availability_zone for subnet in self._backend.get_default_subnets().values())
        offering = [zone for zone in (zones or [zone_name]) if self._is_offered(zone)]
        if zone_name is not None:
            if zone_name not in zones and not self.names_subnet:
                raise Refused("InvalidParameterValue", f"Invalid availability zone: [{zone_name}]")
            if not self._is_offered(zone_name):
                raise Refused(
                    "Unsupported",
                    f"Your requested instance type ({self.kind}) is not supported in your requested Availability Zone "
                    f"({zone_name}). Please retry your request by not specifying an Availability Zone or choosing "
                    f"{', '.join(offering)}.",
                )
            return zone_name
        if not offering:
            raise Refused(
                "Unsupported",
                "The requested configuration is currently not supported. Please check the documentation for supported "
                "configurations.",
            )
        least = int(self._call.params["MinCount"])
        roomy = [zone for zone in offering if all(limit.left >= least for limit in self._limits(zone))]
        return (roomy or offering)[0]

    def _is_offered(self, zone: str | None) -> bool:
        from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

        offered = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(self._call.region, [])
        return any(o["InstanceType"] == self.kind and o["Location"] == zone for o in offered)

    def _limits(self, zone: str) -> list[NoCapacity]:
        region, grouped = self._call.region, "Placement.GroupName" in self._call.params
        return [
            rule for rule in self._world.rules.no_capacity if rule.fits(region, zone, self.kind, self.market, grouped)
        ]

    def _check_quota(self, count: int) -> None:
        quota = quota_of(self.kind, self.market)
        if quota is None:
            return
        allowed = self._world.rules.quota.get(quota.code, DEFAULT)
        each = self._type["VCpuInfo"]["DefaultVCpus"]
        used = sum(
            machine.vcpus
            for machine in self._world.machines.values()
            if machine.counts_towards(quota, self._call.region)
        )
        if used + count * each <= allowed:
            return
        if self.market == "spot":
            raise Refused("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        raise Refused(
            "VcpuLimitExceeded",
            f"You have requested more vCPU capacity than your current vCPU limit of {allowed:g} allows for the "
            "instance bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
        )

    def _refuse_capacity(self) -> None:
        if self.market == "spot":
            raise Refused(
                "InsufficientInstanceCapacity", "There is no Spot capacity available that matches your request."
            )
        raise Refused(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {self.kind} capacity in the Availability Zone you requested "
            f"({self.zone}). Our system will be working on provisioning additional capacity. You can currently get "
            "capacity by not specifying an Availability Zone in your request or choosing another.",
        )
