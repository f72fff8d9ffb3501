"""Blobs from node to node: who is served, who is not, and that a wrong content is never kept."""

from __future__ import annotations

import os
import resource
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from skyward_core.node.agent.blob_server import ACCEPT_RETRY_DELAY, MAX_UNAUTHENTICATED, BlobServer
from skyward_core.protocol import tls_stream
from skyward_core.transport.certificates import Authority, TlsCredentials, node_name
from skyward_core.util.content_hash import hash_bytes
from tests.support.waiting import wait_until

DATA = b"payload" * 300_000
NAME = hash_bytes(DATA)


@pytest.fixture
def authority() -> Authority:
    return Authority("p")


@pytest.fixture
def head(tmp_path: Path, authority: Authority) -> Iterator[BlobServer]:
    blobs = tmp_path / "head"
    blobs.mkdir()
    (blobs / NAME).write_bytes(DATA)
    (tmp_path / "secret").write_text("not a blob")
    peers = BlobServer(blobs, tmp_path / "spool", "127.0.0.1", authority.issue(node_name(0)).to_json())
    yield peers
    peers.close()


def other(tmp_path: Path, papers: TlsCredentials) -> BlobServer:
    blobs = tmp_path / "other"
    blobs.mkdir()
    return BlobServer(blobs, tmp_path / "spool", "127.0.0.1", papers.to_json())


def test_a_blob_goes_from_node_to_node(tmp_path: Path, head: BlobServer, authority: Authority) -> None:
    node = other(tmp_path, authority.issue(node_name(1)))
    node.fetch(NAME, len(DATA), ("127.0.0.1", head.port))
    assert [path.name for path in (tmp_path / "other").iterdir()] == [NAME]
    assert (tmp_path / "other" / NAME).read_bytes() == DATA
    node.close()


def test_what_is_not_there_and_what_is_no_blob_is_refused(
    tmp_path: Path, head: BlobServer, authority: Authority
) -> None:
    node = other(tmp_path, authority.issue(node_name(1)))
    with pytest.raises(OSError, match="has not got it"):
        node.fetch("0" * 32, 5, ("127.0.0.1", head.port))
    with pytest.raises(OSError, match="no blob's name"):
        node.fetch("../secret", 10, ("127.0.0.1", head.port))
    assert not list((tmp_path / "other").iterdir())
    node.close()


def test_another_content_than_the_name_says_is_not_kept(tmp_path: Path, head: BlobServer, authority: Authority) -> None:
    (tmp_path / "head" / NAME).write_bytes(b"X" + DATA[1:])
    node = other(tmp_path, authority.issue(node_name(1)))
    with pytest.raises(OSError, match="something else"):
        node.fetch(NAME, len(DATA), ("127.0.0.1", head.port))
    assert not list((tmp_path / "other").iterdir())
    node.close()


def test_a_node_of_another_pool_gets_nothing_and_gives_nothing(
    tmp_path: Path, head: BlobServer, authority: Authority
) -> None:
    stranger = other(tmp_path, Authority("p").issue(node_name(1)))  # the same name, another authority
    with pytest.raises(OSError, match="from the peer"):
        stranger.fetch(NAME, len(DATA), ("127.0.0.1", head.port))
    with pytest.raises(OSError, match="from the peer"):
        head.fetch("1" * 32, 5, ("127.0.0.1", stranger.port))
    assert not list((tmp_path / "other").iterdir())
    stranger.close()


@pytest.mark.parametrize("speaks_tls", [True, False], ids=["tls without a certificate", "no tls"])
def test_whoever_shows_no_certificate_gets_no_byte_of_a_blob(head: BlobServer, speaks_tls: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    got = b""
    with socket.create_connection(("127.0.0.1", head.port), timeout=10) as plain:
        try:
            line = context.wrap_socket(plain) if speaks_tls else plain
            line.sendall(NAME.encode() + b"\n")
            while data := line.recv(1 << 16):
                got += data
        except (ssl.SSLError, ConnectionError):
            pass  # refused, as it should be
    assert b"payload" not in got and struct.pack("!Q", len(DATA)) not in got


def test_nobody_is_served_after_the_end(head: BlobServer) -> None:
    head.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", head.port), timeout=10)


@pytest.fixture(autouse=True)
def no_thread_raises(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    assert not [w for w in recwarn if w.category is pytest.PytestUnhandledThreadExceptionWarning]


def threads_of(peers: BlobServer) -> int:
    return sum(thread.name.endswith("(_serve)") for thread in threading.enumerate())


def test_strangers_neither_keep_a_peer_out_nor_cost_more_than_a_few_threads(
    tmp_path: Path, head: BlobServer, authority: Authority
) -> None:
    strangers = []
    try:
        for _ in range(3 * MAX_UNAUTHENTICATED):
            strangers.append(socket.create_connection(("127.0.0.1", head.port), timeout=60))
        wait_until(lambda: len(head._unauthenticated) == MAX_UNAUTHENTICATED)
        wait_until(lambda: threads_of(head) <= MAX_UNAUTHENTICATED)
        node = other(tmp_path, authority.issue(node_name(1)))
        node.fetch(NAME, len(DATA), ("127.0.0.1", head.port))
        node.close()
        assert (tmp_path / "other" / NAME).read_bytes() == DATA
    finally:
        for stranger in strangers:
            stranger.close()
    wait_until(lambda: threads_of(head) == 0)


def test_a_stranger_that_keeps_talking_has_its_time_like_others(
    head: BlobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_stream, "HANDSHAKE_TIMEOUT", 0.3)
    record = b"\x16\x03\x01\x02\x00" + bytes(512)  # of a handshake; a byte of it comes now and then
    said = 0
    with socket.create_connection(("127.0.0.1", head.port), timeout=60) as stranger, suppress(OSError):
        while said < len(record) and not select.select([stranger], [], [], 0.02)[0]:
            said += stranger.send(record[said : said + 1])
    assert said < len(record)
    wait_until(lambda: threads_of(head) == 0)


def test_it_listens_again_when_there_are_descriptors_again(
    tmp_path: Path, head: BlobServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = other(tmp_path, authority.issue(node_name(1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        held = []
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                held.append(os.dup(0))
        waiting.connect(("127.0.0.1", head.port))  # nobody can take it
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        time.sleep(3 * ACCEPT_RETRY_DELAY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
        waiting.close()
    node.fetch(NAME, len(DATA), ("127.0.0.1", head.port))
    node.close()
