"""Host keys: what the files say, what is thought of a key, what is written down."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from skyward_core.model.errors import HostKeyError
from skyward_core.transport.ssh import known_hosts
from skyward_core.transport.ssh.asyncssh_import import asyncssh
from skyward_tui.text.error_hints import format_error


def key(kind: str = "ssh-ed25519") -> asyncssh.SSHKey:
    return asyncssh.generate_private_key(kind).convert_to_public()


def line(pattern: str, public: asyncssh.SSHKey) -> str:
    return f"{pattern} {public.export_public_key().decode().strip()}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


def test_a_key_in_the_file_is_known_and_another_is_changed(file: Path) -> None:
    one, other = key(), key()
    file.write_text("# mine\n\n" + line("gpu1,10.0.0.1", one))
    known = known_hosts.look_up([file], "gpu1", 22)
    assert known.verdict(one) == "known"
    assert known.verdict(other) == "changed"
    assert known.places == ((file, 3),)
    assert known_hosts.look_up([file], "10.0.0.1", 22).verdict(one) == "known"


def test_a_host_in_no_file_is_unknown(file: Path, tmp_path: Path) -> None:
    file.write_text(line("gpu2", key()))
    assert known_hosts.look_up([file, tmp_path / "none"], "gpu1", 22).verdict(key()) == "unknown"


def test_a_port_of_its_own_is_another_host(file: Path) -> None:
    standard, other = key(), key()
    file.write_text(line("gpu1", standard) + line("[gpu2]:2222", other))
    # OpenSSH's rule: the plain name vouches for other ports too, but does not make another key there a change.
    assert known_hosts.look_up([file], "gpu1", 2222).verdict(standard) == "known"
    assert known_hosts.look_up([file], "gpu1", 2222).verdict(other) == "unknown"
    assert known_hosts.look_up([file], "gpu2", 2222).verdict(other) == "known"
    assert known_hosts.look_up([file], "gpu2", 2222).verdict(standard) == "changed"
    assert known_hosts.look_up([file], "gpu2", 22).verdict(other) == "unknown"


def test_a_key_of_another_type_is_a_change_too(file: Path) -> None:
    file.write_text(line("gpu1", key("ssh-ed25519")))
    assert known_hosts.look_up([file], "gpu1", 22).verdict(key("ecdsa-sha2-nistp256")) == "changed"


def test_markers_are_kept_apart(file: Path) -> None:
    authority, bad = key(), key()
    file.write_text(line("@cert-authority *.lab", authority) + line("@revoked *", bad))
    known = known_hosts.look_up([file], "gpu1.lab", 22)
    assert (known.trusted, known.authorities, known.revoked) == ((), (authority,), (bad,))


def test_hashed_names_and_broken_lines(file: Path) -> None:
    one = key()
    # What ssh-keygen -H makes of "gpu1".
    import base64
    import hashlib
    import hmac

    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, b"gpu1", hashlib.sha1).digest()
    hashed = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    file.write_text("what is this\n@odd gpu1 x\n" + line(hashed, one))
    assert known_hosts.look_up([file], "gpu1", 22).verdict(one) == "known"


def test_a_change_of_the_file_is_seen(file: Path) -> None:
    one = key()
    file.write_text("")
    assert known_hosts.look_up([file], "gpu1", 22).verdict(one) == "unknown"
    known_hosts.accept_key(known_hosts.ServerKey("gpu1", "gpu1", 22, one, file))
    assert known_hosts.look_up([file], "gpu1", 22).verdict(one) == "known"


def test_accepting_writes_one_private_line_also_after_a_missing_newline(file: Path) -> None:
    one, two = key(), key()
    known_hosts.accept_key(known_hosts.ServerKey("gpu1", "gpu1", 22, one, file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(file.read_text().rstrip("\n"))
    known_hosts.accept_key(known_hosts.ServerKey("gpu2", "10.0.0.2", 2222, two, file))
    assert [text.split()[0] for text in file.read_text().splitlines()] == ["gpu1", "[10.0.0.2]:2222"]


def test_a_key_is_accepted_once_and_a_file_that_takes_none_is_named(file: Path) -> None:
    one = known_hosts.ServerKey("gpu1", "gpu1", 2222, key(), file)
    for _ in range(2):
        known_hosts.accept_key(one)
    assert len(file.read_text().splitlines()) == 1

    nowhere = known_hosts.ServerKey("gpu1", "gpu1", 22, key(), Path("/proc/nowhere/known_hosts"))
    with pytest.raises(HostKeyError, match=r"gpu1.*accepted, and cannot be written to /proc/nowhere"):
        known_hosts.accept_key(nowhere)


def test_an_unreadable_file_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(HostKeyError, match="cannot be read"):
        known_hosts.look_up([tmp_path], "gpu1", 22)  # a folder: reading it fails for root, too


def test_errors_name_fingerprints_place_and_command(file: Path) -> None:
    old, new = key(), key("ecdsa-sha2-nistp256")
    shown = known_hosts.ServerKey("gpu1", "gpu1", 22, new, file)
    unknown = format_error(known_hosts.unknown_key_error(shown))
    assert new.get_fingerprint() in unknown and "ECDSA" in unknown
    assert unknown.endswith(f"accept it with: skyward-tui trust gpu1 --known-hosts {file}")
    file.write_text(line("gpu1", old))
    changed = format_error(known_hosts.changed_key_error(shown, known_hosts.look_up([file], "gpu1", 22)))
    assert changed.endswith(f"accept it with: skyward-tui trust gpu1 --known-hosts {file}")
    usual = replace(shown, file=known_hosts.own_known_hosts_file())
    assert format_error(known_hosts.unknown_key_error(usual)).endswith("skyward-tui trust gpu1")
    for part in (old.get_fingerprint(), new.get_fingerprint(), f"{file} line 1", "ssh-keygen -f", "CHANGED"):
        assert part in changed
