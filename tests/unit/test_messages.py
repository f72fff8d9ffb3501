"""Frames of whoever is on the other side: what is not as it should be is refused before anything acts on it."""

from __future__ import annotations

import json
import struct
import tracemalloc
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyward_core.protocol import frame_schema, validators
from skyward_core.protocol.frame_codec import (
    CHUNK_BYTES,
    MAX_INLINE_BYTES,
    VERSION,
    Decoder,
    WireError,
    encode_frame,
)
from skyward_core.protocol.frame_schema import (
    FROM_AGENT,
    FROM_CLIENT,
    FROM_WORKER,
    validate_agent_frame,
    validate_client_frame,
)
from tests.support.any_text import CHARACTERS
from tests.support.sample_frames import BEGAN, LOG, OUTCOME, RECORD, SUMMARY, WELCOME

ERROR = {"type": "ValueError", "message": "no", "traceback": ""}
OUTPUT = {"path": "out/a b\n.pt", "version": "1a.2b.3c"}
CALL: dict[str, Any] = {"t": "call", "run": "r", "i": 0, "fn": ["ab" * 16, 9], "args": ["cd" * 16, 9]}


def refused(admit: Any, header: dict[str, Any], body: int = 0) -> bool:
    try:
        admit(header, len(json.dumps(header)), body)
    except WireError:
        return True
    return False


@pytest.mark.parametrize(
    "header", [WELCOME, OUTCOME, BEGAN, LOG, {"t": "run"} | RECORD, {"t": "of another release", "f": "../x"}]
)
def test_what_agents_say_is_admitted(header: dict[str, Any]) -> None:
    assert not refused(validate_agent_frame, header)


def test_a_greeting_of_another_release_only_says_of_which() -> None:
    assert not refused(validate_agent_frame, {"t": "welcome", "version": VERSION + 1, "runs": "in another shape"})
    assert refused(validate_agent_frame, {"t": "welcome"})


@pytest.mark.parametrize(
    "name",
    ["r0./../../../x", "../r000.out", "r000.out/..", "x", "", "r000", "r000.txt", "r000.out\n", "r0.out", ".", None, 3,
     "r\u0661\u0661\u0661.out", "r00000000000.out", ["r000.out"]],
)  # fmt: skip
def test_a_log_has_a_logs_name(name: Any) -> None:
    assert refused(validate_agent_frame, LOG | {"f": name})
    if isinstance(name, str):
        assert refused(validate_agent_frame, OUTCOME | {"log": {name: [0, 1]}})
        assert refused(validate_agent_frame, {"t": "bye", "logs": {name: 1}})
        assert refused(
            validate_agent_frame,
            WELCOME | {"runs": [RECORD | {"outcomes": [OUTCOME | {"log": {name: [0, 1]}}]}]},
        )
        assert refused(validate_client_frame, {"t": "tail", "cursors": {name: 1}})


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\x00b", "a" * 201, None, 7])
def test_a_file_is_named_and_never_a_path(name: Any) -> None:
    assert refused(validate_agent_frame, OUTCOME | {"file": name})
    assert refused(validate_client_frame, {"t": "fetch", "id": 1, "f": name})
    assert refused(validate_client_frame, {"t": "drop", "id": 1, "blobs": [name]})
    assert refused(validate_client_frame, CALL | {"fn": [name, 1]})


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../b", "a//b", "./a", "", "a\x00b", "a" * 5000, None, 7])
def test_what_ranks_wrote_is_named_below_their_folder(path: Any) -> None:
    file = OUTPUT | {"path": path}
    assert refused(validate_client_frame, {"t": "output", "id": 1} | file)
    told = {
        "t": "known",
        "id": 1,
        "files": [file | {"size": 1, "at": 1.5}],
        "more": 0,
        "folder": "/w",
        "now": 2.5,
    }
    with pytest.raises(WireError):
        frame_schema.validate_answer("written", told)


@pytest.mark.parametrize(
    "wrong",
    [{"i": -1}, {"i": 1 << 40}, {"i": True}, {"i": "0"}, {"rank": 1 << 40}, {"node": None}, {"kind": "\x1b[2J"},
     {"kind": ["returned"]}, {"run": "a/b"}, {"run": "x" * 65}, {"run": 7}, {"summary": {"type": "int"}},
     {"summary": SUMMARY | {"more": 1}}, {"error": {"type": 1, "message": ""}}, {"seconds": "1"},
     {"seconds": float("nan")}, {"size": -1},
     {"log": {"r000.out": [0]}}, {"log": {"r000.out": [-1, 5]}}, {"log": [1]}, {"last": 3}, {"items": 1.5}],
)  # fmt: skip
def test_an_outcome_is_one(wrong: dict[str, Any]) -> None:
    assert refused(validate_agent_frame, OUTCOME | wrong)


