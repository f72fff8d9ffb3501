"""Transfer of large files between client and nodes: authorization, validation and interrupted connections."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import random
import resource
import select
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skyward_core.node.agent import file_transfer_server
from skyward_core.node.agent.file_transfer_server import ACCEPT_RETRY_DELAY, MAX_UNAUTHENTICATED, FileTransferServer
from skyward_core.node.agent.output_checkpoint_and_source_files import OutputFile, file_version
from skyward_core.plugins.pool_certificate_authority import Authority, node_name
from skyward_core.pool.direct_file_transfers import IDLE_TIMEOUT, MAX_AGE, Endpoint, IdleStreams, Transfer
from skyward_core.protocol import blocking_tls_connection
from skyward_core.protocol.blocking_tls_connection import (
    CLIENT,
    RefusedByPeer,
    TlsConnection,
    TlsConnectionError,
    make_ssl_context,
)
from skyward_core.protocol.frame_codec import Decoder, encode_frame
from skyward_core.transport.file_and_result_downloads import IncomingOutput, ResultDownload
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
    """Listener of a node, and the node's files."""

    def __init__(self, folder: Path, number: int, authority: Authority) -> None:
        self.blobs, self.spool = folder / "blobs", folder / "spool"
        for made in (self.blobs, self.spool):
            made.mkdir(parents=True)
        (folder / "secret.result").write_text("not of the spool")
        (self.spool / RESULT).write_bytes(DATA)
        (self.spool / "r000.out").write_text("a log")
        papers = (issued := authority.issue(node_name(number))).to_json()
        assert f"{issued}" == repr(issued) == "TlsCredentials(...)", "a log shows no key"
        self.peers = FileTransferServer(self.blobs, self.spool, "127.0.0.1", papers)
        self.place = ("127.0.0.1", self.peers.port)
        self.node = Endpoint(self.place, node_name(number))


@pytest.fixture
def hosts(tmp_path: Path, authority: Authority) -> Iterator[list[Host]]:
    made = [Host(tmp_path / str(number), number, authority) for number in range(2)]
    yield made
    for host in made:
        host.peers.close()


class Client:
    """Client's transfers with nodes, over its idle connections."""

    def __init__(self, authority: Authority) -> None:
        self.context = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, authority.issue(CLIENT).to_json())
        self.streams = IdleStreams(2)

    def connect(self, host: Host) -> TlsConnection:
        return TlsConnection.connect(host.place, self.context)

    def transfer(self, node: Endpoint) -> Transfer:
        return Transfer(node, self.context, self.streams)

    def upload(self, node: Endpoint, name: str = NAME, data: bytes = DATA) -> None:
        with tempfile.NamedTemporaryFile() as source:
            source.write(data)
            source.flush()
            self.transfer(node).upload(Path(source.name), name)

    def download(self, node: Endpoint, target: Path, size: int = len(DATA)) -> bytes:
        self.transfer(node).download_result(RESULT, ResultDownload(target, size))
        data = target.read_bytes()
        target.unlink()
        return data


@pytest.fixture
def client(authority: Authority) -> Iterator[Client]:
    client = Client(authority)
    yield client
    client.streams.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_upload_with_wrong_content_is_rejected(hosts: list[Host], client: Client) -> None:
    with pytest.raises(RefusedByPeer, match="content does not match"):
        client.upload(hosts[0].node, data=b"X" + DATA[1:])
    assert not files(hosts[0].blobs)


@pytest.mark.parametrize("there", [0, 1, 1_500_000, len(DATA)])
def test_download_resumes_after_a_partial_file(hosts: list[Host], client: Client, target: Path, there: int) -> None:
    if there:
        target.write_bytes(b"-" * there)
    assert client.download(hosts[0].node, target) == b"-" * there + DATA[there:]


