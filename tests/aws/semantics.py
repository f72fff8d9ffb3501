"""EC2's semantics, patched into moto's methods."""

from __future__ import annotations

from typing import Any

from . import launching
from .answers import Refused
from .machine import Machine
from .world import World

# Of DescribeInstances, beside those that moto knows.
_FILTERS = {
    "client-token": "client_token",
    "instance-lifecycle": "lifecycle",
    "placement-group-name": "placement.group_name",
}


def install(world: World) -> None:
    """Make moto's EC2 in this process use ``world``."""
    from moto.ec2.models import EC2Backend
    from moto.ec2.responses import instances
    from moto.ec2.utils import filter_dict_attribute_mapping

    filter_dict_attribute_mapping.update(_FILTERS)
    instances.filter_iam_instance_profiles = lambda *_, **__: None  # launching.py looks, and says it as EC2 does
    moto_runs = EC2Backend.run_instances
    moto_makes_subnet = EC2Backend.create_subnet
    moto_deletes_group = EC2Backend.delete_security_group
    moto_reservations = EC2Backend.all_reservations

    def run_instances(self: Any, image_id: Any, count: Any, user_data: Any, groups: Any, **rest: Any) -> Any:
        return launching.run(world, moto_runs, self, image_id, user_data, groups, **rest)

    def terminate_instances(self: Any, instance_ids: list[str]) -> list[Any]:
        machines = _find(world, instance_ids)
        for machine in machines:
            if machine.instance.disable_api_termination:
                raise Refused(
                    "OperationNotPermitted",
                    f"The instance '{machine.id}' may not be terminated. Modify its 'disableApiTermination' instance "
                    "attribute and try again.",
                )
        if "TerminateInstances" in world.rules.half:
            machines = machines[: len(machines) // 2]
        params = world.call.params
        hard = "true" in (params.get("SkipOsShutdown"), params.get("Force"))
        before = [(machine.instance, machine.instance._state) for machine in machines]
        for machine in machines:
            machine.terminate(hard=hard)
        return before

    def is_shown(name: str) -> bool:
        if world.seen is not None:
            return name in world.seen
        return name not in world.machines or world.machines[name].is_visible

    def reboot_instances(self: Any, instance_ids: list[str]) -> list[Any]:
        machines = _find(world, instance_ids)
        for machine in machines:
            machine.reboot()
        return [machine.instance for machine in machines]

    def all_reservations(self: Any, filters: Any = None) -> list[Any]:
        """Omit machines that are not visible yet."""
        found = []
        for reservation in moto_reservations(self, filters):
            seen = [each for each in reservation.instances if is_shown(each.id)]
            if seen:
                reservation.instances = seen
                found.append(reservation)
        return found

    def delete_security_group(self: Any, name: str | None = None, group_id: str | None = None) -> Any:
        group = self.get_security_group_by_name_or_id(group_id or name)
        if group is not None and _is_held(self, group):
            raise Refused("DependencyViolation", f"resource {group.id} has a dependent object")
        return moto_deletes_group(self, name, group_id)

    def create_subnet(self: Any, vpc_id: str, *given: Any, **more: Any) -> Any:
        """Create a subnet that is not the zone's default. moto would make the first subnet of any VPC the default."""
        subnet = moto_makes_subnet(self, vpc_id, *given, **more)
        if not self.get_vpc(vpc_id).is_default:
            subnet.default_for_az = subnet.map_public_ip_on_launch = False
        return subnet

    EC2Backend.create_subnet = create_subnet
    EC2Backend.delete_security_group = delete_security_group
    EC2Backend.run_instances = run_instances
    EC2Backend.terminate_instances = terminate_instances
    EC2Backend.all_reservations = all_reservations
    EC2Backend.reboot_instances = reboot_instances


def _is_held(backend: Any, group: Any) -> bool:
    """Check whether a network interface has the group, or a rule of another group names it."""
    if any(group.id in [held.id for held in nic.group_set] for nic in backend.enis.values()):
        return True
    others = [other for groups in backend.groups.values() for other in groups.values() if other.id != group.id]
    rules = [rule for other in others for rule in (*other.ingress_rules, *other.egress_rules)]
    return any((rule.source_group or {}).get("GroupId") == group.id for rule in rules)


def _find(world: World, ids: list[str]) -> list[Machine]:
    """Return the machines with these ids. An unknown id fails the whole call."""
    known = [name for name in ids if name in world.machines and world.machines[name].is_visible]
    missing = [name for name in ids if name not in known]
    if missing:
        names = ", ".join(missing)
        text = (
            f"The instance ID '{names}' does not exist"
            if len(missing) == 1
            else f"The instance IDs '{names}' do not exist"
        )
        raise Refused("InvalidInstanceID.NotFound", text)
    return [world.machines[name] for name in ids]
