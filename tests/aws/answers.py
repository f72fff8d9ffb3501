"""Answers in the three formats of AWS services: EC2's XML, the query protocol's XML, and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from typing import Any
from uuid import uuid4

from .request import Call

# HTTP status by code, where it is not 400 (EC2 API Reference, "Error codes": server errors are 5xx).
STATUS = {
    "AuthFailure": 401,
    "DryRunOperation": 412,
    "ExpiredToken": 403,
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "InvalidClientTokenId": 403,
    "RequestLimitExceeded": 503,
    "UnauthorizedOperation": 403,
    "AccessDenied": 403,
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    kind: str = "text/xml;charset=UTF-8"
    headers: dict[str, str] = field(default_factory=dict)


class Refused(Exception):
    """Error of the service that rejects a call."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def error(call: Call, code: str, message: str) -> Answer:
    """Return the service's error answer."""
    status = STATUS.get(code, 400)
    if call.service == "ec2":
        inner = f"<Code>{code}</Code><Message>{escape(message, quote=False)}</Message>"
        text = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>{uuid4()}</RequestID></Response>"
    elif call.service in ("sts", "iam"):
        inner = f"<Type>Sender</Type><Code>{code}</Code><Message>{escape(message, quote=False)}</Message>"
        text = f"<ErrorResponse><Error>{inner}</Error><RequestId>{uuid4()}</RequestId></ErrorResponse>"
    else:
        body = json.dumps({"__type": code, "message": message}).encode()
        return Answer(status, body, "application/x-amz-json-1.1", {"x-amzn-ErrorType": code})
    return Answer(status, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode())


def as_json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), "application/x-amz-json-1.1")


def as_xml(action: str, value: dict[str, Any]) -> Answer:
    """Return EC2's XML answer. Names are unchanged, and lists become ``<item>`` elements."""
    inner = _xml({"requestId": str(uuid4()), **value})
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response xmlns="{space}">{inner}</{action}Response>'
    return Answer(200, text.encode())


def _xml(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"<{name}>{_xml(inner)}</{name}>" for name, inner in value.items() if inner is not None)
    if isinstance(value, list | tuple):
        return "".join(f"<item>{_xml(inner)}</item>" for inner in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape(str(value), quote=False)
