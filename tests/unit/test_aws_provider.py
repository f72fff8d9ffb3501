"""AWS provider: images, placement, calls, sessions, tags and policy."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import shutil
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from skyward_core.model.errors import CredentialsRefused, NoCapacity, Unreachable, UsageError
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.offers_and_rental_plans import MachineRequirements
from skyward_core.providers.aws import (
    boto_calls,
    ec2_errors,
    instance_tags_and_launch_journal,
    instances_and_leftovers,
    offers_and_images,
    security_groups_and_account_checks,
    zones_and_placement,
)
from skyward_core.providers.aws.boto_calls import AwsAccount, AwsCalls
from skyward_core.providers.aws.ec2_errors import CallFailed, CapacityRefused, NoImage
from skyward_core.providers.aws.instance_tags_and_launch_journal import KeyPair, LaunchJournal
from skyward_core.providers.aws.instances_and_leftovers import to_machine
from skyward_core.providers.aws.launch_and_reservations import InstanceLaunch, LaunchAttempt, LaunchParameters
from skyward_core.providers.aws.offers_and_images import BilledExtras, BootImage, InstanceType, PriceCache, find_image
from skyward_core.providers.aws.security_groups_and_account_checks import SecurityResources
from skyward_core.providers.aws.zones_and_placement import Zone, sort_by_topology
from skyward_core.providers.provider_call_logs_polling_and_cache import IncompleteSearch, progress_listener
from skyward_core.store.ledger import known_ledger_id, ledger_id
from skyward_core.store.receipts_and_bills import make_bills

KIND = InstanceType(
    name="m7i.large", architecture="x86_64", accelerator="", count=0, memory_each_gb=0.0, nvidia=False, vcpus=2,
    memory_gb=8.0, efa=False,
)  # fmt: skip


class Calls:
    """Stand-in for the EC2 client that answers `describe_images`."""

    class account:
        endpoint = "played"

    def __init__(self, **volumes: int) -> None:
        self.asked = 0
        self.volumes = {f"/dev/{name}": size for name, size in volumes.items()}

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        assert name == "describe_images"
        self.asked += 1
        if region == "elsewhere":
            return {"Images": []}
        listed = [{"DeviceName": name, "Ebs": {"VolumeSize": size}} for name, size in self.volumes.items()]
        mappings = [*listed, {"DeviceName": "/dev/sdz", "VirtualName": "ephemeral0"}]
        return {"Images": [{"RootDeviceName": "/dev/sda1", "BlockDeviceMappings": mappings, "Name": "mine"}]}


@pytest.fixture(autouse=True)
def market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))

    async def sold(*_: Any) -> list[InstanceType]:
        return [KIND]

    async def zones(*_: Any) -> dict[str, list[str]]:
        return {KIND.name: ["here-a"]}

    async def beside(*_: Any) -> dict[str, float]:
        return {"gb": 0.01, "address": 0.5}

    async def on_demand(*_: Any) -> dict[str, float]:
        return {KIND.name: 1.0}

    monkeypatch.setattr(offers_and_images, "find_instance_types", sold)
    monkeypatch.setattr(offers_and_images, "zones_by_type", zones)
    monkeypatch.setattr(offers_and_images, "extra_prices", beside)
    monkeypatch.setattr(offers_and_images, "on_demand_prices", on_demand)


@pytest.mark.parametrize(
    ("volumes", "expected", "gb"),
    [({"sda1": 8}, 100, 100), ({"sda1": 300}, 100, 300), ({"sda1": 300, "sdb": 50}, 400, 450), ({}, 100, 100)],
)
async def test_offer_price_includes_volumes_of_the_image(volumes: dict[str, int], expected: int, gb: int) -> None:
    calls: Any = Calls(**volumes)
    extras = BilledExtras(expected, True, "ami-1")
    for _ in range(2):
        (offer,) = (await offers_and_images.query_region(calls, "aws", "here", MachineRequirements(), extras)).offers
        assert offer.beside_hourly == pytest.approx(0.01 * gb + 0.5)
    assert calls.asked == 1, "an image never changes"
    image = await find_image(calls, "here", KIND, "ami-1", None)
    assert max(expected, image.disk_gb) + volumes.get("sdb", 0) == gb


async def test_region_without_the_image_is_skipped_if_others_have_it() -> None:
    calls: Any = Calls(sda1=300)
    extras = BilledExtras(100, False, "ami-1")
    found = await offers_and_images.list_offers(calls, "aws", ["elsewhere", "here"], MachineRequirements(), extras)
    assert [each.region for each in found.offers] == ["here"]
    assert any("region elsewhere has no machine image ami-1" in note for note in found.notes)
    with pytest.raises(UsageError, match="has no machine image ami-1"):
        await offers_and_images.list_offers(calls, "aws", ["elsewhere"], MachineRequirements(), extras)
    with pytest.raises(NoImage):
        await extras.total_disk_gb(calls, PriceCache("played"), "elsewhere")


# The order of nodes by EC2's network topology, and placement groups.


def machines(names: str) -> list[Machine]:
    return [Machine(name, node, "", "") for node, name in enumerate(names)]


def test_topology_order_keeps_neighbors_of_every_layer_adjacent() -> None:
    chance = random.Random(7)
    for _ in range(200):
        names = "abcdefghij"
        paths = {name: "".join(chance.choice("xyz") for _ in range(3)) for name in names if chance.random() < 0.9}
        found = sort_by_topology(machines(names), paths)
        assert sorted(each.id for each in found) == list(names)
        for depth in (1, 2, 3):
            above = [paths.get(each.id, each.id)[:depth] for each in found]
            changes = [one for one, other in pairwise(above) if one != other]
            assert len(changes) == len(set(above)) - 1, "no node of the network is come back to"


class Full:
    """EC2 without capacity. Counts the requests."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        self.sent.append(params["Placement"].get("GroupName"))
        raise CapacityRefused("there is none", "InsufficientInstanceCapacity")


