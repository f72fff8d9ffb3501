"""Offers of EC2 with prices from the account, the cache, or this release."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.launch.launch_option_declarations import LaunchRequest
from skyward_core.client.offers_and_block_purchases import list_offers
from skyward_core.model.accelerators import resolve
from skyward_core.model.machines_checks_and_gpu_use import Check
from skyward_core.model.offers_and_rental_plans import MachineRequirements, Offer, OfferList, matching_offers
from skyward_core.protocol.node_paths import STATE_FILE
from skyward_core.providers.aws import offers_and_images
from skyward_tui.cli.commands.launched_and_attached_runs import run
from skyward_tui.cli.commands.offers_capacity_costs import offers
from skyward_tui.cli.console_and_log_printer import Console
from tests.aws import Bed, prices
from tests.aws.images import DEEP

BESIDE = 100 * prices.GP3_GB_MONTH / 730 + prices.PUBLIC_ADDRESS
T4 = MachineRequirements(accelerator=resolve("T4"))


@pytest.fixture
def bed(bed_of_client: Bed, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setattr(offers_and_images, "PRICING_TIMEOUT", 600.0)  # moto answers late on a busy machine
    return bed_of_client


def look(wish: MachineRequirements, **provider: Any) -> OfferList:
    return asyncio.run(sky.AWS(**provider).offers(wish))


def test_offers_have_the_prices_that_are_billed(bed: Bed) -> None:
    found = look(T4)
    first, *_ = matching_offers(found.offers, T4)
    assert (str(first), found.notes) == ("g4dn.xlarge in us-east-1a", [])
    assert (first.accelerator, first.count, first.memory_each_gb, first.vcpus, first.memory_gb) == ("T4", 1, 16, 4, 16)
    assert first.billed_hourly == pytest.approx(prices.on_demand("g4dn.xlarge", "us-east-1") + BESIDE)
    assert first.beside_hourly == pytest.approx(BESIDE) and not first.shipped
    assert time.time() - first.priced_at < 60
    small = look(T4, disk_gb=50, public=False).offers[0]
    assert small.beside_hourly == pytest.approx(50 * prices.GP3_GB_MONTH / 730)


def test_spot_offer_has_the_price_and_recent_range_of_its_zone(bed: Bed) -> None:
    wish = MachineRequirements(accelerator=resolve("T4"), instance_type="g4dn.xlarge", allocation="spot")
    for each in matching_offers(look(wish).offers, wish):
        now = prices.spot("g4dn.xlarge", "us-east-1", each.zone)
        assert each.market == "spot" and each.hourly == pytest.approx(now)
        assert each.lately == pytest.approx((now * 0.95, now * 1.1))


def test_offers_of_all_named_regions_are_listed(bed: Bed) -> None:
    wish = MachineRequirements(
        accelerator=resolve("T4"), regions=("us-west-1", "us-east-2"), instance_type="g4dn.xlarge"
    )
    order = matching_offers(look(wish).offers, wish)
    assert list(dict.fromkeys(each.region for each in order)) == ["us-east-2", "us-west-1"], "the cheaper one first"


def test_offers_of_the_same_day_are_cached(bed: Bed, tmp_path: Path) -> None:
    before = look(T4)
    asked = len(bed.calls())
    assert asked <= 9, [call["action"] for call in bed.calls()]
    assert look(T4) == before and len(bed.calls()) == asked
    file = tmp_path / offers_and_images.CACHE_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    pieces = json.loads(file.read_text())
    file.write_text(json.dumps({key: each | {"at": each["at"] - 90_000} for key, each in pieces.items()}))
    assert matching_offers(look(T4).offers, T4)[0].priced_at > time.time() - 60 and len(bed.calls()) == 2 * asked


@pytest.mark.proof("0.2 s of a processor", after=1)
@pytest.mark.parametrize("broken", [b"", b"[1]", b'{"x": 1}', b'{"x": {"at": "soon"}}', b"\xff\x00"])
def test_damaged_offer_cache_is_rebuilt(bed: Bed, tmp_path: Path, broken: bytes) -> None:
    file = tmp_path / offers_and_images.CACHE_FILE
    file.write_bytes(broken)
    assert look(T4).notes == []
    assert all("told" in each for each in json.loads(file.read_text()).values())


def test_concurrent_writers_leave_a_valid_offer_cache(bed: Bed, tmp_path: Path) -> None:
    piece = {"at": time.time(), "told": ["x" * 1000] * 50}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: offers_and_images._add_to_cache(f"a {number}", piece), range(40)))
    report = json.loads((tmp_path / offers_and_images.CACHE_FILE).read_text())
    assert report and all(each == piece for each in report.values())
    assert {each.name for each in tmp_path.iterdir()} == {offers_and_images.CACHE_FILE, STATE_FILE}


def test_offers_without_price_permission_use_shipped_prices_with_a_note(bed: Bed) -> None:
    bed.deny("GetProducts")
    found = look(T4)
    first = matching_offers(found.offers, T4)[0]
    assert first.shipped and first.priced_at == offers_and_images.shipped_at() and first.zone == "us-east-1a"
    (note,) = found.notes
    assert f"are from {offers_and_images.shipped_date()} (price list of this release): " in note
    assert "GetProducts" in note
    bed.expire_credentials()
    elsewhere = look(
        MachineRequirements(accelerator=resolve("T4"), regions=("us-east-1", "eu-west-1")), region="us-east-1"
    )
    assert any("credentials have expired" in note for note in elsewhere.notes)
    assert {each.region for each in elsewhere.offers} == {"us-east-1"}
    assert any("prices in eu-west-1 are unknown, also in the price list" in note for note in elsewhere.notes)


def test_offers_without_credentials_use_shipped_prices(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    wish = MachineRequirements(accelerator=resolve("H100:8"))
    with pytest.raises(sky.UsageError, match=r"is on-demand.*spot prices are unknown: no AWS credentials were found"):
        sky.Compute(provider=sky.AWS(region="us-east-1"), accelerator="H100:8", allocation="spot").plan()
    found = list_offers(wish)
    (only,) = matching_offers(found.offers, wish)
    assert (only.instance_type, only.hourly, only.shipped) == ("p5.48xlarge", 55.04, True)
    assert found.notes[0].startswith("no region is set") and "no AWS credentials were found" in found.notes[1]
    with pytest.raises(
        sky.UsageError, match=r"^no offer in us-west-2 is known; prices in us-west-2 are unknown, also in"
    ):
        sky.Compute(provider=sky.AWS(region="us-west-2"), accelerator="H100:8").plan()
    spot = list_offers(MachineRequirements(accelerator=resolve("H100:8"), regions=("us-west-2",), allocation="spot"))
    assert ["no AWS credentials" in note for note in spot.notes] == [True, False], spot.notes


def test_shipped_price_list_is_valid() -> None:
    assert offers_and_images.shipped_regions() == ["us-east-1"]
    listed = offers_and_images.shipped_prices("us-east-1")
    for kind in offers_and_images.shipped_instance_types():
        assert 0 < listed[kind.name] < 200 and kind.vcpus > 0 and kind.memory_gb > 0
        assert bool(kind.accelerator) == bool(kind.count)
    assert offers_and_images.shipped_prices("eu-west-1") == {} == offers_and_images.shipped_extra_prices("eu-west-1")


def show(capsys: pytest.CaptureFixture[str], as_json: bool = False, **asked: Any) -> tuple[int, str, str]:
    given: dict[str, Any] = {
        "accelerator": None, "max_hourly": None, "spot": False, "regions": (), "zones": (), "efa": False, "vcpus": 0,
        "memory": 0.0, "architecture": None, "block": None, "nodes": None,
    }  # fmt: skip
    status = offers.function(Console(as_json), **given | asked) or 0
    return status, *capsys.readouterr()


def test_offers_command_prints_a_table(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = show(capsys, accelerator="T4:4")
    head, first, *_ = out.splitlines()
    assert (status, err) == (0, "")
    assert head.split()[:4] == ["provider", "type", "accelerator", "vCPUs"]
    cells = first.split()
    assert cells[:5] == ["aws", "g4dn.12xlarge", "4", "×", "T4"] and "us-east-1b" in cells, "the cheapest spot first"
    assert f"${prices.on_demand('g4dn.12xlarge', 'us-east-1') + BESIDE:.2f}/h" in cells and cells[-1] == "now"
    least, most = (float(each.lstrip("$")) for each in cells[-2].split("–"))
    assert least <= float(cells[-3].strip("$/h")) <= most
    status, out, _ = show(capsys, accelerator=None, vcpus=2, architecture="arm64", max_hourly=0.2)
    assert len(out.splitlines()) > 1
    for line in out.splitlines()[1:]:  # of a small machine the disk is much of its price
        *_, spot, lately, _ = line.split()
        least, most = (float(each.lstrip("$")) for each in lately.split("–"))
        assert least <= float(spot.strip("$/h")) <= most, line
    status, out, _ = show(capsys, as_json=True, accelerator="T4:4", spot=True)
    data = json.loads(out)
    _, out, _ = show(capsys, as_json=True, accelerator="T4", zones=("us-east-1b",), efa=True)
    assert {(each["zone"], each["efa"]) for each in json.loads(out)["offers"]} == {("us-east-1b", True)}
    assert {each["market"] for each in data["offers"]} == {"spot"} and data["nearest"] == []


def test_offers_command_names_the_closest_offers_if_none_matches(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = show(capsys, accelerator="T4:3")
    assert status == 1 and out.startswith("no matching machines; closest offers:\n  g4dn.")
    assert "has 1 T4" in out and "has 4 T4" in out
    status, out, _ = show(capsys, accelerator="T4:4", max_hourly=0.5)
    assert status == 1 and "g4dn.12xlarge in us-east-1b (spot) costs $1.2" in out


def test_plan_without_requirements_uses_the_default_instance_type(bed: Bed) -> None:
    plan = sky.Compute(provider=sky.AWS(region="us-east-1"), name="q").plan()
    assert {each.instance_type for each in plan.attempts} == {"m7i.large"}


def test_accelerator_missing_in_the_catalogue_is_listed_by_its_name() -> None:
    kind = next(each for each in offers_and_images.shipped_instance_types() if each.accelerator == "Radeon Pro V520")
    assert kind.accelerator_name
    assert Offer(provider="p", instance_type="x", region="r", accelerator=kind.accelerator_name, count=1)


ASKING = ("Describe", "Get", "List")


def test_plan_creates_nothing_and_matches_the_start(bed: Bed) -> None:
    bed.no_capacity(type="g4dn.xlarge")
    compute = sky.Compute(
        provider=sky.AWS(region="us-east-1", ssh_from="10.0.0.1/32", zones=["us-east-1c", "us-east-1a"]),
        accelerator="T4", nodes=2, name="q", allocation="cheapest", max_hourly_cost=0.6,
    )  # fmt: skip
    plan = compute.plan()
    assert all(call["action"].startswith(ASKING) for call in bed.calls()), [c["action"] for c in bed.calls()]
    assert bed.instances() == []
    prices_shown = [each.billed_hourly or 0.0 for each in plan.attempts]
    assert prices_shown == sorted(prices_shown) and prices_shown[-1] <= 0.6
    assert plan.hourly == pytest.approx(2 * prices_shown[0]) and plan.notes == []
    first, *_, total = str(plan).splitlines()
    assert first.startswith("1. g4dn.xlarge in us-east-1a (spot), $0.2") and total.endswith("first attempt succeeds")
    asyncio.run(compute.spec.provider.create(compute.spec, "0123456789abcdef"))
    tried = [
        f"{each['params']['InstanceType']} in {each['params']['Placement.AvailabilityZone']}"
        + (" (spot)" if "InstanceMarketOptions.MarketType" in each["params"] else "")
        for each in bed.calls("RunInstances")
    ]
    tried = list(dict.fromkeys(tried))  # each in a placement group first, and without it then
    assert tried == [str(each) for each in plan.attempts][: len(tried)] and len(tried) > 2
    (planned,), sent = plan.requests, bed.calls("RunInstances")[0]["params"]
    (card,), (disk,) = planned["NetworkInterfaces"], planned["BlockDeviceMappings"]
    for name in ("InstanceType", "ImageId", "MinCount", "MaxCount", "InstanceInitiatedShutdownBehavior"):
        assert str(planned[name]) == sent[name]
    assert planned["Placement"]["AvailabilityZone"] == sent["Placement.AvailabilityZone"]
    assert card["SubnetId"] == sent["NetworkInterface.1.SubnetId"]
    assert str(disk["Ebs"]["VolumeSize"]) == sent["BlockDeviceMapping.1.Ebs.VolumeSize"]
    assert planned["InstanceMarketOptions"]["MarketType"] == "spot"
    assert planned["ClientToken"] == planned["KeyName"] == "(created by the launch)"


def test_dry_run_lists_all_attempts_and_creates_nothing(
    bed: Bed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import skyward_core as sky\n\n@sky.function\ndef train():\n    open('ran', 'w')\n")
    request = LaunchRequest(
        script=str(script), provider="aws", settings={"region": "us-east-1"}, accelerator="T4:4", nodes=2
    )
    assert run(request, Console(True), dry_run=True) == 0
    out = json.loads(capsys.readouterr().out)
    assert {each["instance_type"] for each in out["attempts"]} == {"g4dn.12xlarge"}
    assert out["hourly"] == pytest.approx(2 * (prices.on_demand("g4dn.12xlarge", "us-east-1") + BESIDE))
    assert ["cost", "$7.86/h"] in out["plan"] and out["creates"][-1] == "a key pair, generated locally"
    for keep, total in ((False, f", ${2 * out['hourly']:.2f} at the time limit of 2h00"), (True, "")):
        assert run(replace(request, timeout=7200, keep=keep), Console(True), dry_run=True) == 0
        assert ["cost", f"$7.86/h{total}"] in json.loads(capsys.readouterr().out)["plan"]
    assert all(call["action"].startswith(ASKING) for call in bed.calls())
    assert [each["InstanceType"] for each in out["requests"]] == ["g4dn.12xlarge"]
    (sent,) = (text for name, text in out["plan"] if name == "sends")
    assert sent.startswith("action RunInstances, region us-east-1, ") and "MinCount 2, MaxCount 2" in sent
    assert not (tmp_path / "ran").exists()
    assert [each.name for each in (tmp_path / "aws").iterdir()] == ["ledger-id"], "and no keys"


def test_capacity_blocks_are_listed_and_not_bought(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = show(capsys, as_json=True, accelerator="H100:8", block=24, nodes=2)
    first, second = json.loads(out)["blocks"]
    assert (status, first["instance_type"], first["count"], first["hours"]) == (0, "p5.48xlarge", 2, 24)
    assert first["starts_at"] < second["starts_at"] and first["id"].startswith("cb-")
    assert first["upfront"] == pytest.approx(48 * first["hourly"]) and first["hourly"] < 55.04
    status, out, _ = show(capsys, accelerator="H100:8", block=48)
    assert status == 0 and "p5.48xlarge" in out and "48" in out.splitlines()[1].split()
    assert show(capsys, accelerator="T4", block=24)[:2] == (1, "no matching capacity blocks for sale now\n")
    assert show(capsys, accelerator="H100:8", block=24, max_hourly=10.0)[0] == 1
    _, out, _ = show(capsys, as_json=True, accelerator="H100:8", block=24, zones=("us-east-1a",))
    assert [each["zone"] for each in json.loads(out)["blocks"]] == ["us-east-1a"]
    with pytest.raises(sky.UsageError, match="--nodes needs --block"):
        show(capsys, nodes=2)
    with pytest.raises(sky.UsageError, match="--spot cannot be combined with --block"):
        show(capsys, block=24, spot=True)
    with pytest.raises(sky.UsageError, match=r"sold in whole days: request 24, 48, \.\.\. hours, not 30"):
        show(capsys, accelerator="H100:8", block=30)
    assert bed.calls("PurchaseCapacityBlock") == []


def test_plan_refuses_accelerators_without_an_image_and_states_why(bed: Bed) -> None:
    def plan(accelerator: str, **more: Any) -> Any:
        provider = sky.AWS(**{"region": "us-east-1", "ssh_from": "10.0.0.1/32"} | more)
        return sky.Compute(provider=provider, accelerator=accelerator, name="q").plan()

    with pytest.raises(sky.UsageError, match=r"no current machine image .* for p3dn.24xlarge \(NVIDIA V100\)"):
        plan("V100:8")
    assert plan("V100:8", ami=DEEP.ami).attempts[0].instance_type == "p3dn.24xlarge"


# What a check says of an account, before anything is made.


async def lines(**wishes: object) -> dict[str, Check]:
    provider = sky.AWS(**{"region": "us-east-1"} | wishes)  # type: ignore[arg-type]
    return {each.subject: each for each in await provider.check()}


async def test_aws_check_names_account_zones_and_quotas_and_creates_nothing(bed: Bed) -> None:
    bed.quota("L-DB2E81BA", 0)
    bed.quota("L-3819A6DF", 64)
    checks = await lines()
    assert [each.state for each in checks.values()] == ["ok"] * 4
    assert "123456789012" in checks["AWS credentials"].detail
    assert "us-east-1a" in checks["us-east-1"].detail
    assert "G and VT 0 on demand, 64 spot" in checks["quotas in us-east-1"].detail
    made = {"RunInstances", "ImportKeyPair", "CreateSecurityGroup", "CreatePlacementGroup"}
    tried = [each for each in bed.calls() if each["action"] in made]
    assert len(tried) == 4 and bed.instances() == [], "dry runs make nothing"


async def test_aws_check_names_missing_permissions(bed: Bed) -> None:
    bed.deny("RunInstances")
    bed.deny("ImportKeyPair")
    bed.deny("ListServiceQuotas")
    checks = await lines()
    assert checks["permissions in us-east-1"].state == "fail"
    assert "missing permissions: ImportKeyPair, RunInstances." in checks["permissions in us-east-1"].detail
    assert checks["quotas in us-east-1"].state == "warn" and "ListServiceQuotas" in checks["quotas in us-east-1"].detail


async def test_aws_check_warns_about_an_account_without_gpu_quota(bed: Bed) -> None:
    for code in ("L-DB2E81BA", "L-3819A6DF", "L-417A185B", "L-7212CCBC", "L-C4BD4855"):
        bed.quota(code, 0)
    quotas = (await lines())["quotas in us-east-1"]
    assert quotas.state == "warn" and quotas.detail.endswith("none of G and VT, P")


async def test_aws_check_fails_without_default_vpc_or_valid_credentials(bed: Bed) -> None:
    bed.no_default_vpc("us-east-1")
    checks = await lines()
    assert checks["us-east-1"].state == "fail" and "no default VPC" in checks["us-east-1"].detail
    bed.expire_credentials()
    (message,) = (await lines()).values()
    assert message.state == "fail" and "expired" in message.detail
