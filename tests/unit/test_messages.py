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
    validate_agent_frame,
    validate_client_frame,
)
from tests.protocol_page import TABLES, answers, parts_of
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


FORMS = {prefix: forms for _, prefix, _, forms in TABLES}
SAMPLES: dict[validators.Check, Any] = {
    validators.is_text: "x", validators.is_run_id: "r", validators.is_file_name: "ab", validators.is_bool: True,
    validators.is_log_name: "r000.out", validators.is_valid_log_name: "r000.out", validators.is_plain: [1],
    validators.is_relative_subpath: "out/a b\n.pt", validators.is_number: 1.5, validators.is_integer: 1,
    validators.is_count: 1, validators.is_call_index: 0, validators.is_rank: 0, validators.is_rank_count: 2,
    validators.is_port: 7, validators.is_span: [0, 1], validators.is_metric_summary: [1.0, None, 2.0],
    validators.is_stack_frame: ["f", "a.py", 1], validators.is_blob: ["ab" * 16, 9], validators.is_rank_info: {},
    validators.is_node_place: [0, "10.0.0.1", 7], validators.is_address: ["10.0.0.1", 7],
}  # fmt: skip


def sample(check: validators.Check) -> Any:
    """Return a value that a validator accepts, with no key that may be missing."""
    match parts_of(check):
        case "optional", {"check": inner}:
            return sample(inner)
        case "list_of", {"check": inner}:
            return [sample(inner)]
        case "dict_of", {"name": name, "check": inner}:
            return {sample(name): sample(inner)}
        case "one_of", {"values": values}:
            return values[0]
        case "object_of", {"needs": needs}:
            return {key: sample(each) for key, each in needs.items()}
    return SAMPLES[check]


NONSENSE: list[Any] = [{"\x1b[2J": [-7.5]}, [{"../x": None}], -7.5]


@pytest.mark.parametrize(("who", "kind"), [(who, kind) for who, forms in FORMS.items() for kind in sorted(forms)])
def test_every_key_of_a_frame_is_validated(who: str, kind: str) -> None:
    form = FORMS[who][kind]
    good = {key: sample(check) for key, check in form.needs.items()} | {"t": kind}
    admit = partial(frame_schema.validate_header, FORMS[who])
    assert not refused(admit, good, form.body)
    assert not refused(admit, good | {key: sample(check) for key, check in form.may.items()}, form.body)
    assert refused(admit, good, form.body + 1)
    assert all(refused(admit, {k: v for k, v in good.items() if k != key}) for key in form.needs)
    passed = [key for key in form.checks if not any(refused(admit, good | {key: value}) for value in NONSENSE)]
    assert passed == []


@pytest.mark.parametrize("asked", sorted(answers()))
def test_every_key_of_an_answer_is_validated(asked: str) -> None:
    good = {key: sample(check) for key, check in answers()[asked].items()} | {"t": "known", "id": 1}
    frame_schema.validate_answer(asked, good)
    for key in answers()[asked]:
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