def launching(
    calls: Any, monkeypatch: pytest.MonkeyPatch, group: str | None = None
) -> tuple[InstanceLaunch, LaunchAttempt]:
    """Return a launch of two machines in a placement group. The pool's key and group exist."""

    async def own(*_: Any) -> SecurityResources:
        return SecurityResources(key="k", group="sg-1")

    async def image(_: LaunchAttempt) -> BootImage:
        return BootImage("ami-1", "/dev/sda1", 8, "ubuntu")

    monkeypatch.setattr(security_groups_and_account_checks, "create_security_resources", own)
    kind = InstanceType(
        name="g5.xlarge", architecture="x86_64", accelerator="A10G", count=1, memory_each_gb=24.0, nvidia=True,
        vcpus=4, memory_gb=16.0, efa=False, cluster=True,
    )  # fmt: skip
    wishes = LaunchParameters(
        count=2, least=2, token="t1", node=None, ttl=None, boot_deadman=30, deadman=30, own_address="10.0.0.1/32",
        group=group, profile=None, disk_gb=None, public=True, account="1",
    )  # fmt: skip
    place = Zone(zone="r-a", region="r", subnet="subnet-1", vpc="vpc-1")
    launch = InstanceLaunch(calls, LaunchJournal("p", "t1"), wishes, image, lambda machines: None)
    return launch, LaunchAttempt(place, kind, grouped=True)


@pytest.mark.parametrize(("has_group", "sent"), [(True, ["skyward-p-t1", None]), (False, [None])])
async def test_launch_retries_without_placement_group_if_not_permitted(
    has_group: bool, sent: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))

    async def make(*_: Any) -> None:
        if not has_group:
            raise CallFailed("you may not", "UnauthorizedOperation")

    monkeypatch.setattr(zones_and_placement, "create_placement_group", make)
    calls: Any = Full()
    launch, attempt = launching(calls, monkeypatch)
    with pytest.raises(NoCapacity, match="there is none"):
        await launch.launch_machines([attempt])
    assert calls.sent == sent


