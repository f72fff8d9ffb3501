"""Redaction of secrets, of the same length and at any cut, and sanitizing of text for terminals."""

import base64
import json
import pickle
import random
import re
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skyward_core.model.errors import SpecError
from skyward_core.model.specs import Image, Options, PipIndex, PoolSpec, Worker
from skyward_core.util.redaction import (
    MIN_SECRET_LENGTH,
    Redactor,
    SecretPrefilter,
    secret_values,
    strip_credentials,
    url_secrets,
)
from skyward_core.util.terminal_safe_text import (
    is_plain_ascii,
    reset_colors,
    sanitize_colored,
    sanitize_json,
    sanitize_line,
    sanitize_paragraph,
)
from skyward_core.views.log_buffers_and_rank_activity import LineSplitter
from skyward_tui.cli.console_and_log_printer import LogPrinter
from tests.support.any_text import CHARACTERS
from tests.support.examples import examples
from tests.support.hostile_text import SGR, harm, is_harmful, through_pty

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
MASK = "*" * len(TOKEN)


def test_redactor_without_secrets_changes_nothing():
    redactor = Redactor(["", "short"])
    assert not redactor.has_secrets
    assert redactor.redact_text("short") == "short"
    assert len("short") < MIN_SECRET_LENGTH


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"a {TOKEN} b {TOKEN}{TOKEN}", f"a {MASK} b {MASK}{MASK}"),
        (f"cut: {TOKEN[:20]}…", f"cut: {'*' * 20}…"),
        (f"too little of it: {TOKEN[:11]}", f"too little of it: {TOKEN[:11]}"),
        ("pass1234, pass123", "********, pass123"),
        ("größe \udc80", "größe \udc80"),
    ],
)
def test_secrets_and_their_cut_beginnings_are_redacted(text, shown):
    assert Redactor([TOKEN, "pass1234"]).redact_text(text) == shown


def test_redact_json_covers_keys_and_values():
    data = {"text": f"[{TOKEN!r}]", "json": [TOKEN, {TOKEN: 1}, None, 2.5, True], "size": 3}
    blank = {"text": f"['{MASK}']", "json": [MASK, {MASK: 1}, None, 2.5, True], "size": 3}
    assert Redactor([TOKEN]).redact_json(data) == blank


def test_redacted_pickle_still_loads():
    data = Redactor([TOKEN]).redact_bytes(pickle.dumps(KeyError(f"no {TOKEN}", {"k": TOKEN}), protocol=5))
    assert pickle.loads(data).args == (f"no {MASK}", {"k": MASK})


KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYKEY"
SECRET_NAMES = """
HF_TOKEN HUGGING_FACE_HUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_ACCESS_KEY_ID WANDB_API_KEY OPENAI_API_KEY
ANTHROPIC_API_KEY GITHUB_TOKEN GH_TOKEN GITLAB_TOKEN NPM_TOKEN PYPI_PASSWORD AZURE_CLIENT_SECRET NEPTUNE_API_TOKEN
GOOGLE_API_KEY COMET_API_KEY SLACK_BOT_TOKEN db_password PGPASSWORD MYSQL_PWD DJANGO_SECRET_KEY SSH_PRIVATE_KEY
REDISCLI_AUTH STORAGE_ACCOUNT_KEY AZURE_STORAGE_CONNECTION_STRING GITHUB_PAT SMTP_PASS DATABRICKS_TOKEN APIKEY
"""
OTHER_NAMES = """
PATH TOKENIZERS_PARALLELISM KEY MAX_TOKENS NUM_TOKENS AWS_WEB_IDENTITY_TOKEN_FILE TOKEN_URL PWD OLDPWD SECRETS_BACKEND
SSH_AUTH_SOCK CREDENTIALS_PROFILE XAUTHORITY MONKEY_MODE PASSENGERS KEYBOARD
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_value_of_a_secret_name_is_secret(name):
    assert secret_values({name: KEY}) == [KEY]


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_value_of_a_plain_name_is_secret_only_as_url_password(name):
    assert secret_values({name: KEY}) == []
    assert secret_values({name: "http://me:hush@proxy:3128"}) == ["hush"]


@pytest.mark.parametrize("value", ["/etc/ssl/key", "~/key.json", "./token", "production", "--------", "CHANGEME"])
def test_paths_and_common_words_are_no_secrets(value):
    assert secret_values({"APP_TOKEN": value}) == []


def test_key_that_begins_like_a_path_is_secret():
    assert secret_values({"AWS_SECRET_ACCESS_KEY": "/" + KEY}) == ["/" + KEY]


@pytest.mark.parametrize("secret", [KEY, "p@ss word/ä:ö+&=%", "12345678x", '{"k": "-----BEGIN KEY-----\\nabc"}'])
@pytest.mark.parametrize("before", ["", "u", "us", "user:", "x-access-token:"])
def test_encoded_forms_of_a_secret_are_redacted(secret, before):
    redactor, whole = Redactor([secret]), f"{before}{secret}:rest".encode()
    inside = len(before) * 4 // 3 + 1
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(whole).decode()
        shown = redactor.redact_text(f"Authorization: Basic {text}\n")
        assert len(shown) == len("Authorization: Basic \n") + len(text)
        own = len(secret.encode()) * 4 // 3 - 2  # characters that are the secret's alone
        assert shown.count("*") >= own
        assert text[inside : inside + own] not in shown
    whole_quoted = quote(secret, safe="")
    lower = re.sub("%..", lambda hexadecimal: hexadecimal[0].lower(), whole_quoted)
    for text in (quote(secret), whole_quoted, lower, quote_plus(secret)):
        assert redactor.redact_text(f"https://host/?key={text}&a=b") == f"https://host/?key={'*' * len(text)}&a=b"


@given(
    st.lists(st.binary(min_size=8, max_size=12), min_size=1, max_size=6),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.data(),
)
def test_secret_prefilter_misses_no_secret(words, before, after, data):
    word = data.draw(st.sampled_from(words))
    assert SecretPrefilter(words).may_contain(before + word + after)


@given(st.text(st.characters(codec="ascii"), min_size=8, max_size=30), st.binary(max_size=60), st.data())
def test_withheld_bytes_are_the_longest_beginning_of_a_secret(secret, before, data):
    """Bytes arrive one by one, as from a slow rank; the result equals a plain search of every prefix."""
    redactor = Redactor([secret])
    cut = before + secret.encode()[: data.draw(st.integers(0, len(secret) - 1))]
    forms = redactor._values
    longest = max((n for form in forms for n in range(len(form)) if cut.endswith(form[:n])), default=0)
    assert redactor.partial_secret_length(cut) == longest


def test_named_secrets_are_neither_written_nor_shown():
    options = Options(secrets=[TOKEN])
    assert TOKEN not in repr(options) + json.dumps(options.describe())
    assert Options.from_json(options.describe()) == Options()
    for wrong in (["hunter2"], TOKEN, [1]):
        with pytest.raises(SpecError, match="secrets") as caught:
            Options(secrets=wrong)  # type: ignore[arg-type]
        assert "hunter2" not in str(caught.value) and TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown", "secrets"),
    [
        ("https://me:hush@host/simple", "https://host/simple", ["hush"]),
        ("https://tok%40en@host:8443/", "https://host:8443/", ["tok%40en", "tok@en"]),
        ("p @ git+https://me:a@b@host/x.git@v1", "p @ git+https://host/x.git@v1", ["a@b"]),
        ("git+ssh://git@host/x", "git+ssh://git@host/x", []),
        ("postgres://me:hush@db:5432/x", "postgres://me@db:5432/x", ["hush"]),
        ("see 'https://u:one@a/', https://two@b", "see 'https://a/', https://b", ["one", "two"]),
        ("https://host/a@b me@host https://", "https://host/a@b me@host https://", []),
    ],
)
def test_url_credentials_are_stripped(text, shown, secrets):
    assert strip_credentials(text) == shown
    assert strip_credentials(shown) == shown
    assert url_secrets({"x": [text]}) == secrets


def test_literal_forms_of_a_secret_are_redacted():
    secret = "first 'line'\nsecond \\ line"
    redactor = Redactor([secret])
    for text in (secret, repr(secret), str([secret]), f"{{{json.dumps(secret)}: 1}}"):
        assert "line" not in redactor.redact_text(text)


def test_described_spec_has_no_credentials():
    image = Image(
        pip=("p @ https://me:hush@host/p.whl",),
        pip_indexes=(PipIndex(url="https://hush@host/simple"),),
        setup=("curl https://me:hush@host",),
        env={"A": "hush"},
    )

    class Provider:
        name = "local"

    described = PoolSpec(name="p", provider=Provider(), image=image, worker=Worker()).describe()
    assert "hush" not in json.dumps(described)
    assert described["image"]["pip_indexes"] == [{"url": "https://host/simple", "packages": []}]


def test_long_value_is_searched_in_linear_time():
    """Each letter might begin a URL, so a search from each letter to the end would take minutes."""
    assert secret_values({"IMAGE": "x" * 600_000}) == []
    assert url_secrets("x" * 100 + "://me:hush@host") == ["hush"]


# Nothing that a rank, a host or a server writes makes a terminal do more than show text in colours.

# Pieces that hostile text is made of: introducers and ends in both forms, what parsers ignore and what breaks off.
PIECES = [
    "\x1b", "\x1b[", "\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x1b\\", "\x1b(", "\x1b%", "\x1b#", "\x9b", "\x9d",
    "\x90", "\x9c", "\x85", "\x07", "\x00", "\x18", "\x1a", "\x7f", "\b", "\t", "\r", "\n", "\x0b", "\x0e", "m", "31",
    ";", ":", "?", ">", " ", "2J", "31m", "52;c;aGk=", "0;title", "8;;http://x", "[", "]", "\\", "c", "H", "$", "text",
    "é", "漢", "👩\u200d💻", "\u202e", "\u2066", "\u2069", "\u200e", "\u200f", "\u061c", "\u2028", "\ufeff", "\u00ad",
    "\U000e0041", "\ud800",
]  # fmt: skip
hostile = st.lists(st.one_of(st.sampled_from(PIECES), st.text(CHARACTERS, max_size=3)), max_size=24).map("".join)


@given(data=st.one_of(hostile.map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=60)))
@example(data=b"\x1b[\x002J")
@example(data=b"\x1b\x1b[2J\x1b\x00]0;t\x07\x1b[>4;1m\x1b[?25l\x1b[ q\x1b[1 q\x1b[31\x18m")
@example(data="\x9b2J\x9d52;c;aGk=\x9c\u202e".encode())
@settings(max_examples=examples(150))
def test_output_of_ranks_changes_only_colours_of_a_terminal(data: bytes) -> None:
    def write(sink: Any) -> None:
        printer = LogPrinter(sink, terminal=True)
        printer.feed(0, "out", data)
        printer.finish()

    assert harm(through_pty(write)) == []


@given(data=st.binary(max_size=80), cut=st.integers(0, 80))
def test_log_lines_hold_only_colours(data: bytes, cut: int) -> None:
    lines = LineSplitter()
    for piece in (data[:cut], data[cut:]):
        shown = [*lines.split(piece), lines.preview()]
        assert not any(is_harmful(c) for line in shown for c in SGR.sub("", line))
    for line in lines.split(b"\n"):
        assert harm(reset_colors(line).encode()) == []


@given(text=hostile)
def test_sanitized_line_is_printable_and_one_line(text: str) -> None:
    safe = sanitize_line(text)
    assert not any(c in "\r\n\t\x1b" or is_harmful(c) for c in safe)
    assert sanitize_line(safe) == safe


@given(text=hostile)
def test_sanitized_paragraph_is_printable_and_keeps_lines(text: str) -> None:
    safe = sanitize_paragraph(text)
    assert not any(c in "\r\t\x1b" or is_harmful(c) for c in safe)
    assert safe.count("\n") == text.replace("\r\n", "\n").replace("\r", "\n").count("\n")


@given(text=st.text(st.characters(exclude_categories=["C", "Zl", "Zp"])))
def test_harmless_text_is_unchanged(text: str) -> None:
    assert sanitize_colored(text) == sanitize_line(text) == sanitize_paragraph(text) == text


@pytest.mark.parametrize(
    ("raw", "log", "name"),
    [
        ("\x1b[1;38;5;200mred\x1b[0m", "\x1b[1;38;5;200mred\x1b[0m", "red"),
        ("\x1b[4:3mcurly\x1b[m", "\x1b[4:3mcurly\x1b[m", "curly"), ("\x9b31mred", "\x1b[31mred", "red"),
        ("a\x1b[\x002Jb", "ab", "ab"), ("a\x1b[>4;1mb\x1b[?1mc\x1b[1 md", "abcd", "abcd"),
        ("a\x1b]52;c;aGk=\x07b\x1b]0;t\x1b\\c\x9d0;t\x9cd", "abcd", "abcd"), ("a\x1b]0;t\x1b[31mb", "a\x1b[31mb", "ab"),
        ("a\x1b]0;never ended", "a0;never ended", "a0;never ended"), ("a\x1b[31", "a", "a"),
        ("one\ttwo", "one\ttwo", "one⇥two"),
        ("one\r\ntwo\rthree\n", "one��two�three�", "one↵two↵three↵"),
        ("👩\u200d💻 \xa0", "👩\u200d💻 \xa0", "👩\u200d💻 \xa0"),
        ("\u202eexe.png", "�exe.png", "�exe.png"),
    ],
)  # fmt: skip
def test_sanitizers_keep_the_harmless_part(raw: str, log: str, name: str) -> None:
    assert sanitize_colored(raw) == log
    assert sanitize_line(raw) == name


def test_sanitized_json_is_safe_including_keys() -> None:
    data = {"a\x1b[2J": ["\x1b]0;t\x07", 1, None], "b\n": {"\u202ec": ("x\ty", True)}}
    assert sanitize_json(data) == {"a": ["", 1, None], "b↵": {"�c": ["x⇥y", True]}}
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert "…" in str(sanitize_json(deep))


def test_plain_ascii_needs_no_filter() -> None:
    chance = random.Random(3)
    for _ in range(500):
        data = bytes(chance.choices(range(256), k=chance.choice((1, 2, 40))))
        if is_plain_ascii(data):
            assert all(sanitize_colored(line) == line for line in data.decode().split("\n"))
    assert is_plain_ascii(b"tabs\tand lines\n")
    assert not is_plain_ascii("é".encode())  # it may be harmless, but it has to be looked at
