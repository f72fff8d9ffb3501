"""WSGI layer in front of moto: records calls, injects faults, and answers calls that moto does not support."""

from __future__ import annotations

import io
import json
import re
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import iam
from .agreed import CONTROL, KEY
from .answers import STATUS, Answer, Refused, error
from .control import Control
from .more_calls import MORE
from .request import Call, read_call
from .world import World

_CODE = re.compile(rb"<Code>([^<]+)</Code>")
_PHRASES = {200: "OK", 400: "Bad Request"}


class Front:
    """WSGI application."""

    def __init__(self, world: World, moto: Callable[..., Iterable[bytes]], control: Control) -> None:
        self._world = world
        self._moto = moto
        self._control = control
        self._listed: dict[tuple[str, bytes], Answer] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        path = environ.get("PATH_INFO", "")
        if path.startswith(CONTROL):
            answer = self._control.answer(path.removeprefix(CONTROL), json.loads(body or b"{}"))
            return _send(start, answer)
        call = read_call(environ, body)
        if call is None:
            return _send(start, Answer(404, b"no such call", "text/plain"))
        answer = self._answer(call, environ, body)
        if self._is_lost(call):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        return _send(start, answer)

    def _answer(self, call: Call, environ: dict[str, Any], body: bytes) -> Answer:
        world = self._world
        with world.lock:
            world.calls.append(call)
            slow = world.rules.slow.get(call.action, 0.0)
        if slow:
            time.sleep(slow)
        with world.lock:
            try:
                self._refuse(call)
                self._fail(call)
                world.call = call
                with world.past.shown(world, call):
                    answer = self._ask(call, environ, body)
                if not call.action.startswith(("Describe", "Get", "List")):
                    world.past.note(world)
                if call.action in world.rules.half:
                    world.rules.half.discard(call.action)
                    raise Refused("InternalError", "An internal error has occurred")
                if call.action in _DOORS:
                    for machine in world.machines.values():
                        machine.open_door()
                return answer
            except Refused as refused:
                return error(call, refused.code, refused.message)

    def _ask(self, call: Call, environ: dict[str, Any], body: bytes) -> Answer:
        ours = MORE.get((call.service, call.action))
        return ours(self._world, call) if ours else self._ask_once(call, environ, body)

    def _fail(self, call: Call) -> None:
        """Fail a call without any effect, if a test asked for that."""
        failing = self._world.rules.failing
        if failing.get(call.action, 0) > 0:
            failing[call.action] -= 1
            raise Refused("InternalError", "An internal error has occurred")

    def _refuse(self, call: Call) -> None:
        """Reject calls that EC2 rejects before it reads their parameters."""
        rules = self._world.rules
        if call.key != KEY:
            raise Refused(*_UNKNOWN_KEY.get(call.service, _UNKNOWN_KEY["others"]))
        if rules.expires_after is not None:
            rules.expires_after -= 1
            rules.expired = rules.expired or rules.expires_after < 0
        if rules.expired:
            raise Refused(*_EXPIRED.get(call.service, _EXPIRED["others"]))
        if rules.throttle is not None and not self._world.bucket.take(rules.throttle):
            code = "RequestLimitExceeded" if call.service == "ec2" else "ThrottlingException"
            raise Refused(code, "Request limit exceeded.")
        if call.action in rules.denied:
            raise iam.denied(call)
        iam.check(self._world, call)
        if call.service == "ec2" and call.params.get("DryRun") == "true":
            raise Refused("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")

    def _ask_once(self, call: Call, environ: dict[str, Any], body: bytes) -> Answer:
        """Cache moto's answers about data that never changes, because moto builds them slowly."""
        if call.action not in _UNCHANGING:
            return self._ask_moto(environ, body)
        asked = call.region, body
        if asked not in self._listed:
            self._listed[asked] = self._ask_moto(environ, body)
        return self._listed[asked]

    def _ask_moto(self, environ: dict[str, Any], body: bytes) -> Answer:
        data: dict[str, Any] = {}

        def start(status: str, headers: list[tuple[str, str]], *_: object) -> None:
            data.update(status=int(status.split()[0]), headers=headers)

        text = b"".join(self._moto({**environ, "wsgi.input": io.BytesIO(body)}, start))
        status = data["status"]
        if status == 400 and (code := _CODE.search(text)):
            status = STATUS.get(code[1].decode(), 400)
        headers = {name: value for name, value in data["headers"] if name.lower().startswith("x-amz")}
        kind = next((value for name, value in data["headers"] if name.lower() == "content-type"), "text/xml")
        return Answer(status, text, kind, headers)

    def _is_lost(self, call: Call) -> bool:
        with self._world.lock:
            lost = self._world.rules.lost
            if lost.get(call.action, 0) < 1:
                return False
            lost[call.action] -= 1
            return True


# After these other clients may be let in than before.
_DOORS = {
    "AuthorizeSecurityGroupIngress",
    "ModifyInstanceAttribute",
    "ModifyNetworkInterfaceAttribute",
    "RevokeSecurityGroupIngress",
}
_UNCHANGING = {"DescribeImages", "DescribeInstanceTypeOfferings", "DescribeInstanceTypes", "DescribeRegions"}
_UNKNOWN_KEY = {
    "ec2": ("AuthFailure", "AWS was not able to validate the provided access credentials"),
    "sts": ("InvalidClientTokenId", "The security token included in the request is invalid."),
    "iam": ("InvalidClientTokenId", "The security token included in the request is invalid."),
    "others": ("UnrecognizedClientException", "The security token included in the request is invalid."),
}
_EXPIRED = {
    "ec2": ("RequestExpired", "Request has expired."),
    "sts": ("ExpiredToken", "The security token included in the request is expired"),
    "iam": ("ExpiredToken", "The security token included in the request is expired"),
    "others": ("ExpiredTokenException", "The security token included in the request is expired"),
}


def _send(start: Callable[..., Any], answer: Answer) -> list[bytes]:
    headers = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))), *answer.headers.items()]
    start(f"{answer.status} {_PHRASES.get(answer.status, 'Answer')}", headers)
    return [answer.body]