def test_node_hashes_an_output_file_only_if_the_client_has_bytes_of_an_earlier_connection(
    tmp_path: Path, authority: Authority, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bool] = []
    read_chunks = OutputFile.read_chunks

    def record(file: OutputFile, at: int, *, hashes: bool = True) -> Iterator[bytes]:
        hashed.append(hashes)
        return read_chunks(file, at, hashes=hashes)

    monkeypatch.setattr(OutputFile, "read_chunks", record)
    (tmp_path / "model.pt").write_bytes(DATA)
    version = file_version((tmp_path / "model.pt").stat())
    credentials = authority.issue(node_name(0)).to_json()
    with closing(FileTransferServer(tmp_path, tmp_path, "127.0.0.1", credentials, str(tmp_path))) as server:
        node = Endpoint(("127.0.0.1", server.port), node_name(0))
        for there, expected in ((b"", False), (DATA[:1000], True), (b"-" * 1000, True)):
            incoming = IncomingOutput(tmp_path / "to", "model.pt", len(DATA), version)
            incoming.write(there)
            client.transfer(node).download_output("model.pt", incoming)
            assert (incoming.sha256, hashed.pop()) == (hashlib.sha256(DATA).hexdigest() if expected else "", expected)
            assert incoming.is_verified is not expected
            with pytest.raises(OSError, match="differs") if there.startswith(b"-") else nullcontext():
                incoming.check()
            incoming.drop()
        request = {"t": "output", "path": "model.pt", "version": version, "at": 0}
        with TlsConnection.connect(node.place, client.context) as line:
            assert line.request(request)["size"] == sum(map(len, line.read_chunks(len(DATA))))
            assert line.receive_frame()["sha256"] == hashlib.sha256(DATA).hexdigest(), "as earlier clients expect"