class NotYet(Full):
    """EC2 that does not know the pool's new resources yet."""

    def __init__(self, *codes: str) -> None:
        super().__init__()
        self.codes = list(codes)

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        if self.codes:
            code = self.codes.pop(0)
            raise CallFailed(f"there is none ({code})", code)
        return await super().call(service, region, name, **params)


async def test_launch_waits_for_resources_that_ec2_does_not_know_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def made(*_: Any) -> None:
        return None

    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    monkeypatch.setattr(zones_and_placement, "create_placement_group", made)
    monkeypatch.setattr(ec2_errors, "POLL_PAUSES", (0.0, 0.0))
    calls = NotYet("InvalidKeyPair.NotFound", "InvalidPlacementGroup.Unknown", "InvalidGroup.NotFound")
    launch, attempt = launching(calls, monkeypatch)
    with pytest.raises(NoCapacity):
        await launch.launch_machines([attempt])
    assert calls.codes == [] and calls.sent == ["skyward-p-t1", None]
    launch, attempt = launching(NotYet("InvalidGroup.NotFound"), monkeypatch, group="sg-of-mine")
    with pytest.raises(CallFailed, match=r"InvalidGroup\.NotFound"):
        await launch.launch_machines([attempt])


# The launch journal, tags and shared resources.


def test_concurrent_clients_use_one_ledger_id(tmp_path: Path) -> None:
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
        (tmp_path / "aws" / "ledger-id").unlink()


@pytest.mark.parametrize(("tag", "node"), [("3", 3), ("\x1b[2J", 1), ("9" * 30, 1), ("-1", 1), ("²", 1)])
def test_invalid_node_tag_falls_back_to_the_launch_index(tag: str, node: int) -> None:
    instance = {
        "InstanceId": "i-1",
        "AmiLaunchIndex": 1,
        "Tags": [{"Key": instance_tags_and_launch_journal.NODE, "Value": tag}],
    }
    assert to_machine(instance, "r", {}).node == node


def test_truncated_launch_journal_line_hides_no_other_line() -> None:
    folder = LaunchJournal("p", "t")
    folder.add("begun")
    with (folder.path / "asked.jsonl").open("a") as file:
        file.write('{"what": "ask", "region": "us-e')
    folder.add("answer", ids=["i-1"])
    assert [each["what"] for each in folder.notes()] == ["begun", "answer"]


def test_launch_journal_removed_concurrently_counts_as_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, really = LaunchJournal("p", "t"), shutil.rmtree
    folder.add("begun")

    def beside(path: Path) -> None:
        really(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(shutil, "rmtree", beside)
    folder.remove()
    assert not folder.path.exists()


class Slow:
    """EC2 with a group that some of its servers do not know yet, created by a call whose answer was lost."""

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


async def test_security_group_is_configured_once_ec2_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ec2_errors, "POLL_PAUSES", (0.0, 0.0))
    calls: Any = Slow()
    place, folder = Zone("r", "r-a", "subnet-1", "vpc-1"), LaunchJournal("p", "t")
    made = await security_groups_and_account_checks.create_security_resources(
        calls, place, folder, KeyPair("", "ssh-ed25519 A"), "10.0.0.1/32", None
    )
    assert made == SecurityResources("skyward-p-t", "sg-1")
    assert calls.done == [
        "import_key_pair", "authorize_security_group_ingress", "authorize_security_group_egress",
    ]  # fmt: skip


def test_unparsable_aws_reply_is_retryable_and_may_have_succeeded() -> None:
    error = ResponseParserError("Unable to parse response: b'<html>sign in\n</html>'")
    assert ec2_errors.is_retryable(error) and ec2_errors.may_have_succeeded(error)
    text = ec2_errors.translate_error(error, "ec2", "us-east-1", "run_instances")
    assert isinstance(text, Unreachable) and "<html>" not in str(text) and "RunInstances" in str(text)


