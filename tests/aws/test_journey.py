"""A person's way through the app, in a real pseudo-terminal, on rented machines."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.aws import Bed
from tests.aws.pools import left
from tests.lab.proxy import DelayProxy
from tests.support.journey import journey


class Near(DelayProxy):
    """The API at the client's address in the lab, from which machines are spoken to, too: by that the provider tells
    where SSH is to be let in from."""

    def __init__(self, bed: Bed) -> None:
        super().__init__("127.0.0.1", urlsplit(bed.endpoint).port or 0, delay=0)
        self.address = bed.client_address()


@pytest.mark.proof("7 s of a processor")
def test_launch_kill_read_run_again_tear_down(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Near(bed) as near:
        here = {"AWS_ENDPOINT_URL": f"http://{near.address}:{near.port}", "NO_PROXY": near.address}
        for name, text in (bed.environment() | here).items():
            monkeypatch.setenv(name, text)
        journey(tmp_path, "aws", {"instance_type": "g4dn.xlarge"}, typed="work")
    assert left(bed) == []
