"""Words that older generations have for what a person may choose of machines rented from Amazon EC2."""

from __future__ import annotations

from typing import Any

from ...model.older_words import Rule, Rules, refused, renamed, unheeded
from ...store import home

_KEYS = "keys are those that boto3 finds: set the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or profile="
_OFFERS = "offers are tried one after another, the cheapest first"


def _unless_another_serves(rule: Rule) -> Rule:
    """It matters only where machines are really rented: with ``--provider`` none is."""

    def either(kind: str, name: str, value: Any) -> dict[str, Any]:
        if another_serves():
            return unheeded(f"--provider {home.provider_override} serves instead")(kind, name, value)
        return rule(kind, name, value)

    return either


def another_serves() -> bool:
    """Whether ``--provider`` puts another one in the place of this."""
    return home.provider_override not in (None, "aws")


def _profile(value: Any) -> Any:
    if value == "auto" and not another_serves():
        raise ValueError('"auto" is not to be had: name an instance profile of yours, or leave it out')
    return value


OLDER: Rules = {
    "subnet_id": renamed("subnet"),
    "security_group_id": renamed("security_group"),
    "instance_profile_arn": renamed("instance_profile", _profile),
    "username": renamed("ssh_user"),
    "ubuntu_version": unheeded("ami= names another machine image than the usual one", "24.04"),
    "instance_timeout": unheeded("sky.Options(start_timeout=...) bounds the whole start", 300),
    "request_timeout": unheeded("calls to AWS have time limits of their own", 30),
    "allocation_strategy": unheeded(_OFFERS, "price-capacity-optimized"),
    "launch_window": unheeded("machines of a pool are asked for at once", 1.0),
    "multi_subnet": unheeded("a pool's machines stand in one zone", False),
    "heterogeneous_instances": unheeded("a pool's machines are of one type", False),
    "exclude_burstable": unheeded("instance_type= names the one that is meant", False),
    "access_key_id": _unless_another_serves(refused(_KEYS)),
    "secret_access_key": _unless_another_serves(refused(_KEYS)),
    "session_token": _unless_another_serves(refused(_KEYS)),
}
