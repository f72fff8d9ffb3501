"""Large files between the client and a node: who may, what is taken, what is kept when a line breaks."""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from skyward_core.agent.peers import Peers
from skyward_core.content import name_of
from skyward_core.landing import Landing
from skyward_core.tls import CLIENT, Line, LineError, Refused, context
from skyward_core.transport.bulk import Node, Transfer
from skyward_core.transport.pki import Authority, node_name

DATA = random.Random(1).randbytes(3_000_001)  # the same in all processes that collect these tests
NAME = name_of(DATA)
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
        self.peers = Peers(self.blobs, self.spool, "127.0.0.1", papers)
        self.place = ("127.0.0.1", self.peers.port)
        self.node = Node(self.place, node_name(number))


@pytest.fixture
def hosts(tmp_path: Path, authority: Authority) -> Iterator[list[Host]]:
    made = [Host(tmp_path / str(number), number, authority) for number in range(2)]
    yield made
    for host in made:
        host.peers.close()


@pytest.fixture
def ours(authority: Authority) -> ssl.SSLContext:
    return context(ssl.PROTOCOL_TLS_CLIENT, authority.issue(CLIENT).to_json())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def until(holds: Callable[[], bool]) -> None:
    deadline = monotonic() + 20
    while not holds():
        assert monotonic() < deadline
        threading.Event().wait(0.005)


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_blob_comes_to_the_node(hosts: list[Host], ours: ssl.SSLContext, source: Path) -> None:
    Transfer(hosts[0].node, ours).put(source, NAME)
    assert files(hosts[0].blobs) == [NAME]
    assert (hosts[0].blobs / NAME).read_bytes() == DATA


def test_another_content_than_the_name_says_is_refused_and_not_kept(
    hosts: list[Host], ours: ssl.SSLContext, source: Path
) -> None:
    source.write_bytes(b"X" + DATA[1:])
    with pytest.raises(Refused, match="something else"):
        Transfer(hosts[0].node, ours).put(source, NAME)
    assert not files(hosts[0].blobs)


@pytest.mark.parametrize("there", [0, 1, 1_500_000, len(DATA)])
def test_a_result_comes_here_from_where_an_earlier_attempt_stopped(
    hosts: list[Host], ours: ssl.SSLContext, tmp_path: Path, there: int
) -> None:
    target = tmp_path / "target"
    if there:
        target.write_bytes(b"-" * there)
    Transfer(hosts[0].node, ours).get(RESULT, Landing(target, len(DATA)))
    assert target.read_bytes() == b"-" * there + DATA[there:]


def test_a_result_of_another_size_is_not_taken(
    hosts: list[Host], ours: ssl.SSLContext, tmp_path: Path
) -> None:
    with pytest.raises(LineError, match="it has 3,000,001 bytes of 3,000,000"):
        Transfer(hosts[0].node, ours).get(RESULT, Landing(tmp_path / "target", len(DATA) - 1))
    assert not (tmp_path / "target").exists()


def test_a_node_may_neither_put_nor_read_results(hosts: list[Host], authority: Authority) -> None:
    papers = context(ssl.PROTOCOL_TLS_CLIENT, authority.issue(node_name(1)).to_json())
    for request in (
        {"t": "put", "name": NAME, "size": len(DATA)},
        {"t": "result", "name": RESULT, "at": 0},
    ):
        with (
            Line.to(hosts[0].place, papers) as line,
            pytest.raises(Refused, match="node 1 is not the client"),
        ):
            line.ask(request)
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
def test_nothing_else_is_given_or_taken(
    hosts: list[Host], ours: ssl.SSLContext, request_: dict[str, object]
) -> None:
    with Line.to(hosts[0].place, ours) as line, pytest.raises(Refused):
        line.ask(request_)
    assert not files(hosts[0].blobs)


def test_a_node_that_answers_in_place_of_another_is_told_nothing(
    hosts: list[Host], ours: ssl.SSLContext, source: Path
) -> None:
    with pytest.raises(LineError, match="node 0 answers in place of node 1"):
        Transfer(Node(hosts[0].place, node_name(1)), ours).put(source, NAME)
    assert not files(hosts[0].blobs)


