"""Shared state without a server: keys, limits and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import skyward_core as sky
from skyward_core.plugins import redis_shared_state_client
from skyward_core.plugins.built_in import shared_collections
from skyward_core.plugins.plugin import check_standalone
from skyward_core.plugins.redis_shared_state_client import Key, pack_key, poll_in_slices, private_folder, unpack_key

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.floats(allow_nan=False, allow_infinity=False)
)
KEYS = st.recursive(PLAIN, lambda keys: st.lists(keys, max_size=3).map(tuple), max_leaves=6)


@given(KEYS)
def test_shared_dict_key_round_trips(key: Key) -> None:
    assert repr(unpack_key(pack_key(key))) == repr(key)


@pytest.mark.parametrize("key", [[1], {1}, float("nan"), (1, [2]), object(), type("Text", (str,), {})("a")])
def test_unsupported_shared_dict_key_is_rejected(key: object) -> None:
    with pytest.raises(sky.UsageError, match="key"):
        pack_key(key)  # type: ignore[arg-type]


def test_shared_value_above_the_server_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_shared_state_client, "MAX_VALUE_BYTES", 1000)
    assert redis_shared_state_client.unpack_value(redis_shared_state_client.pack_value(bytes(900))) == bytes(900)
    with pytest.raises(sky.UsageError, match=r"a value of type bytes has 1.02 kB, more than the limit of 1 kB"):
        redis_shared_state_client.pack_value(bytes(1000))


def test_missing_redis_server_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(shared_collections, "EXTRA_PATH", str(tmp_path))
    with (
        pytest.raises(sky.PoolError, match=r"valkey-server or redis-server .* apt-get install redis-server"),
        shared_collections.run_server("token", ("", "", ""), "127.0.0.1", 19000),
    ):
        pass


def test_exited_redis_server_error_quotes_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program := tmp_path / "redis-server").write_text(
        "#!/bin/sh\ncat >/dev/null\necho starting\necho 'no such thing'\nexit 3\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(shared_collections, "find_program", lambda *_: str(program))
    with (
        pytest.raises(sky.PoolError, match="ended with status 3: no such thing"),
        shared_collections.run_server(f"token of {tmp_path}", ("", "", ""), "127.0.0.1", 19000),
    ):
        pass
    assert not private_folder(f"token of {tmp_path}").exists()


def test_shared_state_is_rejected_for_standalone_ranks() -> None:
    with pytest.raises(sky.UsageError, match="one store of all ranks"):
        check_standalone([sky.plugins.shared()])
    with pytest.raises(sky.UsageError, match="port must be"):
        sky.plugins.shared(port=80)


def test_long_wait_is_sliced_with_a_last_poll_at_the_end() -> None:
    waits: list[float] = []
    assert poll_in_slices(waits.append, 0) is None and waits == [0.0]
    assert poll_in_slices(lambda wait: wait or None, None) == 5.0


def test_shared_state_off_a_pool_is_an_error() -> None:
    with pytest.raises(sky.PoolError, match="shared state belongs to the pool"):
        sky.counter("x")
    assert "dict" not in sky.__all__ and "set" not in sky.__all__  # `from skyward_core import *` leaves Python's own
