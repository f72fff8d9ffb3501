"""Instance metadata service at 169.254.169.254 in a host's network namespace, served by a thread of this process.

Follows "Use IMDS to access instance metadata" of the EC2 User Guide. Version 2 requires a token, which clients request
by PUT. A request without a required token gets 401. The instance's hop limit applies to answers.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Machine

ADDRESS = "169.254.169.254"
_NEW_NET = 0x40000000  # CLONE_NEWNET
_FREEBIND = 15  # IP_FREEBIND: the address comes a moment later


class Metadata:
    """Metadata service of one machine."""

    def __init__(self, machine: Machine, pid: int) -> None:
        self.machine = machine
        self.tokens: dict[str, float] = {}
        self._socket = _listen_inside(pid, machine.order.hop_limit)
        threading.Thread(target=self._serve, daemon=True, name=f"imds-{machine.id}").start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, client = self._socket.accept()
            except OSError:
                return  # closed
            with connection:
                connection.settimeout(5)
                try:
                    _Handler(connection, client, self)  # type: ignore[arg-type]
                except OSError:
                    continue  # whoever asked has gone

    def read(self, path: str) -> str | None:
        """Return the value at a path below /latest. None if there is none."""
        machine, order = self.machine, self.machine.order
        notice = machine.notice
        values = {
            "meta-data/ami-id": order.ami,
            "meta-data/instance-id": machine.id,
            "meta-data/instance-type": order.type,
            "meta-data/instance-life-cycle": order.market,
            "meta-data/local-ipv4": machine.instance.private_ip,
            "meta-data/public-ipv4": machine.instance.public_ip,
            "meta-data/placement/availability-zone": order.zone,
            "meta-data/placement/region": order.region,
            "meta-data/spot/instance-action": json.dumps(notice) if notice else None,
            "meta-data/spot/termination-time": notice["time"] if notice else None,
            "meta-data/events/recommendations/rebalance": (
                json.dumps({"noticeTime": machine.rebalance}) if machine.rebalance else None
            ),
            "user-data": order.user_data.decode(errors="replace") or None,
            "dynamic/instance-identity/document": json.dumps(
                {"instanceId": machine.id, "region": order.region, "instanceType": order.type, "imageId": order.ami}
            ),
        }
        return values.get(path.removeprefix("/latest/"))


class _Handler(BaseHTTPRequestHandler):
    server: Metadata  # type: ignore[assignment]
    server_version = "EC2ws"
    sys_version = ""

    def do_PUT(self) -> None:
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path != "/latest/api/token":
            self._answer(404)
        elif self.headers.get("X-Forwarded-For"):
            self._answer(403)
        elif not seconds.isdigit() or not 1 <= int(seconds) <= 21600:
            self._answer(400)
        else:
            token = secrets.token_urlsafe(32)
            self.server.tokens[token] = time.monotonic() + int(seconds)
            self._answer(200, token)

    def do_GET(self) -> None:
        token = self.headers.get("X-aws-ec2-metadata-token")
        if self._may(token):
            found = self.server.read(self.path)
            self._answer(404 if found is None else 200, found or "")
        else:
            self._answer(401)

    def _may(self, token: str | None) -> bool:
        if token is None:
            return not self.server.machine.order.needs_token
        return self.server.tokens.get(token, 0) >= time.monotonic()

    def _answer(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None: ...


def _listen_inside(pid: int, hops: int) -> socket.socket:
    """Return a socket that listens in the network namespace of a process. A short-lived thread enters it."""
    made: list[socket.socket | OSError] = []

    def go() -> None:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace, _NEW_NET):
                raise OSError(ctypes.get_errno(), "setns")
            listener = socket.socket()
            listener.setsockopt(socket.SOL_IP, _FREEBIND, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_IP, socket.IP_TTL, hops)
            listener.bind((ADDRESS, 80))
            listener.listen(16)
            made.append(listener)
        except OSError as error:
            made.append(error)
        finally:
            os.close(namespace)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    (result,) = made
    if isinstance(result, OSError):
        raise result
    return result
