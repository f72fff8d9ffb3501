"""Large files between the client and a node: who may, what is taken, what is kept when a line breaks."""

from __future__ import annotations

import os
import pickle
import random
import resource
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import blob_server
from skyward_core.node.agent.blob_server import ACCEPT_RETRY_DELAY, MAX_UNAUTHENTICATED, BlobServer
from skyward_core.plugins.certificates import Authority, TlsCredentials, node_name
from skyward_core.protocol import tls_stream
from skyward_core.protocol.tls_stream import (
    CLIENT,
    RefusedByPeer,
    TlsConnection,
    TlsConnectionError,
    make_ssl_context,
)
from skyward_core.transport.direct_transfer import IDLE_TIMEOUT, MAX_AGE, Endpoint, IdleStreams, Transfer
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.util.content_hash import hash_bytes
from tests.support.waiting import wait_until

DATA = random.Random(1).randbytes(3_000_001)  # the same in all processes that collect these tests
NAME = hash_bytes(DATA)
PICKLE = pickle.dumps(DATA, 5)
RESULT = "abc.0.77.result"


@pytest.fixture
def authority() -> Authority:
    return Authority("p")


class Host:
    """A node's listener and its files."""

    def __init__(self, folder: Path, number: int, authority: Authority) -> None:
        self.blobs, self.spool = folder / "blobs", folder / "spool"
        for made in (self.blobs, self.spool):
            made.mkdir(parents=True)
        (folder / "secret.result").write_text("not of the spool")
        (self.spool / RESULT).write_bytes(DATA)
        (self.spool / "r000.out").write_text("a log")
        papers = authority.issue(node_name(number)).to_json()
        self.peers = BlobServer(self.blobs, self.spool, "127.0.0.1", papers)
        self.place = ("127.0.0.1", self.peers.port)
        self.node = Endpoint(self.place, node_name(number))


@pytest.fixture
def hosts(tmp_path: Path, authority: Authority) -> Iterator[list[Host]]:
    made = [Host(tmp_path / str(number), number, authority) for number in range(2)]
    yield made
    for host in made:
        host.peers.close()


@pytest.fixture
def ours(authority: Authority) -> ssl.SSLContext:
    return make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, authority.issue(CLIENT).to_json())


@pytest.fixture
def kept() -> Iterator[IdleStreams]:
    kept = IdleStreams(2)
    yield kept
    kept.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_blob_comes_to_the_node(hosts: list[Host], ours: ssl.SSLContext, kept: IdleStreams, source: Path) -> None:
    Transfer(hosts[0].node, ours, kept).upload(source, NAME)
    assert files(hosts[0].blobs) == [NAME]
    assert (hosts[0].blobs / NAME).read_bytes() == DATA


def test_another_content_than_the_name_says_is_refused_and_not_kept(
    hosts: list[Host], ours: ssl.SSLContext, kept: IdleStreams, source: Path
) -> None:
    source.write_bytes(b"X" + DATA[1:])
    with pytest.raises(RefusedByPeer, match="content does not match"):
        Transfer(hosts[0].node, ours, kept).upload(source, NAME)
    assert not files(hosts[0].blobs)


@pytest.mark.parametrize("there", [0, 1, 1_500_000, len(DATA)])
def test_a_result_comes_here_from_where_an_earlier_attempt_stopped(
    hosts: list[Host], ours: ssl.SSLContext, kept: IdleStreams, tmp_path: Path, there: int
) -> None:
    target = tmp_path / "target"
    if there:
        target.write_bytes(b"-" * there)
    Transfer(hosts[0].node, ours, kept).download_result(RESULT, ResultDownload(target, len(DATA)))
    assert target.read_bytes() == b"-" * there + DATA[there:]


def test_a_result_of_another_size_is_not_taken(
    hosts: list[Host], ours: ssl.SSLContext, kept: IdleStreams, tmp_path: Path
) -> None:
    with pytest.raises(TlsConnectionError, match="unexpected size of the result: 3,000,001 bytes instead of 3,000,000"):
        Transfer(hosts[0].node, ours, kept).download_result(RESULT, ResultDownload(tmp_path / "target", len(DATA) - 1))
    assert not (tmp_path / "target").exists()


