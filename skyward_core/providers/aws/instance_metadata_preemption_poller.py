"""Watcher of EC2 preemption notices: a program that polls a machine's metadata service and prints one JSON line per
notice.

The file is sent to the machine and runs there alone, so it imports only the standard library.
Output: {"kind": "terminate", "left": 117.0} with the seconds until the machine ends; {"kind": "rebalance", "left":
null}; {"error": "..."} after half a minute of failed polls. The program ends when its standard input ends.
Answers are limited in size and validated, because the server may not be a metadata service. A poll that hangs ends
the program, and the agent starts a new one.
Reference: "Spot Instance interruption notices" and "EC2 instance rebalance recommendations", EC2 User Guide.
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

POLL_INTERVAL = 5.0  # seconds between two polls, as EC2's user guide recommends
READ_TIMEOUT = 2.0  # seconds without data within an answer, after which the request fails
POLL_TIMEOUT = 20  # seconds after which a poll counts as hanging
MAX_RESPONSE_BYTES = 4096  # maximum bytes of an answer that are read
TOKEN_TTL = 21600  # seconds for which the requested session token is valid
FAILURES_BEFORE_REPORT = 6  # number of failed polls in a row after which the program reports an error
MAX_SECONDS_LEFT = 3600.0  # upper limit for the remaining seconds in a notice
# environment variable with the service's address, which AWS's own tools also read
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
ACTIONS = ("terminate", "stop", "hibernate")


class MetadataService:
    """Client for the metadata service, version 2, whose requests carry a session token.

    Args:
        endpoint: URL of the service.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._token, self._until = "", 0.0

    def read(self, path: str) -> tuple[str | None, float]:
        """Return the text at a path, or None if there is none, and the service's Unix time.

        Raises:
            OSError, ValueError: If the service cannot be queried.
        """
        for _ in range(2):
            status, text, at = self._request("GET", path, {"X-aws-ec2-metadata-token": self._session_token()})
            if status != 401:
                break
            self._token = ""  # the token has expired, or the service has restarted
        if status == 404:
            return None, at
        if status != 200:
            raise OSError(f"the metadata service answered {path} with status {status}")
        return text, at

    def _session_token(self) -> str:
        if not self._token or time.monotonic() > self._until:
            life = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL)}
            requested_at = time.monotonic()
            status, token, _ = self._request("PUT", "/latest/api/token", life)
            if status != 200 or not token.isascii() or not token.isprintable() or not token.strip():
                raise OSError(f"the metadata service answered a token request with status {status}")
            self._token, self._until = token.strip(), requested_at + TOKEN_TTL * 0.9
        return self._token

    def _request(self, verb: str, path: str, headers: dict[str, str]) -> tuple[int, str, float]:
        connection = HTTPConnection(self._host, self._port, timeout=READ_TIMEOUT)
        try:
            connection.request(verb, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(MAX_RESPONSE_BYTES + 1)
        except HTTPException as error:
            raise ValueError(f"invalid answer of the metadata service to {path}: {error!r:.100}") from error
        except OSError as error:
            raise OSError(f"cannot query the metadata service: {error}") from error
        finally:
            connection.close()
        if len(body) > MAX_RESPONSE_BYTES:
            raise ValueError(f"the metadata service's answer to {path} is longer than {MAX_RESPONSE_BYTES} bytes")
        return answer.status, body.decode("ascii", "replace"), _server_time(answer.getheader("Date"))


def _server_time(date: str | None) -> float:
    """Return the time of the service's clock, because notices use that clock and the machine's own may be wrong."""
    try:
        return parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):
        return time.time()


def read_notices(metadata: MetadataService) -> list[tuple[str, str, float | None]]:
    """Return the current notices: kind, EC2's timestamp, and the seconds that remain.

    Raises:
        OSError, ValueError: If the service cannot be queried.
    """
    found: list[tuple[str, str, float | None]] = []
    text, now = metadata.read("/latest/meta-data/spot/instance-action")
    if text is not None:
        notice = _parse_object(text)
        action, at = notice.get("action"), notice.get("time")
        if action not in ACTIONS or not isinstance(at, str):
            raise ValueError(f"unexpected response from the instance metadata service: {text!r:.100}")
        found.append((action, at, min(MAX_SECONDS_LEFT, max(0.0, _parse_time(at) - now))))
    text, _ = metadata.read("/latest/meta-data/events/recommendations/rebalance")
    if text is not None:
        found.append(("rebalance", str(_parse_object(text).get("noticeTime"))[:40], None))
    return found


def _parse_object(text: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"unexpected response from the instance metadata service: {text!r:.100}")
    return parsed


def _parse_time(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise ValueError(f"unexpected time from the instance metadata service: {text!r:.100}") from error


def read_program() -> str:
    """Return the source of this module, which is sent to machines."""
    return Path(__file__).read_text("utf-8")


def main() -> None:
    """Poll the metadata service and print notices until standard input ends."""
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


def _print_json(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
