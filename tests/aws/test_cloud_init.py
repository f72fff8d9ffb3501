"""Reading of user-data by the bed's cloud-init."""

from __future__ import annotations

from .cloud_init import Wish, read

SCRIPT = b"#!/bin/bash\necho late\n"


def test_user_data_script_runs_unchanged() -> None:
    assert read(SCRIPT) == Wish(scripts=[SCRIPT])
    assert read(b"") == read(b"\n") == Wish()


def test_cloud_config_commands_are_word_lists_or_shell_text() -> None:
    wish = read(b"#cloud-config\nbootcmd: [echo early, [echo, a b]]\nruncmd:\n- echo one\n- [echo, it's]\n")
    assert wish.early == ["echo early\necho 'a b'"]
    assert wish.scripts == [b"#!/bin/sh\necho one\necho 'it'\"'\"'s'\n"]


def test_unknown_cloud_config_keys_are_problems_and_the_rest_runs() -> None:
    wish = read(b"#cloud-config\npackages: [jq]\nruncmd: [echo]\n")
    assert wish.problems == ["cloud-config's 'packages' is not known to the bed"] and len(wish.scripts) == 1
    assert "no YAML" in read(b"#cloud-config\na: [").problems[0]
    assert "unhandled" in read(b"echo hello").problems[0]