@pytest.mark.parametrize("changes", [False, True])
def test_node_fetches_an_output_file_from_its_writer_only_if_it_stays_unchanged(
    tmp_path: Path, hosts: list[Host], authority: Authority, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    model, name = tmp_path / "model.pt", "c" * 32  # any name, because nobody hashes the content
    model.write_bytes(DATA)
    output = {"path": model.name, "version": file_version(model.stat())}
    read_chunks = OutputFile.read_chunks

    def change_after(file: OutputFile, at: int, *, hashes: bool = True) -> Iterator[bytes]:
        assert not hashes
        yield from read_chunks(file, at, hashes=hashes)
        if changes:
            model.write_bytes(DATA[::-1])

    monkeypatch.setattr(OutputFile, "read_chunks", change_after)
    credentials = authority.issue(node_name(0)).to_json()
    with (
        closing(FileTransferServer(tmp_path, tmp_path, "127.0.0.1", credentials, str(tmp_path))) as writer,
        pytest.raises(OSError, match="changed") if changes else nullcontext(),
    ):
        hosts[1].peers.fetch(name, len(DATA), ("127.0.0.1", writer.port), output)
    assert [path.read_bytes() for path in hosts[1].blobs.iterdir()] == ([] if changes else [DATA])


def test_result_of_unexpected_size_is_refused(hosts: list[Host], client: Client, target: Path) -> None:
    with pytest.raises(TlsConnectionError, match="unexpected size of the result: 3,000,001 bytes instead of 3,000,000"):
        client.download(hosts[0].node, target, len(DATA) - 1)
    assert not target.exists()


def test_node_may_neither_upload_nor_download_results(hosts: list[Host], authority: Authority) -> None:
    papers = make_ssl_context(ssl.PROTOCOL_TLS_CLIENT, authority.issue(node_name(1)).to_json())
    for request in ({"t": "put", "name": NAME, "size": len(DATA)}, {"t": "result", "name": RESULT, "at": 0}):
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
def test_invalid_blob_requests_are_rejected(hosts: list[Host], client: Client, request_: dict[str, object]) -> None:
    with client.connect(hosts[0]) as line, pytest.raises(RefusedByPeer):
        line.request(request_)
    assert not files(hosts[0].blobs)


def test_node_other_than_the_expected_one_gets_no_blob(hosts: list[Host], client: Client) -> None:
    with pytest.raises(TlsConnectionError, match="node 0 answers instead of node 1"):
        client.upload(Endpoint(hosts[0].place, node_name(1)))
    assert not files(hosts[0].blobs)


def test_client_with_another_certificate_authority_is_rejected(hosts: list[Host]) -> None:
    with pytest.raises(TlsConnectionError):
        Client(Authority("p")).upload(hosts[0].node)
    assert not files(hosts[0].blobs)


class Half:
    """Upload to the first node that is halted in the middle: one part has arrived, the test holds the rest."""

    def __init__(self, hosts: list[Host], client: Client) -> None:
        self.blobs = hosts[0].blobs
        self.line = client.connect(hosts[0])
        self.line.request({"t": "put", "name": NAME, "size": len(DATA)})
        self.line.write(DATA[:2_000_000])


def arrived(host: Host) -> int:
    """Return the number of received blocks of an incomplete blob, whose file has its final length from the start."""
    return sum(path.stat().st_blocks for path in host.blobs.glob(f".{NAME}.*"))


@contextmanager
def fetched_while_arriving(hosts: list[Host], client: Client) -> Iterator[tuple[Half, Future[Any]]]:
    """Let one node fetch a blob of which another node has only a half."""
    half = Half(hosts, client)
    with ThreadPoolExecutor(1) as beside, closing(half.line):
        yield half, beside.submit(hosts[1].peers.fetch, NAME, len(DATA), hosts[0].place)


def test_node_fetches_a_blob_that_is_still_arriving(hosts: list[Host], client: Client) -> None:
    with fetched_while_arriving(hosts, client) as (half, pulling):
        wait_until(lambda: arrived(hosts[1]) * 512 >= 1 << 20)
        assert NAME not in files(hosts[0].blobs)
        half.line.write(DATA[2_000_000:])
        half.line.receive_frame()
        pulling.result()
    for host in hosts:
        assert files(host.blobs) == [NAME]
        assert (host.blobs / NAME).read_bytes() == DATA


def test_interrupted_blob_upload_is_stored_nowhere(hosts: list[Host], client: Client) -> None:
    with fetched_while_arriving(hosts, client) as (half, pulling):
        wait_until(lambda: arrived(hosts[1]) * 512 >= 1 << 20)
        half.line.close()
        with pytest.raises(OSError, match="closed the connection"):
            pulling.result()
    wait_until(lambda: not files(hosts[0].blobs))
    assert not files(hosts[1].blobs)


def test_blob_with_wrong_content_is_stored_nowhere(hosts: list[Host], client: Client) -> None:
    with fetched_while_arriving(hosts, client) as (half, pulling):
        wait_until(lambda: arrived(hosts[1]) > 0)
        half.line.write(bytes(len(DATA) - 2_000_000))
        with pytest.raises(RefusedByPeer, match="content does not match"):
            half.line.receive_frame()
        with pytest.raises(OSError, match=r"content does not match|closed the connection"):
            pulling.result()
    assert not files(hosts[0].blobs) and not files(hosts[1].blobs)


def test_stop_ends_a_transfer_with_a_silent_node(authority: Authority, client: Client, target: Path) -> None:
    theirs = make_ssl_context(ssl.PROTOCOL_TLS_SERVER, authority.issue(node_name(0)).to_json())
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as beside:
        transfer = client.transfer(Endpoint(listener.getsockname(), node_name(0)))
        getting = beside.submit(transfer.download_result, RESULT, ResultDownload(target, len(DATA)))
        with TlsConnection(listener.accept()[0], theirs, server=True) as line:
            assert line.receive_frame() == {"t": "result", "name": RESULT, "at": 0}
            transfer.stop()
            with pytest.raises(TlsConnectionError):
                getting.result()


# -- connections kept for the next file ---------------------------------------------------------------------


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[TlsConnection]:
    """Connections in the order in which they were opened."""
    connections: list[TlsConnection] = []
    to = TlsConnection.connect

    def noted(*args: Any) -> TlsConnection:
        connections.append(to(*args))
        return connections[-1]

    monkeypatch.setattr(TlsConnection, "connect", noted)
    return connections


def test_file_transfers_to_a_node_share_one_connection(
    hosts: list[Host], client: Client, target: Path, connections: list[TlsConnection]
) -> None:
    assert client.download(hosts[0].node, target) == DATA
    client.upload(hosts[0].node)
    assert (hosts[0].blobs / NAME).read_bytes() == DATA
    assert client.download(hosts[0].node, target) == DATA
    assert len(connections) == 1
    assert client.download(hosts[1].node, target) == DATA
    assert len(connections) == 2


def test_failed_transfer_closes_its_connection(
    hosts: list[Host], client: Client, target: Path, connections: list[TlsConnection]
) -> None:
    node = hosts[0].node
    with pytest.raises(RefusedByPeer, match="content does not match"):
        client.upload(node, "0" * 32)
    with pytest.raises(TlsConnectionError):
        client.download(node, target, len(DATA) - 1)
    with pytest.raises(OSError, match="No such file"):
        client.download(node, target / "in no folder")
    assert client.streams.acquire(node) is None
    assert client.download(node, target) == DATA
    assert len(connections) == 4


class Fickle:
    """Node that disconnects after a given number of bytes of the last answer of each connection."""

    def __init__(self, authority: Authority, *script: list[int]) -> None:
        self._papers = make_ssl_context(ssl.PROTOCOL_TLS_SERVER, authority.issue(node_name(0)).to_json())
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.node = Endpoint(self._listener.getsockname(), node_name(0))
        self.offsets: list[int] = []
        self._beside = ThreadPoolExecutor(1)
        self._serving = self._beside.submit(self._serve)

    def _serve(self) -> None:
        for line_script in self._script:
            with TlsConnection(self._listener.accept()[0], self._papers, server=True) as line:
                for count in line_script:
                    at = int(line.receive_frame()["at"])
                    self.offsets.append(at)
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
def test_download_survives_a_broken_idle_connection(
    authority: Authority, client: Client, tmp_path: Path, in_place: bool
) -> None:
    whole = len(PICKLE)
    fickle = Fickle(authority, [whole], [whole, 2_000_000], [whole])
    client.download(fickle.node, tmp_path / "first", whole)
    for name in ("second", "third"):  # the node has hung up before the second download, and does during the third
        landing = ResultDownload(tmp_path / name, whole, in_place=in_place)
        client.transfer(fickle.node).download_result(RESULT, landing)
        assert landing.load() == DATA
    fickle.end()
    first, *asked = fickle.offsets
    assert (first, asked[:2]) == (0, [0, 0])
    assert 1_000_000 < asked[2] <= 2_000_000 and len(asked) == 3


def test_idle_blob_connection_is_closed(
    hosts: list[Host], client: Client, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_transfer_server, "IDLE_TIMEOUT", 0.001)
    assert client.download(hosts[0].node, target) == DATA
    wait_until(lambda: threads_of_servers() == 0)
    monkeypatch.undo()
    assert client.download(hosts[0].node, target) == DATA


def nicenesses(process: int) -> list[int]:
    """Return the nicenesses of the threads of a process, relative to this thread's."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found.append(int(path.read_text().rpartition(")")[2].split()[16]) - os.nice(0))
    return sorted(found)


def has_session_niceness(process: int, niceness: int) -> bool:
    """Check the niceness of a process's session among all sessions. Some kernels have no such niceness."""
    path = Path(f"/proc/{process}/autogroup")
    return not path.exists() or path.read_text().split()[-1] == str(niceness)


class ExhaustedAutogroup:
    """File of a session's niceness while another user makes all changes that the kernel accepts."""

    def __init__(self) -> None:
        self.tries = 0

    def read_text(self) -> str:
        return "/autogroup-1 nice 0"

    def write_text(self, text: str) -> None:
        self.tries += 1
        raise BlockingIOError(errno.EAGAIN, "another user has just changed a niceness")


def test_transfers_continue_if_another_user_uses_up_the_changes_of_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getsid", lambda pid: os.getpid())
    monkeypatch.setattr(file_transfer_server, "_AUTOGROUP", file := ExhaustedAutogroup())
    with file_transfer_server._session_priority(is_output=True):
        assert file.tries == file_transfer_server.PRIORITY_TRIES


@pytest.mark.skipif(os.nice(0) + file_transfer_server.NICENESS > 19, reason="no niceness is greater than 19")
def test_ranks_precede_copies_of_files_that_ranks_wrote_but_not_other_transfers(
    tmp_path: Path, authority: Authority, client: Client
) -> None:
    """Each transfer waits for the test in its middle: for the reader of an answer, or for a peer's TLS handshake."""
    for name in ("blobs", "spool", "work"):
        (tmp_path / name).mkdir()
    written = tmp_path / "work" / "model.pt"
    for path in (tmp_path / "blobs" / NAME, tmp_path / "spool" / RESULT, written):
        with path.open("wb") as file:
            file.truncate(1 << 25)
    output = {"path": written.name, "version": file_version(written.stat())}
    peers: dict[str, Any] = {
        "blobs": str(tmp_path / "blobs"),
        "spool": str(tmp_path / "spool"),
        "work": str(tmp_path / "work"),
    }
    peers |= authority.issue(node_name(0)).to_json() | {"t": "peers", "address": "127.0.0.1"}
    agent, server = socket.socketpair()
    code = f"from {file_transfer_server.__name__} import main; main({server.fileno()})"
    lowered = file_transfer_server.NICENESS

    def is_served_with(niceness: int) -> bool:
        return nicenesses(process.pid) == [0, 0, niceness] and has_session_niceness(process.pid, niceness)

    command, files = [sys.executable, "-c", code], [server.fileno()]
    with subprocess.Popen(command, pass_fds=files, start_new_session=True) as process, agent:
        server.close()
        agent.sendall(encode_frame(peers | {"id": 1}))
        ((answer, _),) = Decoder().feed(agent.recv(1 << 16))
        place = ("127.0.0.1", answer["port"])
        for request in ({"t": "blob", "name": NAME}, {"t": "result", "name": RESULT, "at": 0}):
            with TlsConnection.connect(place, client.context) as line:
                size = line.request({"t": "output", "at": 0} | output)["size"]
                wait_until(lambda: nicenesses(process.pid) == [0, 0, 0, lowered])
                assert has_session_niceness(process.pid, lowered)
                for _ in line.read_chunks(size):
                    pass
                line.receive_frame()
                line.request(request)
                wait_until(lambda: nicenesses(process.pid) == [0, 0, 0])  # on the same connection
                wait_until(lambda: has_session_niceness(process.pid, 0))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            pull = {"t": "pull", "hash": NAME, "size": 1, "from": silent.getsockname()}
            for number, fields, niceness in ((2, {}, 0), (3, {"output": output}, lowered)):
                agent.sendall(encode_frame(pull | {"id": number} | fields))
                with silent.accept()[0] as peer:
                    peer.recv(1)  # the thread has begun
                    wait_until(partial(is_served_with, niceness))
    assert process.returncode == 0, "although the agent has not read the answers"


def test_idle_connections_are_bounded_in_number_and_age(hosts: list[Host], client: Client) -> None:
    streams = client.streams
    node, other = hosts[0].node, hosts[1].node
    lines = [client.connect(hosts[0]) for _ in range(3)]
    for line in lines:
        streams.release(node, line)
    with pytest.raises(TlsConnectionError):
        lines[2].request({"t": "result", "name": RESULT, "at": 0})
    assert streams.acquire(other) is None
    assert streams.acquire(node) is lines[1]
    streams.expire(IDLE_TIMEOUT)
    assert streams.acquire(node) is lines[0]
    streams.release(node, lines[0])
    streams.release(node, lines[1])
    streams.expire(0)
    assert streams.acquire(node) is None
    for line in lines[:2]:
        with pytest.raises(TlsConnectionError):
            line.send_frame({"t": "result", "name": RESULT, "at": 0})
    old = client.connect(hosts[0])
    old.connected_at -= MAX_AGE
    streams.release(node, old)
    assert streams.acquire(node) is None
    last = client.connect(hosts[0])
    streams.close()
    streams.release(node, last)
    assert streams.acquire(node) is None


@pytest.fixture(autouse=True)
def no_thread_raises(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    assert not [w for w in recwarn if w.category is pytest.PytestUnhandledThreadExceptionWarning]


# Blobs from node to node: node 1 fetches from node 0.


@pytest.fixture
def head(hosts: list[Host]) -> Host:
    (hosts[0].blobs / NAME).write_bytes(DATA)
    return hosts[0]


def test_node_of_another_pool_is_rejected_as_blob_peer(tmp_path: Path, head: Host) -> None:
    stranger = Host(tmp_path / "stranger", 1, Authority("p"))  # the same name, another authority
    for node, name, place in ((stranger, NAME, head.place), (head, "1" * 32, stranger.place)):
        with pytest.raises(OSError, match="fetch from peer"):
            node.peers.fetch(name, len(DATA), place)
    assert not files(stranger.blobs)
    stranger.peers.close()


@pytest.mark.parametrize("speaks_tls", [True, False], ids=["tls without a certificate", "no tls"])
def test_peer_without_certificate_gets_no_byte_of_a_blob(head: Host, speaks_tls: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    got = b""
    with socket.create_connection(head.place, timeout=10) as plain:
        try:
            line = context.wrap_socket(plain) if speaks_tls else plain
            line.sendall(NAME.encode() + b"\n")
            while data := line.recv(1 << 16):
                got += data
        except (ssl.SSLError, ConnectionError):
            pass  # refused, as it should be
    assert DATA[:8] not in got and struct.pack("!Q", len(DATA)) not in got


def threads_of_servers() -> int:
    return sum(thread.name.endswith("(_serve)") for thread in threading.enumerate())


def test_unauthenticated_connections_use_few_threads_and_block_no_peer(hosts: list[Host], head: Host) -> None:
    strangers = []
    try:
        for _ in range(3 * MAX_UNAUTHENTICATED):
            strangers.append(socket.create_connection(head.place, timeout=60))
        wait_until(lambda: len(head.peers._unauthenticated) == MAX_UNAUTHENTICATED)
        wait_until(lambda: threads_of_servers() <= MAX_UNAUTHENTICATED)
        hosts[1].peers.fetch(NAME, len(DATA), head.place)
        assert (hosts[1].blobs / NAME).read_bytes() == DATA
    finally:
        for stranger in strangers:
            stranger.close()
    wait_until(lambda: threads_of_servers() == 0)


def test_slow_tls_handshake_times_out(head: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_tls_connection, "HANDSHAKE_TIMEOUT", 0.3)
    record = b"\x16\x03\x01\x02\x00" + bytes(512)  # of a handshake; a byte of it comes now and then
    sent = 0
    with socket.create_connection(head.place, timeout=60) as stranger, suppress(OSError):
        while sent < len(record) and not select.select([stranger], [], [], 0.02)[0]:
            sent += stranger.send(record[sent : sent + 1])
    assert sent < len(record)
    wait_until(lambda: threads_of_servers() == 0)


def test_blob_server_accepts_again_after_running_out_of_descriptors(hosts: list[Host], head: Host) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        held = []
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                held.append(os.dup(0))
        waiting.connect(head.place)  # the server cannot accept it
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        time.sleep(3 * ACCEPT_RETRY_DELAY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)
        waiting.close()
    hosts[1].peers.fetch(NAME, len(DATA), head.place)
