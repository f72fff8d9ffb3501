"""API call parsed from its HTTP request."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

# AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/SERVICE/aws4_request, ...
_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request")


@dataclass(frozen=True, slots=True)
class Call:
    """Parsed API call.

    Attributes:
        service: Name in the signature ("ec2", "sts", "ssm", "pricing", "servicequotas", "iam").
        params: Flat parameters of the query protocol, or the body of the JSON protocol.
        key: Id of the access key; empty for an unsigned request.
        at: Unix time of arrival.
    """

    service: str
    region: str
    action: str
    params: dict[str, Any]
    key: str = ""
    at: float = field(default_factory=time.time)

    def many(self, name: str) -> list[str]:
        """Return the values of ``name.1``, ``name.2``, ..."""
        found: list[str] = []
        while (value := self.params.get(f"{name}.{len(found) + 1}")) is not None:
            found.append(value)
        return found

    def filters(self) -> list[tuple[str, list[str]]]:
        """Return the names and values of ``Filter.1.Name``, ``Filter.1.Value.1``, ..."""
        names = [f"Filter.{number}" for number in range(1, 51)]
        return [(self.params[f"{n}.Name"], self.many(f"{n}.Value")) for n in names if f"{n}.Name" in self.params]

    def shown(self) -> dict[str, Any]:
        return {
            "service": self.service,
            "region": self.region,
            "action": self.action,
            "params": self.params,
            "at": self.at,
        }


def read_call(environ: dict[str, Any], body: bytes) -> Call | None:
    """Return the call in an HTTP request. None if the request is not a call."""
    match = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    key, region, service = match.groups() if match else ("", "", "")
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        params = json.loads(body or b"{}")
        return Call(service, region, target.rpartition(".")[2], params, key)
    params = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
    action = params.pop("Action", "")
    params.pop("Version", None)
    return Call(service, region, action, params, key) if action else None