def test_a_client_of_another_authority_is_refused(hosts: list[Host], source: Path) -> None:
    stranger = context(ssl.PROTOCOL_TLS_CLIENT, Authority("p").issue(CLIENT).to_json())
    with pytest.raises(LineError):
        Transfer(hosts[0].node, stranger).put(source, NAME)
    assert not files(hosts[0].blobs)


def test_nobody_at_the_port_is_a_line_error(ours: ssl.SSLContext, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        place = gone.getsockname()
    with pytest.raises(LineError, match="refused"):
        Transfer(Node(place, node_name(0)), ours).get(RESULT, Landing(tmp_path / "target", len(DATA)))
    assert not (tmp_path / "target").exists()


class Half:
    """A put to the first node, stopped in the middle: what came is there for others, the rest is in our hand."""

    def __init__(self, hosts: list[Host], ours: ssl.SSLContext) -> None:
        self.blobs = hosts[0].blobs
        self.line = Line.to(hosts[0].place, ours)
        self.line.ask({"t": "put", "name": NAME, "size": len(DATA)})
        self.line.write(DATA[:2_000_000])


def arrived(host: Host) -> int:
    """Blocks that a blob on its way has taken; its length is that of the whole from the beginning."""
    return sum(path.stat().st_blocks for path in host.blobs.glob(f".{NAME}.*"))


def test_a_blob_is_handed_on_while_it_still_comes(hosts: list[Host], ours: ssl.SSLContext) -> None:
    half = Half(hosts, ours)
    with ThreadPoolExecutor(1) as beside:
        pulling = beside.submit(hosts[1].peers.pull, NAME, len(DATA), hosts[0].place)
        until(lambda: arrived(hosts[1]) * 512 >= 1 << 20)
        assert NAME not in files(hosts[0].blobs)
        half.line.write(DATA[2_000_000:])
        half.line.hear()
        pulling.result()
    half.line.close()
    for host in hosts:
        assert files(host.blobs) == [NAME]
        assert (host.blobs / NAME).read_bytes() == DATA


def test_a_blob_that_breaks_off_is_kept_nowhere(hosts: list[Host], ours: ssl.SSLContext) -> None:
    half = Half(hosts, ours)
    with ThreadPoolExecutor(1) as beside:
        pulling = beside.submit(hosts[1].peers.pull, NAME, len(DATA), hosts[0].place)
        until(lambda: arrived(hosts[1]) * 512 >= 1 << 20)
        half.line.close()
        with pytest.raises(OSError, match="hung up"):
            pulling.result()
    until(lambda: not files(hosts[0].blobs))
    assert not files(hosts[1].blobs)


def test_a_wrong_blob_is_kept_nowhere(hosts: list[Host], ours: ssl.SSLContext) -> None:
    half = Half(hosts, ours)
    with ThreadPoolExecutor(1) as beside:
        pulling = beside.submit(hosts[1].peers.pull, NAME, len(DATA), hosts[0].place)
        until(lambda: arrived(hosts[1]) > 0)
        half.line.write(bytes(len(DATA) - 2_000_000))
        with pytest.raises(Refused, match="something else"):
            half.line.hear()
        with pytest.raises(OSError, match=r"something else|hung up"):
            pulling.result()
    half.line.close()
    assert not files(hosts[0].blobs) and not files(hosts[1].blobs)


def test_a_transfer_ends_when_it_is_told_to(
    authority: Authority, ours: ssl.SSLContext, tmp_path: Path
) -> None:
    """The node is one that says nothing."""
    theirs = context(ssl.PROTOCOL_TLS_SERVER, authority.issue(node_name(0)).to_json())
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as beside:
        transfer = Transfer(Node(listener.getsockname(), node_name(0)), ours)
        getting = beside.submit(transfer.get, RESULT, Landing(tmp_path / "target", len(DATA)))
        with Line(listener.accept()[0], theirs, server=True) as line:
            assert line.hear() == {"t": "result", "name": RESULT, "at": 0}
            transfer.stop()
            with pytest.raises(LineError):
                getting.result()


@pytest.fixture(autouse=True)
def no_thread_raises(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    assert not [w for w in recwarn if w.category is pytest.PytestUnhandledThreadExceptionWarning]
