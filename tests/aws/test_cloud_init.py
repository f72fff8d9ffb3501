"""What user-data is read as."""

from __future__ import annotations

import gzip
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

from .cloud_init import Wish, read

SCRIPT = "#!/bin/bash\necho late\n"
CONFIG = "#cloud-config\nbootcmd: [echo early, [echo, a b]]\nruncmd:\n- echo one\n- [echo, it's]\n"


def message(*parts: tuple[str, str]) -> bytes:
    whole = MIMEMultipart()
    for kind, text in parts:
        whole.attach(MIMEText(text, kind))
    return whole.as_bytes()


def test_a_script_alone() -> None:
    assert read(SCRIPT.encode()) == Wish(scripts=[SCRIPT.encode()])
    assert read(gzip.compress(SCRIPT.encode())) == Wish(scripts=[SCRIPT.encode()])


def test_no_user_data() -> None:
    assert read(b"") == read(b"\n") == Wish()


def test_commands_are_words_or_the_shells() -> None:
    wish = read(CONFIG.encode())
    assert wish.early == ["echo early\necho 'a b'"]
    assert wish.scripts == [b"#!/bin/sh\necho one\necho 'it'\"'\"'s'\n"]


def test_parts_of_a_message_in_their_order() -> None:
    hook = "#cloud-boothook\necho first"
    wish = read(message(("cloud-config", CONFIG), ("x-shellscript", SCRIPT), ("cloud-boothook", hook)))
    assert [text.splitlines()[0] for text in wish.early] == ["echo first", "echo early"]
    assert wish.scripts[1] == SCRIPT.encode() and not wish.problems


def test_what_is_not_known_is_said_and_the_rest_done() -> None:
    wish = read(b"#cloud-config\npackages: [jq]\nruncmd: [echo]\n")
    assert wish.problems == ["cloud-config's 'packages' is not known to the bed"] and len(wish.scripts) == 1
    assert "no YAML" in read(b"#cloud-config\na: [").problems[0]
    assert "unhandled" in read(b"echo hello").problems[0]