class Nowhere:
    """Answers of an account without instances."""

    looks = 0

    async def call_all(self, *_: Any, **__: Any) -> list[Any]:
        self.looks += 1
        return []


async def test_machine_search_ends_although_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances_and_leftovers, "VISIBILITY_TIMEOUT", 0.2)
    monkeypatch.setattr(instances_and_leftovers, "POLL_PAUSE", 0.01)
    ask = {"what": "ask", "client_token": "c", "count": 1, "region": "r", "pid": os.getpid()}
    folder: Any = SimpleNamespace(token="t", notes=lambda: [ask | {"at": time.time() + 3600}])
    calls: Any = Nowhere()
    assert await asyncio.wait_for(instances_and_leftovers.find_machines(calls, folder, ["r"]), 10) == []
    assert calls.looks > 1, "it may show itself yet"


@pytest.mark.parametrize(("age", "unanswered", "waits"), [(200, None, True), (400, None, False), (400, 200, True)])
async def test_search_waits_5_minutes_after_the_last_attempt(
    monkeypatch: pytest.MonkeyPatch, age: float, unanswered: float | None, waits: bool
) -> None:
    monkeypatch.setattr(instances_and_leftovers, "FIND_TIMEOUT", 0.0)
    monkeypatch.setattr(instances_and_leftovers, "POLL_PAUSE", 0.01)
    now = time.time()
    ask = {"what": "ask", "client_token": "c", "count": 1, "region": "r", "pid": os.getpid(), "at": now - age}
    last = [] if unanswered is None else [{"what": "unanswered", "client_token": "c", "at": now - unanswered}]
    folder: Any = SimpleNamespace(token=f"t{age}{unanswered}", notes=lambda: [dict(ask), *last])
    calls: Any = Nowhere()
    search = instances_and_leftovers.find_machines(calls, folder, ["r"])
    if waits:
        with pytest.raises(IncompleteSearch, match="has not confirmed the request for 1 machines"):
            await search
    else:
        assert await search == []


async def test_incomplete_search_names_the_machines_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances_and_leftovers, "FIND_TIMEOUT", 0.0)
    monkeypatch.setattr(instances_and_leftovers, "POLL_PAUSE", 0.01)
    ask: dict[str, Any] = {
        "what": "ask", "count": 2, "region": "r", "pid": os.getpid(), "at": time.time(), "zone": "z", "type": "t",
        "market": "spot", "hourly": 1.0, "user": "u", "deadman": 1, "account": "a",
    }  # fmt: skip
    answer = {"what": "answer", "client_token": "b", "ids": ["i-answered"]}
    notes = [ask | {"client_token": "b"}, answer, ask | {"client_token": "c"}]
    folder: Any = SimpleNamespace(pool="p", token="known", notes=lambda: [dict(each) for each in notes])

    class Shows(Nowhere):
        async def call_all(self, *_: Any, **__: Any) -> list[Any]:
            return [{"Instances": [{"InstanceId": "i-tagged", "State": {"Name": "running"}, "ClientToken": "b"}]}]

    calls: Any = Shows()
    with pytest.raises(IncompleteSearch) as raised:
        await instances_and_leftovers.find_machines(calls, folder, ["r"])
    assert {each.id for each in raised.value.machines} == {"i-answered", "i-tagged"}


# Sessions with AWS.


def test_error_names_unknown_aws_profile() -> None:
    with pytest.raises(UsageError, match="nobodys"):
        AwsCalls(AwsAccount(profile="nobodys")).default_region()


# Calls whose answer is lost.


LOST = ReadTimeoutError(endpoint_url="http://ec2")
NOT_SENT = EndpointConnectionError(endpoint_url="http://ec2")


def client_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "m"}}, "RunInstances")