def test_a_node_may_neither_put_nor_read_results(hosts: list[Host], authority: Authority) -> None:
    papers = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, authority.issue(node_name(1)).to_json())
    for request in (
        {"t": "put", "name": NAME, "size": len(DATA)},
        {"t": "result", "name": RESULT, "at": 0},
    ):
        with (
            TlsConnection.connect(hosts[0].place, papers) as line,
            pytest.raises(RefusedByPeer, match="node 1 is not the client"),
        ):
            line.request(request)
    assert not files(hosts[0].blobs)


@pytest.mark.parametrize(
    "request_",
    [
        {"t": "result", "name": "../secret.result", "at": 0},
        {"t": "result", "name": "/etc/x.result", "at": 0},
        {"t": "result", "name": f"{RESULT}\n", "at": 0},
        {"t": "result", "name": "r000.out", "at": 0},
        {"t": "result", "name": "none.result", "at": 0},
        {"t": "result", "name": RESULT},
        {"t": "put", "name": "../" + "0" * 29, "size": 1},
        {"t": "put", "name": NAME + "\n", "size": 1},
        {"t": "put", "name": NAME},
        {"t": "blob", "name": "../spool/" + RESULT},
        {"t": "remove", "name": NAME},
    ],
    ids=str,
)
def test_nothing_else_is_given_or_taken(hosts: list[Host], ours: ssl.SSLContext, request_: dict[str, object]) -> None:
    with TlsConnection.connect(hosts[0].place, ours) as line, pytest.raises(RefusedByPeer):
        line.request(request_)
    assert not files(hosts[0].blobs)


def test_a_node_that_answers_in_place_of_another_is_told_nothing(
    hosts: list[Host], ours: ssl.SSLContext, kept: IdleStreams, source: Path
) -> None:
    with pytest.raises(TlsConnectionError, match="node 0 answers instead of node 1"):
        Transfer(Endpoint(hosts[0].place, node_name(1)), ours, kept).upload(source, NAME)
    assert not files(hosts[0].blobs)


def test_a_client_of_another_authority_is_refused(hosts: list[Host], source: Path, kept: IdleStreams) -> None:
    stranger = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, Authority("p").issue(CLIENT).to_json())
    with pytest.raises(TlsConnectionError):
        Transfer(hosts[0].node, stranger, kept).upload(source, NAME)
    assert not files(hosts[0].blobs)