def test_who_asks_for_a_listener_brings_certificates_and_nobody_repeats_secrets() -> None:
    asked: dict[str, Any] = {"t": "peers", "id": 1, "authority": "", "certificate": "", "key": ""}
    assert not refused(validate_client_frame, asked)
    for key in ("authority", "certificate", "key"):
        assert refused(validate_client_frame, asked | {key: None})
        assert refused(validate_client_frame, {name: value for name, value in asked.items() if name != key})
    env = {
        "t": "known",
        "env": {"HF_TOKEN": "hf_verysecret", "N": 1},
        "secrets": ["s"],
        "known": True,
        "apps": False,
    }
    with pytest.raises(WireError, match="cannot be a dict") as said:
        frame_schema.validate_answer("setup", env)
    assert "hf_" not in str(said.value)


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


@pytest.mark.parametrize("value", [float("inf"), float("nan"), {"a": [float("-inf")]}, deep(900)])
def test_what_a_value_looks_like_can_be_written_down(value: Any) -> None:
    assert refused(validate_agent_frame, OUTCOME | {"summary": SUMMARY | {"json": value}})
    assert not refused(validate_agent_frame, OUTCOME | {"summary": SUMMARY | {"json": deep(32)}})


@pytest.mark.parametrize("missing", ["run", "i", "rank", "node", "kind"])
def test_an_outcome_is_whole(missing: str) -> None:
    assert refused(validate_agent_frame, {key: value for key, value in OUTCOME.items() if key != missing})


def test_a_body_is_as_large_as_its_kind_has_it() -> None:
    assert not refused(validate_agent_frame, LOG, CHUNK_BYTES)
    assert refused(validate_agent_frame, LOG, CHUNK_BYTES + 1)
    assert refused(validate_agent_frame, BEGAN, 1)
    assert refused(validate_client_frame, CALL, 2 * MAX_INLINE_BYTES + 1)
    assert refused(validate_agent_frame, {"t": "of another release"}, MAX_INLINE_BYTES + 1)


def test_a_body_of_four_gigabytes_is_refused_before_it_comes() -> None:
    head = json.dumps(LOG).encode()
    decoder, data = Decoder(validate_agent_frame), struct.pack("!II", len(head), 2**32 - 1) + head
    assert list(decoder.feed(data[:-1])) == []
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"4,294,967,295 bytes"):
            list(decoder.feed(data[-1:] + b"x" * 100))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


FORMS = {
    "agent": FROM_AGENT,
    "client": FROM_CLIENT,
    "worker": FROM_WORKER,
    "to worker": frame_schema.TO_WORKER,
    "files": frame_schema.FILE_FRAMES,
    "peers": frame_schema.PEER_FRAMES,
}
ASKED, PAPERS = {"id": 1}, {"authority": "", "certificate": "", "key": ""}
PHASE = {"rank": 0, "phase": "importing", "age": 0.5}
ONE: dict[str, Any] = {"run": "r", "i": 0}
# A frame of every kind, with nothing but what it must hold.
WANT = {"arg": 0, "next": 1, "until": 9}
FEED = {"arg": 0, "seq": 1, "part": 0}
GOOD: dict[str, dict[str, dict[str, Any]]] = {
    "agent": {
        "welcome": {key: WELCOME[key] for key in FROM_AGENT["welcome"].needs},
        "log": {"f": "r000.out", "at": 0}, "data": ASKED | {"last": True},
        "outcome": ONE | {"rank": 0, "node": 0, "kind": "returned"},
        "item": ONE | {"seq": 0, "summary": SUMMARY, "rank": 0}, "began": ONE | {"rank": 0, "node": 0},
        "want": ONE | WANT, "stale": ONE, "run": {key: RECORD[key] for key in FROM_AGENT["run"].needs},
        "gang": {"epoch": 1, "broken": ""}, "phase": PHASE,
        "modules": {"files": {"a.py": "0f"}}, "notice": {"kind": "stop", "left": 1.5}, "metrics": {"at": 0},
        "granted": {"unclean": False}, "held": {"by": ""}, "queue": {"waiting": []}, "turn": {"run": "r"},
        "dropped": {"run": "r", "by": ""},
        "pong": {"lease": None}, "known": ASKED,
        "formed": ASKED | {"head_addr": "10.0.0.1", "head_port": 1}, "bye": {"logs": {"r000.out": 1}},
        "wanted": {},
        "ending": {"by": "", "why": ""}, "error": {"message": ""},
    },
    "client": {
        "tail": {}, "call": {key: CALL[key] for key in FROM_CLIENT["call"].needs}, "claim": {"run": "r"},
        "source": {"hash": "ab", "name": "train.py"}, "metrics": {},
        "ack": {"calls": {"r": [0], "s": None}}, "credit": ONE | {"next": 1}, "stop": {"run": "r"}, "fed": ONE | FEED,
        "fetch": ASKED | {"f": "x.result"}, "written": ASKED | {"patterns": ["out/**"]}, "output": ASKED | OUTPUT,
        "stacks": ASKED, "profile": ASKED | {"rank": 0, "seconds": 1.5}, "peers": ASKED | PAPERS,
        "debug": ASKED | {"rank": 0, "who": "w"}, "still": {"seconds": 1.5},
        "pull": ASKED | {"hash": "ab", "size": 1, "from": ["10.0.0.1", 7]}, "drop": ASKED | {"blobs": ["ab"]},
        "ports": ASKED, "setup": ASKED, "where": ASKED, "halt": ASKED, "shutdown": {},
        "gang": {"epoch": 1, "info": {}}, "hello": {}, "use": {},
        "warn": {"node": 1, "left": 1.5}, "ping": {}, "lock": {}, "unlock": {}, "form": ASKED, "heard": {"epoch": 1},
        "number": ASKED | {"least": 3},
        "holds": ASKED, "enqueue": {"run": "r", "name": "f", "nodes": 2, "only": [0, 2]}, "dequeue": {"run": "r"},
    },
    "worker": {
        "hello": {"pid": 7}, "outcome": ONE | {"kind": "returned"}, "item": ONE | {"seq": 0},
        "want": ONE | WANT,
        "phase": {"phase": ""}, "modules": {"files": {"a.py": ""}}, "secrets": {"values": ["s"]},
        "entering": {"plugin": "torch"}, "failed": {"error": ERROR},
        "ready": {"epoch": 1}, "entered": {},
    },
    "files": {
        "blob": {"name": "ab"}, "put": {"name": "ab", "size": 1}, "result": {"name": "r.0.result", "at": 0}, "go": {},
        "output": OUTPUT | {"at": 0}, "whole": {"sha256": "ab" * 32},
        "there": {}, "comes": {"size": 1}, "answer": {"error": "no such file"},
    },
    "peers": {
        "failed": {"run": "r", "epoch": 1, "node": 0, "signature": "ab"}, "heard": {"kept": False},
    },
    "to worker": {
        "setup": {"info": {}}, "place": {"info": {}, "own": {}}, "credit": ONE | {"next": 1}, "exit": {},
        "fed": ONE | FEED,
        "call": {key: CALL[key] for key in frame_schema.TO_WORKER["call"].needs},
    },
}  # fmt: skip
NONSENSE: list[Any] = [{"\x1b[2J": [-7.5]}, [{"../x": None}], -7.5]