class Scripted(AwsCalls):
    """Fake that returns given answers one after the other, and repeats the last one."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(AwsAccount())
        self.answers = list(errors)

    def _call(self, *_: Any) -> dict[str, Any]:
        raise self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto_calls, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(boto_calls, "LONGEST_PAUSE", 0.001)
    monkeypatch.setattr(boto_calls, "THROTTLE_TIMEOUT", 0.05)


async def run_instances(*errors: Exception) -> None:
    await Scripted(*errors).call("ec2", "r", "run_instances", answered=lambda _: None)


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "ExpiredToken", "AuthFailure", "UnauthorizedOperation"])
async def test_refused_retry_after_lost_reply_may_have_succeeded(code: str) -> None:
    with pytest.raises(Unreachable, match="an earlier attempt got no answer and may have succeeded"):
        await run_instances(LOST, client_error(code))


async def test_refusal_without_unknown_earlier_attempt_is_final() -> None:
    with pytest.raises(CapacityRefused):  # the same token would have brought what the first try made
        await run_instances(LOST, client_error("InsufficientInstanceCapacity"))
    with pytest.raises(CredentialsRefused):
        await run_instances(NOT_SENT, client_error("ExpiredToken"))
    with pytest.raises(CallFailed, match="after minutes"):
        await run_instances(client_error("RequestLimitExceeded"))
    with pytest.raises(CredentialsRefused):  # of what only asks, nobody needs to know
        await Scripted(LOST, client_error("ExpiredToken")).call("ec2", "r", "describe_instances")


# Errors: their length, and the advice for each cause.


@pytest.fixture
def write_aws_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write an AWS configuration that replaces the user's."""

    def write(text: str) -> None:
        (tmp_path / "config").write_text(text)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)

    return write


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        ("credential_process = sh -c 'echo no token >&2; exit 1'", CredentialsRefused, r"not be loaded .*no token"),
        ("role_arn = arn:aws:iam::1:role/r\nsource_profile = nobodys", UsageError, "cannot be used: .*nobodys"),
        (
            "sso_start_url = https://x.aws/start\nsso_region = us-east-1\nsso_account_id = 1\nsso_role_name = r",
            CredentialsRefused, r"no AWS sign-in for this profile yet .*: run `aws sso login --profile mine`",
        ),
    ],
    ids=["program fails", "source profile is missing", "never signed in"],
)  # fmt: skip
async def test_credentials_that_cannot_be_loaded_name_cause_and_remedy(
    write_aws_config: Any, config: str, kind: type[Exception], message: str
) -> None:
    write_aws_config(f"[profile mine]\n{config}\n")
    calls = AwsCalls(AwsAccount(profile="mine", endpoint="http://127.0.0.1:9"))
    with pytest.raises(kind, match=message):
        await calls.call("ec2", "us-east-1", "describe_instances")
    if "sso" not in config:  # of a sign-in nothing is read before the first call
        with pytest.raises(kind, match=message):
            calls.ec2_endpoint("us-east-1")


def test_configuration_that_cannot_be_parsed_is_a_usage_error(write_aws_config: Any) -> None:
    write_aws_config("[profile mine\nregion = x\n")
    with pytest.raises(UsageError, match=r"the AWS configuration cannot be used: .*Correct the profile"):
        AwsCalls(AwsAccount()).default_region()


