"""What plugins with servers of their own have in common."""

from __future__ import annotations

import os
import re
import socket

import pytest

from skyward_core.model.errors import PoolError
from skyward_core.plugins.server_ports_and_certificates import check_port_free, set_variables


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_that_another_one_has_is_told_with_what_to_do(family: int, address: str) -> None:
    with socket.socket(family) as taken:
        taken.bind((address, 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = f"port {port} of {address} cannot be had (Address already in use): give another one, dask(port=...)"
        with pytest.raises(PoolError, match=re.escape(said)):
            check_port_free("dask", address, port)
    check_port_free("dask", address, port)


def test_variables_are_as_they_were_once_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAD", "before")
    monkeypatch.delenv("NEW", raising=False)
    with pytest.raises(ZeroDivisionError), set_variables({"HAD": "now", "NEW": "here"}):
        assert (os.environ["HAD"], os.environ["NEW"]) == ("now", "here")
        _ = 1 / 0
    assert os.environ["HAD"] == "before" and "NEW" not in os.environ