@pytest.mark.parametrize(
    ("who", "kind"), [(who, kind) for who in GOOD for kind in sorted(GOOD[who].keys() | FORMS[who])]
)
def test_of_every_kind_of_frame_each_key_is_looked_at(who: str, kind: str) -> None:
    form, good = FORMS[who][kind], GOOD[who][kind] | {"t": kind}
    admit = partial(frame_schema.validate_header, FORMS[who])
    assert not refused(admit, good, form.body)
    assert refused(admit, good, form.body + 1)
    assert {key for key in good if refused(admit, {k: v for k, v in good.items() if k != key} | {"t": kind})} == {
        *form.needs
    }
    passed = [
        key
        for key, check in form.checks.items()
        if check is not validators.is_any and not any(refused(admit, good | {key: value}) for value in NONSENSE)
    ]
    assert passed == []


@pytest.mark.parametrize("asked", sorted(frame_schema.ANSWERS))
def test_of_every_answer_each_key_is_looked_at(asked: str) -> None:
    answers: dict[str, dict[str, Any]] = {
        "claim": {"calls": [0]}, "ports": {"ports": [7], "accelerators": 1, "line": 7}, "peers": {"port": 7},
        "number": {"epoch": 3},
        "setup": {"env": {"A": "b"}, "known": True, "secrets": ["s"], "apps": False},
        "written": {"files": [OUTPUT | {"size": 1, "at": 1.5}], "more": 0, "folder": "/w"},
        "debug": {"over": True},
        "stacks": {"ranks": [{"rank": 0, "number": 0, "at": "idle", "runs": ["r"], "threads": []}]},
        "where": {"runs": {"r": {"calls": 1, "active": 0, "total": 2}}},
        "holds": {
            "epoch": 1, "broken": "", "spent": False, "members": [1],
            "runs": {"r": {"active": 0, "ended": 1, "total": 2, "kept": ""}},
        },
    }  # fmt: skip
    good = answers[asked] | {"t": "known", "id": 1}
    frame_schema.validate_answer(asked, good)
    for key in frame_schema.ANSWERS[asked]:
        for value in NONSENSE:
            with pytest.raises(WireError, match=key):
                frame_schema.validate_answer(asked, good | {key: value})


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(CHARACTERS, max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARACTERS, max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
def test_no_frame_raises_anything_but_that_it_is_none(data: st.DataObject) -> None:
    forms = FORMS[data.draw(st.sampled_from(sorted(FORMS)))]
    kind = data.draw(st.sampled_from(sorted(forms)) | st.text(CHARACTERS, max_size=5))
    form = forms.get(kind)
    keys = sorted({*form.needs, *form.may}) if form else ["x"]
    known = st.sampled_from(
        [None, 0, 1, "r", "r000.out", OUTCOME, RECORD, SUMMARY, ERROR, [0, 1], {"r000.out": [0, 1]}]
    )
    header = data.draw(st.dictionaries(st.sampled_from(keys or ["x"]), known | values)) | {"t": kind}
    decoder = Decoder(lambda *frame: frame_schema.validate_header(forms, *frame))
    try:
        list(decoder.feed(encode_frame(header, b"body")))
    except WireError:
        return
    assert form is None or (form.body and form.needs.keys() <= header.keys())
