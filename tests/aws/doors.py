"""Check whether an instance's security groups allow SSH from this machine."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

_SSH = 22


def lets_in(instance: Any, client: str, *, loopback: bool) -> bool:
    """Check whether a rule of the instance's security groups allows SSH.

    Args:
        client: This machine's address in the lab.
        loopback: Whether rules for loopback count, too. The API listens on loopback, so clients seem to come from
            there.
    """
    groups = {group.id: group for nic in instance.nics.values() for group in nic.group_set}
    return any(_fits(rule, client, loopback) for group in groups.values() for rule in group.ingress_rules)


def _fits(rule: Any, client: str, loopback: bool) -> bool:
    if rule.ip_protocol not in ("-1", "tcp", "6"):
        return False
    if rule.ip_protocol != "-1" and not int(rule.from_port) <= _SSH <= int(rule.to_port):
        return False
    answer = (rule.ip_range or {}).get("CidrIp")
    if not answer:
        return False
    network = ip_network(answer)
    return ip_address(client) in network or (loopback and ip_address("127.0.0.1") in network)
