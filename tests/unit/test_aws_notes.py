"""What a client writes down of what it makes at AWS, beside others and as far as its disk lets it; and what of EC2's
answers it does not believe."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("boto3")
from botocore.parsers import ResponseParserError

from skyward_core.model.errors import Unreachable
from skyward_core.providers.aws import account_resources, ec2_errors, instance_lookup_and_end, instance_tags
from skyward_core.providers.aws.account_resources import SecurityResources
from skyward_core.providers.aws.ec2_errors import CallFailed
from skyward_core.providers.aws.instance_lookup_and_end import to_machine
from skyward_core.providers.aws.launch_journal_and_keys import KeyPair, LaunchJournal
from skyward_core.providers.aws.zones_and_placement import Zone
from skyward_core.providers.pool_key_folder import known_ledger_id, ledger_id


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    return tmp_path


def test_clients_that_begin_at_once_are_of_one_ledger(home: Path) -> None:
    for _ in range(20):
        gate = threading.Barrier(4)
        found: list[str] = []

        def begin(gate: threading.Barrier = gate, found: list[str] = found) -> None:
            gate.wait()
            found.append(ledger_id("aws"))

        clients = [threading.Thread(target=begin) for _ in range(4)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        assert len(found) == 4 and set(found) == {known_ledger_id("aws")}
        (home / "aws" / "ledger-id").unlink()


def test_a_user_without_a_name_owns_things_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert (
        instance_tags.pool_tags("p", "t")[instance_tags.OWNER]
        == instance_tags.purchase_tags("t")[instance_tags.OWNER]
        == "1234"
    )


@pytest.mark.parametrize(("said", "node"), [("3", 3), ("\x1b[2J", 1), ("9" * 30, 1), ("-1", 1), ("²", 1)])
def test_a_node_s_tag_is_believed_where_it_is_a_number(said: str, node: int) -> None:
    told = {"InstanceId": "i-1", "AmiLaunchIndex": 1, "Tags": [{"Key": instance_tags.NODE, "Value": said}]}
    assert to_machine(told, "r", {}).node == node


def test_what_a_full_disk_took_the_half_of_hides_nothing_else() -> None:
    folder = LaunchJournal("p", "t")
    folder.add("begun")
    with (folder.path / "asked.jsonl").open("a") as file:
        file.write('{"what": "ask", "region": "us-e')
    folder.add("answer", ids=["i-1"])
    assert [each["what"] for each in folder.notes()] == ["begun", "answer"]


def test_a_folder_that_another_client_removes_too_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, really = LaunchJournal("p", "t"), shutil.rmtree
    folder.add("begun")

    def beside(path: Path) -> None:
        really(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(shutil, "rmtree", beside)
    folder.remove()
    assert not folder.path.exists()


class Slow:
    """EC2 that has a group of which not all of its servers know yet, from a call that nobody heard the answer of."""

    def __init__(self) -> None:
        self.unknown = {"describe": 2, "authorize_security_group_ingress": 2}
        self.done: list[str] = []

    def _knows(self, name: str) -> bool:
        self.unknown[name] = self.unknown.get(name, 0) - 1
        return self.unknown[name] < 0

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        if name == "create_security_group":
            raise CallFailed("it is there", "InvalidGroup.Duplicate")
        if not self._knows(name):
            raise CallFailed("there is none", "InvalidGroup.NotFound")
        self.done.append(name)
        return {}

    async def call_all(self, *_: Any, **__: Any) -> list[Any]:
        return [{"GroupId": "sg-1"}] if self._knows("describe") else []


async def test_a_group_that_ec2_does_not_know_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec2_errors, "POLL_PAUSES", (0.0, 0.0))
    calls: Any = Slow()
    place, folder = Zone("r", "r-a", "subnet-1", "vpc-1"), LaunchJournal("p", "t")
    made = await account_resources.create_security_resources(
        calls, place, folder, KeyPair("", "ssh-ed25519 A"), "10.0.0.1/32", None
    )
    assert made == SecurityResources("skyward-p-t", "sg-1")
    assert calls.done == [
        "import_key_pair", "authorize_security_group_ingress", "authorize_security_group_egress",
    ]  # fmt: skip


def test_an_answer_that_is_none_of_aws_s_says_nothing_of_what_was_done() -> None:
    error = ResponseParserError("Unable to parse response: b'<html>sign in\n</html>'")
    assert ec2_errors.is_retryable(error) and ec2_errors.may_have_succeeded(error)
    said = ec2_errors.translate_error(error, "ec2", "us-east-1", "run_instances")
    assert isinstance(said, Unreachable) and "<html>" not in str(said) and "RunInstances" in str(said)


class Nowhere:
    """Calls of an account that has no instances."""

    looks = 0

    async def call_all(self, *_: Any, **__: Any) -> list[Any]:
        self.looks += 1
        return []


async def test_a_clock_that_was_set_back_makes_nobody_wait_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_lookup_and_end, "VISIBILITY_TIMEOUT", 0.2)
    monkeypatch.setattr(instance_lookup_and_end, "POLL_PAUSE", 0.01)
    ask = {"what": "ask", "client_token": "c", "count": 1, "region": "r", "pid": os.getpid()}
    folder: Any = SimpleNamespace(token="t", notes=lambda: [ask | {"at": time.time() + 3600}])
    calls: Any = Nowhere()
    assert await asyncio.wait_for(instance_lookup_and_end.find_machines(calls, folder, ["r"]), 10) == []
    assert calls.looks > 1, "it may show itself yet"
