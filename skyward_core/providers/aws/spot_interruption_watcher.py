"""A program that asks a machine's metadata service whether EC2 takes the machine back, and says so, a line for each
thing. It runs on the machine as it stands here, alone and with the standard library only.

Lines are JSON: {"kind": "terminate", "left": 117.0}, seconds to the machine's end; {"kind": "rebalance", "left": null};
{"error": "..."} where it cannot be told for half a minute. It ends when its standard input does. What a look brings is
small and checked, for whoever answers there may be no metadata service; a look that hangs ends the program, and who
started it starts another.

What is asked: "Spot Instance interruption notices" and "EC2 instance rebalance recommendations", EC2 User Guide.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

POLL_INTERVAL = 5.0  # seconds between looks, as EC2's guide says
READ_TIMEOUT = 2.0  # seconds for a word of an answer
POLL_TIMEOUT = 20  # seconds after which a look hangs
MAX_RESPONSE_BYTES = 4096  # bytes of an answer
TOKEN_TTL = 21600  # seconds
FAILURES_BEFORE_REPORT = 6  # looks in a row that fail before that is said
MAX_SECONDS_LEFT = 3600.0  # seconds to an end that are believed
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"  # as AWS's own tools have it
ACTIONS = ("terminate", "stop", "hibernate")


class MetadataService:
    """The metadata service, version 2: questions carry a token of a session.

    Args:
        endpoint: its URL.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._token, self._until = "", 0.0

    def read(self, path: str) -> tuple[str | None, float]:
        """What stands at a path, None for nothing; and the time that it is there, seconds since 1970.

        Raises:
            OSError, ValueError: it cannot be told.
        """
        for _ in range(2):
            status, said, at = self._request("GET", path, {"X-aws-ec2-metadata-token": self._session_token()})
            if status != 401:
                break
            self._token = ""  # it is over, or of a service that was started anew
        if status == 404:
            return None, at
        if status != 200:
            raise OSError(f"the metadata service answers {status} to {path}")
        return said, at

    def _session_token(self) -> str:
        if not self._token or time.monotonic() > self._until:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL)}
            asked_at = time.monotonic()
            status, said, _ = self._request("PUT", "/latest/api/token", life)
            if status != 200 or not said.isascii() or not said.isprintable() or not said.strip():
                raise OSError(f"the metadata service answers {status} to who asks for a token")
            self._token, self._until = said.strip(), asked_at + TOKEN_TTL * 0.9
        return self._token

    def _request(self, verb: str, path: str, headers: dict[str, str]) -> tuple[int, str, float]:
        connection = HTTPConnection(self._host, self._port, timeout=READ_TIMEOUT)
        try:
            connection.request(verb, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(MAX_RESPONSE_BYTES + 1)
        except HTTPException as error:
            raise ValueError(f"the metadata service's answer to {path} is none: {error!r:.100}") from error
        except OSError as error:
            raise OSError(f"the metadata service cannot be asked: {error}") from error
        finally:
            connection.close()
        if len(body) > MAX_RESPONSE_BYTES:
            raise ValueError(f"the metadata service's answer to {path} is longer than {MAX_RESPONSE_BYTES} bytes")
        return answer.status, body.decode("ascii", "replace"), _server_time(answer.getheader("Date"))


def _server_time(date: str | None) -> float:
    """The service's clock, which the notice's time is of; the machine's own may be wrong."""
    try:
        return parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):
        return time.time()


def read_notices(metadata: MetadataService) -> list[tuple[str, str, float | None]]:
    """What EC2 says now: kind, when it was said for (as it says so), and how many seconds are left.

    Raises:
        OSError, ValueError: it cannot be told.
    """
    found: list[tuple[str, str, float | None]] = []
    said, now = metadata.read("/latest/meta-data/spot/instance-action")
    if said is not None:
        told = _parse_object(said)
        action, at = told.get("action"), told.get("time")
        if action not in ACTIONS or not isinstance(at, str):
            raise ValueError(f"the metadata service tells of no such end: {said!r:.100}")
        left = _parse_time(at) - now
        found.append((action, at, min(MAX_SECONDS_LEFT, max(0.0, left))))
    said, _ = metadata.read("/latest/meta-data/events/recommendations/rebalance")
    if said is not None:
        found.append(("rebalance", str(_parse_object(said).get("noticeTime"))[:40], None))
    return found


def _parse_object(text: str) -> dict[str, object]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise ValueError(f"the metadata service tells of no such thing: {text!r:.100}")
    return told


def _parse_time(time_there: str) -> float:
    try:
        return datetime.strptime(time_there, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise ValueError(f"the metadata service tells of no such time: {time_there!r:.100}") from error


def read_program() -> str:
    """This module, as it is sent to machines."""
    return Path(__file__).read_text("utf-8")


def main() -> None:
    """Look, say, wait, until nobody listens any more."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    metadata = MetadataService(os.environ.get(ENDPOINT_VARIABLE) or "http://169.254.169.254")
    known: set[tuple[str, str]] = set()
    failed = 0
    while True:
        signal.alarm(POLL_TIMEOUT)
        try:
            found = read_notices(metadata)
        except (OSError, ValueError) as error:
            failed += 1
            if failed == FAILURES_BEFORE_REPORT:
                _print_json({"error": f"{error}"[:200]})
        else:
            failed = 0
            for kind, at, left in found:
                if (kind, at) not in known:
                    known.add((kind, at))
                    _print_json({"kind": kind, "left": left})
        signal.alarm(0)
        if select.select([0], [], [], POLL_INTERVAL)[0] and not os.read(0, 1):
            return


def _print_json(told: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