def test_nobody_at_the_port_is_a_line_error(ours: ssl.SSLContext, kept: IdleStreams, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        place = gone.getsockname()
    with pytest.raises(TlsConnectionError, match="refused"):
        Transfer(Endpoint(place, node_name(0)), ours, kept).download_result(
            RESULT, ResultDownload(tmp_path / "target", len(DATA))
        )
    assert not (tmp_path / "target").exists()


class Half:
    """A put to the first node, stopped in the middle: what came is there for others, the rest is in our hand."""

    def __init__(self, hosts: list[Host], ours: ssl.SSLContext) -> None:
        self.blobs = hosts[0].blobs
        self.line = TlsConnection.connect(hosts[0].place, ours)
        self.line.request({"t": "put", "name": NAME, "size": len(DATA)})
        self.line.write(DATA[:2_000_000])


def arrived(host: Host) -> int:
    """Blocks that a blob on its way has taken; its length is that of the whole from the beginning."""
    return sum(path.stat().st_blocks for path in host.blobs.glob(f".{NAME}.*"))


def test_a_blob_is_handed_on_while_it_still_comes(hosts: list[Host], ours: ssl.SSLContext) -> None:
    half = Half(hosts, ours)
    with ThreadPoolExecutor(1) as beside:
        pulling = beside.submit(hosts[1].peers.fetch, NAME, len(DATA), hosts[0].place)
        wait_until(lambda: arrived(hosts[1]) * 512 >= 1 << 20)
        assert NAME not in files(hosts[0].blobs)
        half.line.write(DATA[2_000_000:])
        half.line.receive_frame()
        pulling.result()
    half.line.close()
    for host in hosts:
        assert files(host.blobs) == [NAME]
        assert (host.blobs / NAME).read_bytes() == DATA


def test_a_blob_that_breaks_off_is_kept_nowhere(hosts: list[Host], ours: ssl.SSLContext) -> None:
    half = Half(hosts, ours)
    with ThreadPoolExecutor(1) as beside:
        pulling = beside.submit(hosts[1].peers.fetch, NAME, len(DATA), hosts[0].place)
        wait_until(lambda: arrived(hosts[1]) * 512 >= 1 << 20)
        half.line.close()
        with pytest.raises(OSError, match="closed the connection"):
            pulling.result()
    wait_until(lambda: not files(hosts[0].blobs))
    assert not files(hosts[1].blobs)


def test_a_wrong_blob_is_kept_nowhere(hosts: list[Host], ours: ssl.SSLContext) -> None:
    half = Half(hosts, ours)
    with ThreadPoolExecutor(1) as beside:
        pulling = beside.submit(hosts[1].peers.fetch, NAME, len(DATA), hosts[0].place)
        wait_until(lambda: arrived(hosts[1]) > 0)
        half.line.write(bytes(len(DATA) - 2_000_000))
        with pytest.raises(RefusedByPeer, match="content does not match"):
            half.line.receive_frame()
        with pytest.raises(OSError, match=r"content does not match|closed the connection"):
            pulling.result()
    half.line.close()
    assert not files(hosts[0].blobs) and not files(hosts[1].blobs)


def test_a_transfer_ends_when_it_is_told_to(
    authority: Authority, ours: ssl.SSLContext, kept: IdleStreams, tmp_path: Path
) -> None:
    """The node is one that says nothing."""
    theirs = make_ssl_context(ssl.PROTOCOL_TLS_SERVER, authority.issue(node_name(0)).to_json())
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as beside:
        transfer = Transfer(Endpoint(listener.getsockname(), node_name(0)), ours, kept)
        getting = beside.submit(transfer.download_result, RESULT, ResultDownload(tmp_path / "target", len(DATA)))
        with TlsConnection(listener.accept()[0], theirs, server=True) as line:
            assert line.receive_frame() == {"t": "result", "name": RESULT, "at": 0}
            transfer.stop()
            with pytest.raises(TlsConnectionError):
                getting.result()


# -- lines that wait for the next file ---------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[TlsConnection]:
    """The lines that were made, in their order."""
    made: list[TlsConnection] = []
    to = TlsConnection.connect

    def noted(*args: Any) -> TlsConnection:
        made.append(to(*args))
        return made[-1]

    monkeypatch.setattr(TlsConnection, "connect", noted)
    return made


def get(node: Endpoint, ours: ssl.SSLContext, kept: IdleStreams, target: Path) -> bytes:
    Transfer(node, ours, kept).download_result(RESULT, ResultDownload(target, len(DATA)))
    data = target.read_bytes()
    target.unlink()
    return data


def test_files_go_over_one_line_one_after_another(
    hosts: list[Host],
    ours: ssl.SSLContext,
    kept: IdleStreams,
    tmp_path: Path,
    source: Path,
    made: list[TlsConnection],
) -> None:
    node, target = hosts[0].node, tmp_path / "target"
    assert get(node, ours, kept, target) == DATA
    Transfer(node, ours, kept).upload(source, NAME)
    assert (hosts[0].blobs / NAME).read_bytes() == DATA
    assert get(node, ours, kept, target) == DATA
    assert len(made) == 1
    assert get(hosts[1].node, ours, kept, target) == DATA
    assert len(made) == 2


def test_a_line_is_kept_neither_after_a_refusal_nor_after_a_failure(
    hosts: list[Host],
    ours: ssl.SSLContext,
    kept: IdleStreams,
    tmp_path: Path,
    source: Path,
    made: list[TlsConnection],
) -> None:
    node = hosts[0].node
    with pytest.raises(RefusedByPeer, match="content does not match"):
        Transfer(node, ours, kept).upload(source, "0" * 32)
    with pytest.raises(TlsConnectionError):
        Transfer(node, ours, kept).download_result(RESULT, ResultDownload(tmp_path / "target", len(DATA) - 1))
    with pytest.raises(OSError, match="No such file"):
        Transfer(node, ours, kept).download_result(RESULT, ResultDownload(tmp_path / "no" / "target", len(DATA)))
    assert kept.acquire(node) is None
    assert get(node, ours, kept, tmp_path / "target") == DATA
    assert len(made) == 4


class Fickle:
    """A node that hangs up where its script says: after so many bytes of each line's last answer."""

    def __init__(self, authority: Authority, *script: list[int]) -> None:
        self._papers = make_ssl_context(ssl.PROTOCOL_TLS_SERVER, authority.issue(node_name(0)).to_json())
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.node = Endpoint(self._listener.getsockname(), node_name(0))
        self.set_current: list[int] = []
        self._beside = ThreadPoolExecutor(1)
        self._serving = self._beside.submit(self._serve)

    def _serve(self) -> None:
        for line_script in self._script:
            with TlsConnection(self._listener.accept()[0], self._papers, server=True) as line:
                for count in line_script:
                    at = int(line.receive_frame()["at"])
                    self.set_current.append(at)
                    if count:
                        line.send_frame({"t": "comes", "size": len(PICKLE)})
                        line.write(PICKLE[at : at + count])
                    else:
                        line.receive_frame()  # which it breaks off

    def end(self) -> None:
        self._serving.result(20)
        self._beside.shutdown()
        self._listener.close()


@pytest.mark.parametrize("in_place", [False, True], ids=["file", "memory"])
def test_what_a_line_breaks_off_that_had_waited_goes_on_over_a_new_one(
    authority: Authority, ours: ssl.SSLContext, kept: IdleStreams, tmp_path: Path, in_place: bool
) -> None:
    whole = len(PICKLE)
    fickle = Fickle(authority, [whole], [whole, 2_000_000], [whole])
    landing = ResultDownload(tmp_path / "first", whole)
    Transfer(fickle.node, ours, kept).download_result(RESULT, landing)
    for name in (
        "second",
        "third",
    ):  # the node has hung up before the one, and does in the midst of the other
        landing = ResultDownload(tmp_path / name, whole, in_place=in_place)
        Transfer(fickle.node, ours, kept).download_result(RESULT, landing)
        assert landing.load() == DATA
    fickle.end()
    first, *asked = fickle.set_current
    assert (first, asked[:2]) == (0, [0, 0])
    assert 1_000_000 < asked[2] <= 2_000_000 and len(asked) == 3


def test_a_new_line_that_breaks_is_no_good_and_not_tried_twice(
    authority: Authority, ours: ssl.SSLContext, kept: IdleStreams, tmp_path: Path
) -> None:
    fickle = Fickle(authority, [2_000_000])
    landing = ResultDownload(tmp_path / "target", len(PICKLE))
    with pytest.raises(TlsConnectionError, match="closed the connection"):
        Transfer(fickle.node, ours, kept).download_result(RESULT, landing)
    fickle.end()
    assert 1_000_000 < landing.at <= 2_000_000


def test_a_transfer_that_is_told_to_end_makes_no_new_line(
    authority: Authority, ours: ssl.SSLContext, kept: IdleStreams, tmp_path: Path, made: list[TlsConnection]
) -> None:
    fickle = Fickle(authority, [len(PICKLE), 0])
    Transfer(fickle.node, ours, kept).download_result(RESULT, ResultDownload(tmp_path / "first", len(PICKLE)))
    transfer = Transfer(fickle.node, ours, kept)
    with ThreadPoolExecutor(1) as beside:
        getting = beside.submit(transfer.download_result, RESULT, ResultDownload(tmp_path / "target", len(PICKLE)))
        wait_until(lambda: len(fickle.set_current) == 2)
        transfer.stop()
        with pytest.raises(TlsConnectionError):
            getting.result()
    with pytest.raises(TlsConnectionError):
        fickle.end()
    assert len(made) == 1


def test_a_node_ends_a_line_that_asks_nothing_more(
    hosts: list[Host],
    ours: ssl.SSLContext,
    kept: IdleStreams,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blob_server, "IDLE_TIMEOUT", 0.001)
    assert get(hosts[0].node, ours, kept, tmp_path / "target") == DATA
    wait_until(lambda: not [each for each in threading.enumerate() if "_serve" in each.name])
    monkeypatch.undo()
    assert get(hosts[0].node, ours, kept, tmp_path / "target") == DATA


def test_as_many_lines_wait_as_may_and_as_long_as_they_may(hosts: list[Host], ours: ssl.SSLContext) -> None:
    kept = IdleStreams(2)
    node, other = hosts[0].node, hosts[1].node
    lines = [TlsConnection.connect(node.place, ours) for _ in range(3)]
    for line in lines:
        kept.release(node, line)
    with pytest.raises(TlsConnectionError):
        lines[2].request({"t": "result", "name": RESULT, "at": 0})
    assert kept.acquire(other) is None
    assert kept.acquire(node) is lines[1]
    kept.expire(IDLE_TIMEOUT)
    assert kept.acquire(node) is lines[0]
    kept.release(node, lines[0])
    kept.release(node, lines[1])
    kept.expire(0)
    assert kept.acquire(node) is None
    for line in lines[:2]:
        with pytest.raises(TlsConnectionError):
            line.send_frame({"t": "result", "name": RESULT, "at": 0})
    old = TlsConnection.connect(node.place, ours)
    old.connected_at -= MAX_AGE
    kept.release(node, old)
    assert kept.acquire(node) is None
    last = TlsConnection.connect(node.place, ours)
    kept.close()
    kept.release(node, last)
    assert kept.acquire(node) is None


@pytest.fixture(autouse=True)
def no_thread_raises(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    assert not [w for w in recwarn if w.category is pytest.PytestUnhandledThreadExceptionWarning]


# Blobs from node to node: who is served, who is not, and that a wrong content is never kept.

BLOB = b"payload" * 300_000
BLOB_NAME = hash_bytes(BLOB)


@pytest.fixture
def head(tmp_path: Path, authority: Authority) -> Iterator[BlobServer]:
    blobs = tmp_path / "head"
    blobs.mkdir()
    (blobs / BLOB_NAME).write_bytes(BLOB)
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
    node.fetch(BLOB_NAME, len(BLOB), ("127.0.0.1", head.port))
    assert [path.name for path in (tmp_path / "other").iterdir()] == [BLOB_NAME]
    assert (tmp_path / "other" / BLOB_NAME).read_bytes() == BLOB
    node.close()


def test_what_is_not_there_and_what_is_no_blob_is_refused(
    tmp_path: Path, head: BlobServer, authority: Authority
) -> None:
    node = other(tmp_path, authority.issue(node_name(1)))
    with pytest.raises(OSError, match="no such blob"):
        node.fetch("0" * 32, 5, ("127.0.0.1", head.port))
    with pytest.raises(OSError, match="not a blob name"):
        node.fetch("../secret", 10, ("127.0.0.1", head.port))
    assert not list((tmp_path / "other").iterdir())
    node.close()


def test_another_content_than_the_name_says_is_not_kept(tmp_path: Path, head: BlobServer, authority: Authority) -> None:
    (tmp_path / "head" / BLOB_NAME).write_bytes(b"X" + BLOB[1:])
    node = other(tmp_path, authority.issue(node_name(1)))
    with pytest.raises(OSError, match="content does not match"):
        node.fetch(BLOB_NAME, len(BLOB), ("127.0.0.1", head.port))
    assert not list((tmp_path / "other").iterdir())
    node.close()


def test_a_node_of_another_pool_gets_nothing_and_gives_nothing(
    tmp_path: Path, head: BlobServer, authority: Authority
) -> None:
    stranger = other(tmp_path, Authority("p").issue(node_name(1)))  # the same name, another authority
    with pytest.raises(OSError, match="fetch from peer"):
        stranger.fetch(BLOB_NAME, len(BLOB), ("127.0.0.1", head.port))
    with pytest.raises(OSError, match="fetch from peer"):
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
            line.sendall(BLOB_NAME.encode() + b"\n")
            while data := line.recv(1 << 16):
                got += data
        except (ssl.SSLError, ConnectionError):
            pass  # refused, as it should be
    assert b"payload" not in got and struct.pack("!Q", len(BLOB)) not in got


def test_nobody_is_served_after_the_end(head: BlobServer) -> None:
    head.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", head.port), timeout=10)


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
        node.fetch(BLOB_NAME, len(BLOB), ("127.0.0.1", head.port))
        node.close()
        assert (tmp_path / "other" / BLOB_NAME).read_bytes() == BLOB
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
    node.fetch(BLOB_NAME, len(BLOB), ("127.0.0.1", head.port))
    node.close()
