"""Accelerator catalogue, its factories and texts, the stub file for editors, and the choice of free GPUs of hosts."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core import accelerators
from skyward_core.model.accelerators import Accelerator
from skyward_core.model.accelerators.catalog import key
from skyward_core.model.errors import NoCapacity, UsageError
from skyward_core.model.machines_checks_and_gpu_use import GpuProcess, GpuUse
from skyward_core.model.specs import PoolSpec, Worker
from skyward_core.node import gpu_locks_and_usage
from skyward_core.providers.pool_spec_and_provider_choice import make_pool_spec
from skyward_core.providers.ssh.free_gpu_choice import HostGpuUsage, choose_hosts, describe_choice, free_gpus
from skyward_core.providers.ssh.provider import SSH
from tests.accelerator_stubs import stubs

ENTRIES = accelerators.all()
VARIANTS = [(entry, variant) for entry in ENTRIES for variant in entry.variants]


class TestCatalogue:
    def test_catalogue_names_and_aliases_are_unique_identifiers(self) -> None:
        keys = [key(n) for e in ENTRIES for n in (e.name, *e.aliases)]
        assert len(keys) == len(set(keys))
        assert all(e.identifier.isidentifier() for e in ENTRIES)

    def test_every_catalogue_entry_names_its_sources(self) -> None:
        for entry in ENTRIES:
            assert entry.sources, entry
            assert all(re.match(r"(NVIDIA|AMD|Google|AWS|Intel)\b.{10}", s) for s in entry.sources), entry

    def test_catalogue_variants_are_sorted_by_memory(self) -> None:
        for entry in ENTRIES:
            sizes = [variant.memory_gb for variant in entry.variants]
            assert sizes and sizes == sorted(set(sizes)), entry

    def test_only_nvidia_entries_have_cuda_versions(self) -> None:
        for entry in ENTRIES:
            has_cuda = entry.capability is not None
            assert has_cuda == (entry.maker == "NVIDIA") == (entry.cuda is not None), entry
            if entry.cuda and entry.cuda.max:
                assert version(entry.cuda.min) < version(entry.cuda.max), entry

    def test_mig_profiles_fit_into_the_gpu(self) -> None:
        for entry, variant in VARIANTS:
            for profile, count in variant.mig.items():
                found = re.fullmatch(r"(\d)g\.(\d+)gb", profile)
                assert found, entry
                slices, memory = int(found[1]), int(found[2])
                # A profile's memory is rounded up, so that all of them may name a little more than there is.
                assert memory <= variant.memory_gb, entry
                assert count * slices <= 7, entry
                assert count * memory <= variant.memory_gb * 1.1, entry
            if variant.mig:
                counts = list(variant.mig.values())
                assert counts == sorted(counts, reverse=True) and counts[-1] == 1, entry

    def test_gpus_before_capability_8_have_no_bf16_throughput(self) -> None:
        old = [v for e, v in VARIANTS if e.capability and version(e.capability) < (8, 0)]
        assert old
        assert all(variant.bf16_tflops is None for variant in old)


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


class TestParse:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("A100", Accelerator("A100")),
            ("A100:8", Accelerator("A100", 8)),
            ("a100 : 8", Accelerator("A100", 8)),
            ("A100-80GB:4", Accelerator("A100", 4, 80)),
            ("A100-80GB/3g.40gb:2", Accelerator("A100", 2, 80, "3g.40gb")),
            ("rtx 4090:2", Accelerator("RTX-4090", 2)),
            ("tpu v5e:8", Accelerator("TPU-v5e", 8)),
            ("Trillium", Accelerator("TPU-v6e")),
            # As NVML and EC2 name them.
            ("NVIDIA A100-SXM4-80GB", Accelerator("A100", 1, 80)),
            ("NVIDIA H100 80GB HBM3", Accelerator("H100", 1, 80)),
            ("NVIDIA RTX 6000 Ada Generation", Accelerator("RTX-6000-Ada")),
            ("Tesla T4", Accelerator("T4")),
            ("Gaudi HL-205", Accelerator("Gaudi")),
        ],
    )
    def test_parse_accepts_accelerator_text(self, text: str, expected: Accelerator) -> None:
        assert accelerators.parse(text) == expected

    def test_parse_reverses_str_for_every_catalogue_entry(self) -> None:
        for entry in ENTRIES:
            for variant in entry.variants:
                asked = Accelerator(entry.name, 8, variant.memory_gb, next(iter(variant.mig), None))
                assert accelerators.parse(str(asked)) == asked
            assert accelerators.parse(str(Accelerator(entry.name))) == Accelerator(entry.name)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("H10O", "did you mean H100"), ("RTX 4900", "RTX-4090"), ("RTX 6000", "RTX-6000-Ada"),
            ("tranium2", "Trainium2"), ("", "no accelerator"), (":8", "no accelerator"),
            ("zzzz", "in the catalogue: search"), ("A100-60GB", "40GB or 80GB, not 60GB"),
            ("A100:0", "whole number from 1"), ("A100:-1", "not a number of accelerators"), ("A100:x", "A100:8"),
            ("T4/1g.5gb", "T4 has no MIG"), ("A100-40GB/3g.40gb", "3g.20gb"), ("MI300X/1g.5gb", "no MIG"),
        ],
    )  # fmt: skip
    def test_parse_rejects_invalid_text_and_suggests_alternatives(self, text: str, message: str) -> None:
        with pytest.raises(sky.UsageError, match=re.escape(message)):
            accelerators.parse(text)


class TestAccelerator:
    def test_accelerator_has_properties_of_its_catalogue_entry(self) -> None:
        a100 = Accelerator("A100", 8, 80)
        assert (a100.maker, a100.architecture, a100.has_cuda, a100.capability) == ("NVIDIA", "Ampere", True, "8.0")
        assert (a100.bf16_tflops, a100.fp16_tflops, a100.bandwidth_gbs, a100.min_memory_gb) == (312, 312, 2039, 80)
        assert a100.cuda == accelerators.CudaRange("11.0", None)
        assert not Accelerator("MI300X").has_cuda
        assert Accelerator("K80").cuda == accelerators.CudaRange("6.5", "11.8")

    def test_accelerator_of_unknown_variant_has_the_smallest_matching_values(self) -> None:
        assert Accelerator("A100").bandwidth_gbs == 1555
        assert Accelerator("A100").min_memory_gb == 40
        assert Accelerator("A100", mig="3g.40gb").min_memory_gb == 80
        assert Accelerator("RTX-3080").bf16_tflops is None  # known for one size only
        assert Accelerator("RTX-3080", memory_gb=10).bf16_tflops == 59.5

    def test_slices_count_gpus_or_mig_instances(self) -> None:
        assert Accelerator("A100", 8).slices == 8
        assert Accelerator("A100", 2, mig="1g.10gb").slices == 8  # four per GPU of 40 GB, seven of 80 GB
        for profile, per_gpu in {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2}.items():
            assert Accelerator("A100", 1, 80, profile).slices == per_gpu

    @pytest.mark.parametrize("count", [0, -1, 1.5, True, "8"])
    def test_accelerator_rejects_invalid_count(self, count: object) -> None:
        with pytest.raises(sky.UsageError, match="whole number"):
            Accelerator("A100", count)  # type: ignore[arg-type]


class TestFactories:
    def test_factories_make_accelerators_with_count_memory_and_mig(self) -> None:
        assert sky.accelerators.H100(count=8, memory="80GB") == Accelerator("H100", 8, 80)
        assert accelerators.A100(memory=80) == accelerators.A100(memory="80") == Accelerator("A100", 1, 80)  # type: ignore[arg-type]
        assert accelerators.A100(mig="3g.40gb") == Accelerator("A100", mig="3g.40gb")
        assert accelerators.RTX_4090() == Accelerator("RTX-4090")

    def test_every_catalogue_entry_has_a_factory(self) -> None:
        for entry in ENTRIES:
            made = getattr(accelerators, entry.identifier)
            assert made() == Accelerator(entry.name)
            assert entry.identifier in dir(accelerators)
            assert accelerators.factories(entry.maker)[entry.identifier] == made == accelerators.factory(entry.name)

    def test_misspelled_factory_or_memory_gets_a_suggestion(self) -> None:
        with pytest.raises(AttributeError, match=r"did you mean .*RTX_4090"):
            accelerators.RTX_4900  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(sky.UsageError, match="80GB"):
            accelerators.A100(memory="lots")  # type: ignore[arg-type]

    def test_resolve_accepts_names_factories_and_accelerators(self) -> None:
        expected = Accelerator("A100")
        for given in ("A100", accelerators.A100, accelerators.A100(), expected):
            assert accelerators.resolve(given) == expected  # type: ignore[arg-type]
        assert accelerators.resolve(None) is None
        with pytest.raises(sky.UsageError, match="42 is not an accelerator"):
            accelerators.resolve(42)  # type: ignore[arg-type]


class TestSearch:
    def test_search_matches_every_word_of_the_query(self) -> None:
        assert accelerators.search("") == list(ENTRIES)
        assert [e.name for e in accelerators.search("h100")] == ["H100", "H100-PCIe", "H100-NVL"]
        assert {e.architecture for e in accelerators.search("hopper")} == {"Hopper"}
        assert {e.name for e in accelerators.search("ampere 80gb")} == {"A100", "A100-PCIe"}
        assert "RTX-4090" in {e.name for e in accelerators.search("rtx 409")}
        assert {e.maker for e in accelerators.search("amd")} == {"AMD"}
        assert accelerators.search("nothing like it") == []


class TestPackage:
    def test_stub_file_matches_the_catalogue(self) -> None:
        stub = Path(accelerators.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
        assert stub == stubs(), "run: python -m tests.accelerator_stubs"

    def test_documentation_page_of_accelerators_passes_doctest(self) -> None:
        page = Path(__file__).parents[2] / "docs" / "where" / "accelerators.md"
        session = "".join(
            re.findall(r"^```python\n(>>> .*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        )
        test = doctest.DocTestParser().get_doctest(session, {"sky": sky}, page.name, str(page), 0)
        assert len(test.examples) >= 8
        report: list[str] = []
        assert not doctest.DocTestRunner().run(test, out=report.append).failed, "".join(report)


# Which GPUs of hosts that people share a pool takes, and what is said of the others.

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


def gpu(number: int, *, busy: bool = False, holder: str = "", model: str = H100, **more: Any) -> GpuUse:
    process = GpuProcess(7, "bob", "python", 12_000_000_000, True)
    data = {"used": 0, "total": 80 << 30, "util": 0} | more
    return GpuUse(str(number), f"GPU-{number}", model, processes=(process,) if busy else (), holder=holder, **data)


def spec(**asked: Any) -> PoolSpec:
    return make_pool_spec("script", provider=SSH(["a", "b", "c"], gpus="free"), **asked)


def host_usages(*gpus: list[GpuUse]) -> list[HostGpuUsage]:
    return [HostGpuUsage(host, tuple(found), "", True) for host, found in zip("abc", gpus, strict=False)]


def taken_gpus(found: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    return {host: take["of"][: take["count"]] for host, take in found.items()}


FEW = host_usages([gpu(0, busy=True), gpu(1)], [gpu(0), gpu(1, holder="pool x of bob"), gpu(2)], [gpu(0, busy=True)])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"nodes": 2}, {"a": ["GPU-1"], "b": ["GPU-0"]}),
        ({"nodes": "1:3"}, {"a": ["GPU-1"], "b": ["GPU-0"]}),
        ({"nodes": 1, "worker": Worker(ranks_per_node=2)}, {"b": ["GPU-0", "GPU-2"]}),
        ({"nodes": 1, "accelerator": "H100:2"}, {"b": ["GPU-0", "GPU-2"]}),
    ],
)
def test_hosts_are_chosen_in_order_by_free_gpus(asked: dict[str, Any], expected: object) -> None:
    assert taken_gpus(choose_hosts(FEW, spec(**asked))) == expected


def test_hosts_are_chosen_only_with_the_requested_gpu_model() -> None:
    mixed = host_usages([gpu(0, model=A100, total=40 << 30), gpu(1)])
    assert taken_gpus(choose_hosts(mixed, spec(nodes=1, accelerator="A100"))) == {"a": ["GPU-0"]}
    assert taken_gpus(choose_hosts(mixed, spec(nodes=1, accelerator="H100"))) == {"a": ["GPU-1"]}
    with pytest.raises(NoCapacity, match="1 node with 1 free A100 is needed"):
        choose_hosts(mixed, spec(nodes=1, accelerator="A100-80GB"))


def test_replacement_host_needs_as_many_free_gpus_of_the_same_model() -> None:
    take = {"of": ["GPU-7"], "count": 2, "accelerator": "H100"}
    mixed = [gpu(0, model=A100), gpu(1), gpu(2, busy=True), gpu(3)]
    assert free_gpus(HostGpuUsage("b", mixed, "", True), take) == (["GPU-1", "GPU-3"], "")
    assert free_gpus(HostGpuUsage("b", mixed[:3], "", True), take)[1].startswith("2 free GPUs are needed: b: GPU 0 (")
    assert free_gpus(HostGpuUsage("b", (), "no answer", False), take) == ([], "2 free GPUs are needed: b: no answer")


def test_too_few_free_gpus_error_names_their_users() -> None:
    with pytest.raises(NoCapacity) as error:
        choose_hosts([*FEW[:2], HostGpuUsage("c", (), "it does not answer", False)], spec())
    assert str(error.value) == (
        "3 nodes with 1 free GPU each are needed, and only 2 of 3 hosts have them: "
        f"a: GPU 0 ({H100}) is used by bob (python, 12.0 GB), GPU 1 ({H100}) is free; "
        f"b: GPU 0 ({H100}) is free, GPU 1 ({H100}) is taken by pool x of bob, GPU 2 ({H100}) is free; "
        "c: it does not answer"
    )


def test_plan_of_hosts_lists_used_and_skipped_gpus() -> None:
    assert describe_choice(FEW, choose_hosts(FEW, spec(nodes="1:3"))) == [
        f"a: uses 1 of 2 GPUs (1: {H100}); GPU 0 ({H100}) is used by bob (python, 12.0 GB)",
        f"b: uses 1 of 3 GPUs (0: {H100}); GPU 1 ({H100}) is taken by pool x of bob",
        f"skipped: c: GPU 0 ({H100}) is used by bob (python, 12.0 GB)",
    ]


def test_pool_of_free_gpus_defaults_to_one_rank_per_gpu() -> None:
    assert spec().worker.ranks_per_node == "gpu"
    assert spec(worker=Worker(ranks_per_node=2)).worker.ranks_per_node == 2
    assert make_pool_spec("script", provider=SSH("a")).worker.ranks_per_node == 1
    with pytest.raises(UsageError, match=r"3 GPUs per node.* cannot be divided among 2 ranks"):
        choose_hosts(FEW, spec(accelerator="H100:3", worker=Worker(ranks_per_node=2)))
    with pytest.raises(UsageError, match="gpus='all': choose 'free', or omit it"):
        SSH("a", gpus="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "state"),
    [
        ({}, "free"),
        ({"used": None}, "free"),
        ({"used": 3_000_000_000}, "used: 3.0 GB of memory, by unknown processes"),
        ({"holder": "pool x of bob", "busy": True}, "taken by pool x of bob; used by bob (python, 12.0 GB)"),
    ],
)
def test_gpu_state_is_free_used_or_taken(data: dict[str, Any], state: str) -> None:
    found = gpu(0, **data)
    assert found.state == state and found.is_free == (state == "free")


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "a\nb\x1b[2J", "\u202egnp"])
def test_process_and_pool_names_of_gpu_users_are_sanitized(text: str) -> None:
    process = GpuProcess(7, text, text, None, True)
    shown = str(GpuUse(text, "GPU-0", text, 0, 0, 0, (process,), text))
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", shown)


@pytest.fixture
def device() -> Iterator[str]:
    name = "GPU-of-a-test"
    yield name
    gpu_locks_and_usage.release_gpu(name)


def test_gpu_lock_names_its_holder_and_is_exclusive(device: str) -> None:
    assert gpu_locks_and_usage.acquire_gpu(device) and gpu_locks_and_usage.acquire_gpu(device), "what is ours stays so"
    assert device not in gpu_locks_and_usage.locked_by_others(), "by somebody else"
    assert gpu_locks_and_usage.describe_holder(device).startswith("a pool of "), "nobody answers for it yet"
    assert gpu_locks_and_usage.has_lost_agent(device)
    gpu_locks_and_usage.release_gpu(device)
    assert gpu_locks_and_usage.describe_holder(device) == "an unknown process"
