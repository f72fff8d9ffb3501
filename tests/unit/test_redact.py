"""Secrets blanked by value: same length, also where they are cut off, and nothing else touched."""

import json
import pickle

import pytest

from skyward_core.agent.redact import SHORTEST, Redactor, secret_values, url_secrets, without_credentials
from skyward_core.spec import Image, PipIndex, PoolSpec, Worker

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
MASK = "*" * len(TOKEN)


def test_none_known_is_false_and_changes_nothing():
    redactor = Redactor(["", "short"])
    assert not redactor
    assert redactor.text("short") == "short"
    assert len("short") < SHORTEST


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"a {TOKEN} b {TOKEN}{TOKEN}", f"a {MASK} b {MASK}{MASK}"),
        (f"cut: {TOKEN[:20]}…", f"cut: {'*' * 20}…"),
        (f"too little of it: {TOKEN[:11]}", f"too little of it: {TOKEN[:11]}"),
        ("pass1234, pass123", "********, pass123"),
        ("größe \udc80", "größe \udc80"),
    ],
)
def test_what_is_blanked(said, shown):
    assert Redactor([TOKEN, "pass1234"]).text(said) == shown


def test_all_of_json():
    told = {"text": f"[{TOKEN!r}]", "json": [TOKEN, {TOKEN: 1}, None, 2.5, True], "size": 3}
    blank = {"text": f"['{MASK}']", "json": [MASK, {MASK: 1}, None, 2.5, True], "size": 3}
    assert Redactor([TOKEN]).json(told) == blank


def test_a_pickled_error_still_loads():
    data = Redactor([TOKEN]).data(pickle.dumps(KeyError(f"no {TOKEN}", {"k": TOKEN}), protocol=5))
    assert pickle.loads(data).args == (f"no {MASK}", {"k": MASK})


def test_the_beginning_of_one_at_the_end():
    redactor = Redactor([TOKEN, "fghijklm12345"])
    assert redactor.begun(b"x hf_abc") == 6
    assert redactor.begun(TOKEN[:13].encode()) == 13
    assert redactor.begun(TOKEN.encode()) == 0
    assert redactor.begun(b"line\n") == 0


def test_environment_variables_with_telling_names():
    env = {"HF_TOKEN": "a", "AWS_SECRET_ACCESS_KEY": "b", "db_password": "c", "OPENAI_API_KEY": "d"}
    plain = {"PATH": "e", "TOKENIZERS_PARALLELISM": "f", "KEY": "g"}
    assert secret_values(env | plain) == ["a", "b", "c", "d"]
    assert secret_values({"PROXY": "http://me:hush@proxy:3128"}) == ["hush"]


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
def test_credentials_of_urls(text, shown, secrets):
    assert without_credentials(text) == shown
    assert without_credentials(shown) == shown
    assert url_secrets({"x": [text]}) == secrets


def test_a_secret_as_a_literal_shows_it():
    secret = "first 'line'\nsecond \\ line"
    redactor = Redactor([secret])
    for said in (secret, repr(secret), str([secret]), f"{{{json.dumps(secret)}: 1}}"):
        assert "line" not in redactor.text(said)


def test_a_spec_is_described_without_credentials():
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