def test_region_of_the_variable_counts_before_that_of_the_profile(
    write_aws_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_aws_config("[default]\nregion = eu-north-1\n")
    assert AwsCalls(AwsAccount()).default_region() == "eu-north-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert AwsCalls(AwsAccount()).default_region() == "eu-west-3"


CODES = sorted(
    ec2_errors.THROTTLED_CODES | ec2_errors.TRANSIENT_CODES | ec2_errors.EXPIRED_CODES | ec2_errors.DENIED_CODES
    | ec2_errors.REJECTED_CREDENTIALS_CODES | ec2_errors.UNAVAILABLE_CODES | ec2_errors.REGION_LIMIT_CODES
    | {ec2_errors.NO_SPOT_ROLE, "InvalidAMIID.NotFound", "InvalidInstanceType", "InvalidParameterValue", "MissingInput"}
)  # fmt: skip


def test_no_error_of_ec2_is_longer_than_300_characters() -> None:
    words = "VPC marketplace https://aws.amazon.com/marketplace/pp?sku=0123456789abcdef01234 " + "long " * 1000
    for code in CODES:
        error = ClientError({"Error": {"Code": code, "Message": words}}, "AuthorizeSecurityGroupIngress")
        text = str(
            ec2_errors.translate_error(error, "service-quotas", "ap-southeast-4", "authorize_security_group_ingress")
        )
        assert len(text) <= 300, (code, len(text))
    others = [Exception("x" * 5000), EndpointConnectionError(endpoint_url="http://" + "x" * 5000)]
    for each in others:
        assert len(str(ec2_errors.translate_error(each, "ec2", "us-east-1", "describe_instances"))) <= 300


async def test_whole_error_of_ec2_is_in_the_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    words = " ".join(f"part{number}" for number in range(100))
    error = ClientError({"Error": {"Code": "InvalidParameterValue", "Message": words}}, "RunInstances")
    with caplog.at_level(logging.INFO, "skyward.provider"), pytest.raises(CallFailed) as raised:
        await run_instances(error)
    assert words not in str(raised.value)
    (record,) = caplog.records
    assert record.getMessage().startswith("ec2 r run_instances: ClientError: ") and words in record.getMessage()


def test_rejections_name_what_to_do() -> None:
    def rejection(code: str, message: str = "m", region: str = "us-east-1") -> str:
        error = ClientError({"Error": {"Code": code, "Message": message}}, "RunInstances")
        return str(ec2_errors.translate_error(error, "ec2", region, "run_instances", "mine"))

    assert "`aws sso login --profile mine`" in rejection("ExpiredToken") and "clock" not in rejection("ExpiredToken")
    assert "Check this machine's clock" in rejection("RequestExpired")
    terms = "To use this AWS Marketplace product accept terms. Visit https://aws.amazon.com/marketplace/pp?sku=1"
    assert rejection("OptInRequired", terms).endswith("accept its terms at https://aws.amazon.com/marketplace/pp?sku=1")
    assert "does not accept the AWS credentials" in rejection("OptInRequired")
    assert "enable-region" not in rejection("AuthFailure")
    for region in ("af-south-1", "eu-central-2", "ap-southeast-4", "me-south-1", "il-central-1"):
        assert f"aws account enable-region --region-name {region}" in rejection("AuthFailure", region=region)


# Machine images by instance family, and login names.


def typed(name: str, *, nvidia: bool = False) -> InstanceType:
    return replace(KIND, name=name, nvidia=nvidia)


class Images:
    """Images that AWS publishes."""

    def __init__(self, **described: str) -> None:
        self.described = described
        self.names: list[str] = []

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        if service == "ssm":
            self.names.append(params["Name"])
            return {"Parameter": {"Value": "ami-1"}}
        return {"Images": [{"RootDeviceName": "/dev/sda1", "BlockDeviceMappings": [], **self.described}]}


@pytest.mark.parametrize(
    ("name", "nvidia", "parameter"),
    [
        ("m7i.large", False, "/aws/service/canonical/ubuntu/"), ("g5.xlarge", True, "/aws/service/deeplearning/"),
        ("trn1.2xlarge", False, "/aws/service/neuron/dlami/base/"), ("inf2.xlarge", False, "/aws/service/neuron/"),
    ],
)  # fmt: skip
async def test_machine_image_has_the_driver_of_the_instance_family(name: str, nvidia: bool, parameter: str) -> None:
    calls: Any = Images()
    await find_image(calls, "here", typed(name, nvidia=nvidia), None, None)
    assert calls.names[0].startswith(parameter)


@pytest.mark.parametrize(
    "name", ["p3.2xlarge", "p3dn.24xlarge", "g3s.xlarge", "g4ad.xlarge", "inf1.xlarge", "dl1.24xlarge"]
)
async def test_instance_family_without_an_image_requires_ami(name: str) -> None:
    calls: Any = Images()
    with pytest.raises(UsageError, match=rf"no current machine image with a driver for {name}.*pass ami="):
        await find_image(calls, "here", typed(name, nvidia=True), None, None)
    assert (await find_image(calls, "here", typed(name, nvidia=True), "ami-9", None)).ami == "ami-9"


@pytest.mark.parametrize(
    ("image", "platform", "user"),
    [
        ("RHEL-9.4.0_HVM-20240605-x86_64", "", "ec2-user"),
        ("mine", "Red Hat Enterprise Linux", "ec2-user"),
        ("suse-sles-15-sp6-v20260101-hvm-ssd-x86_64", "", "ec2-user"),
        ("mine", "SUSE Linux", "ec2-user"),
        ("Rocky-9-EC2-Base-9.4", "", "rocky"),
        ("debian-12-amd64", "", "admin"),
        ("CentOS 7 x86_64", "", "centos"),
        ("al2023-ami-2023", "", "ec2-user"),
        ("ubuntu-noble-24.04", "Linux/UNIX", "ubuntu"),
        ("mine", "Linux/UNIX", "ubuntu"),
    ],
)
async def test_login_user_follows_the_system_of_the_machine_image(image: str, platform: str, user: str) -> None:
    calls: Any = Images(Name=image, PlatformDetails=platform)
    assert (await find_image(calls, "here", KIND, "ami-1", None)).user == user
    assert (await find_image(calls, "here", KIND, "ami-1", "me")).user == "me"


async def test_machine_image_with_windows_is_refused() -> None:
    calls: Any = Images(Platform="windows")
    with pytest.raises(UsageError, match="ami-1 runs Windows"):
        await find_image(calls, "here", KIND, "ami-1", None)


class Subnets:
    """Subnets of one network; those named v6 have no IPv4 addresses."""

    async def call(self, service: str, region: str, name: str, *, SubnetIds: list[str]) -> Any:
        return {"Subnets": [self._row(each) for each in SubnetIds]}

    async def call_all(self, *_: Any, **__: Any) -> Any:
        return [self._row("v6-a"), self._row("b")]

    def _row(self, name: str) -> dict[str, Any]:
        return {
            "SubnetId": name,
            "AvailabilityZone": f"r-{name[-1]}",
            "VpcId": "v",
            "Ipv6Native": name.startswith("v6"),
        }


async def test_subnets_without_ipv4_addresses_are_skipped_or_rejected() -> None:
    calls: Any = Subnets()
    assert [each.subnet for each in await zones_and_placement.list_zones(calls, "r")] == ["b"]
    with pytest.raises(UsageError, match="subnet v6-a has IPv6 addresses only: choose a subnet with IPv4"):
        await zones_and_placement.list_zones(calls, "r", subnet="v6-a")


@pytest.mark.parametrize(
    ("region", "reason", "spot"), [("cn-north-1", "bills in CNY", False), ("us-gov-west-1", "GovCloud", True)]
)
async def test_prices_of_other_aws_partitions_are_unknown_with_a_reason(
    region: str, reason: str, spot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spot_price(*_: Any) -> dict[str, list[float]]:
        return {f"{KIND.name} here-a": [0.1, 0.1, 0.1]}

    monkeypatch.setattr(offers_and_images, "spot_prices", spot_price)
    requirements, calls = MachineRequirements(allocation="cheapest"), Calls()
    found = await offers_and_images.query_region(calls, "aws", region, requirements, BilledExtras(100, True))  # type: ignore[arg-type]
    assert {each.market: each.hourly for each in found.offers} == {"on-demand": None} | ({"spot": 0.1} if spot else {})
    assert any(region in note and reason in note for note in found.notes)


class Doors(Calls):
    """EC2's security group of one pool."""

    def __init__(self, *networks: str) -> None:
        self.networks = list(networks)
        self.asked = 0

    async def call_all(self, *_: Any, **__: Any) -> list[Any]:
        self.asked += 1
        return [{"GroupId": "sg-1"}]

    async def call(self, service: str, region: str, name: str, **params: Any) -> Any:
        (rule,) = params["IpPermissions"]
        (network,) = (each["CidrIp"] for each in rule["IpRanges"])
        (self.networks.append if name.startswith("authorize") else self.networks.remove)(network)
        return {}


async def test_ssh_is_allowed_from_the_client_s_new_address_instead_of_the_old_one() -> None:
    folder, calls, heard = LaunchJournal("p", "t"), Doors("10.0.0.1/32"), list[str]()
    folder.add("belongings", region="r", vpc="v", group="g", key="g", network="10.0.0.1/32")
    here = ["10.0.0.1/32"]

    async def find() -> str:
        return here[0]

    admit = partial(security_groups_and_account_checks.admit_client, calls, folder, find)  # type: ignore[arg-type]
    assert await admit() == 0.0 and calls.asked == 0, "nothing has changed"
    here[0] = "10.9.9.9/32"
    begun = time.time()
    with progress_listener(heard.append):
        assert all(at >= begun for at in await asyncio.gather(*(admit() for _ in range(8))))
    assert calls.networks == ["10.9.9.9/32"] and calls.asked == 1, "once for all machines"
    assert heard == [
        "this machine's address has changed: SSH is now allowed from 10.9.9.9/32; 10.0.0.1/32 is no longer allowed"
    ]


# Machines that EC2 ends while they start, and limits of an account.


@pytest.mark.parametrize(
    ("kind", "market", "code"),
    [
        ("g5.xlarge", "on-demand", "L-DB2E81BA"), ("g5.xlarge", "spot", "L-3819A6DF"),
        ("p5en.48xlarge", "spot", "L-C4BD4855"), ("p4d.24xlarge", "spot", "L-7212CCBC"),
        ("p5.48xlarge", "on-demand", "L-417A185B"), ("im4gn.large", "spot", "L-34B43A08"),
        ("inf2.xlarge", "on-demand", "L-1945791B"), ("i4i.large", "on-demand", "L-1216C47A"),
        ("hpc7a.96xlarge", "on-demand", ""), ("dl1.24xlarge", "on-demand", ""),
        ("trn1.2xlarge", "on-demand", "L-2C3B7624"),
    ],
)  # fmt: skip
def test_quota_is_that_of_the_instance_family_and_market(kind: str, market: str, code: str) -> None:
    assert security_groups_and_account_checks.quota_code(kind, market) == code


def test_cost_of_a_rented_machine_counts_at_least_one_minute() -> None:
    row: Any = SimpleNamespace(created_at=0.0)
    machine = to_machine({"InstanceId": "i-1", "LaunchTime": datetime.fromtimestamp(1000.0, UTC)}, "r", {"hourly": 6.0})
    (bill,) = make_bills(row, [machine], {"i-1": 1010.0}, None)
    assert bill.dollars == pytest.approx(0.1)
    (bill,) = make_bills(row, [machine], {"i-1": 1000.0 + 600}, None)
    assert bill.dollars == pytest.approx(1.0)


# The policy in the documentation.


DOCS = Path(__file__).parents[2] / "docs" / "where" / "aws.md"


def test_documented_iam_policy_matches_the_calls_of_the_code() -> None:
    from tests.aws.policy import policy

    (shown,) = re.findall(r"^```json\n(.*?)^```$", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    needed = policy()
    assert json.loads(shown) == needed, "python -m tests.aws.policy prints it"
    allowed = {action for each in needed["Statement"] for action in each["Action"]}
    assert {"ec2:RunInstances", "ec2:TerminateInstances", "ec2:DescribeInstances"} <= allowed
    for each in needed["Statement"]:
        ends = [action for action in each["Action"] if ":Delete" in action or ":Terminate" in action]
        assert not ends or "aws:ResourceTag/skyward:pool" in each["Condition"]["StringLike"]
