"""Complete sets of checkpoint files, after a power cut at any instant of a save."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from skyward_core.pool.checkpoint_sets import (
    CheckpointFile,
    CheckpointSet,
    find_sets,
    inspect_content,
    select_latest,
    select_outdated,
)
from tests.support.examples import examples

Write = tuple[str, bytes]


def zipped(step: int) -> bytes:
    """Return a file like those of ``torch.save``: an uncompressed zip file."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("archive/data.pkl", f"step {step} ".encode() * 40)
        archive.writestr("archive/data/0", b"PK\x05\x06" * 30)
    return target.getvalue()


def safetensors(step: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [200], "data_offsets": [0, 200]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([step]) * 200


def distributed(step: int) -> Iterator[Write]:
    shards = [f"__{rank}_0.distcp" for rank in range(3)]
    for shard in shards:
        yield f"step-{step}/{shard}", zipped(step) * 2
    metadata = pickle.dumps({"shards": shards, "step": step}, 4)
    yield f"step-{step}/.metadata", metadata


def transformers(step: int) -> Iterator[Write]:
    folder = f"out/checkpoint-{step}"
    shards = [f"model-{n}.safetensors" for n in (1, 2)]
    for shard in shards:
        yield f"{folder}/{shard}", safetensors(step)
    yield f"{folder}/model.safetensors.index.json", json.dumps({"weight_map": dict(enumerate(shards))}).encode()
    yield f"{folder}/training_args.bin", zipped(step)
    yield f"{folder}/optimizer.pt", zipped(step)
    for rank in (0, 1):
        yield f"{folder}/rng_state_{rank}.pth", zipped(step)
    yield f"{folder}/trainer_state.json", json.dumps({"global_step": step}).encode()


def lightning(step: int) -> Iterator[Write]:
    yield f"logs/epoch={step}-step={step * 7}.ckpt", zipped(step)


def plain_folder(step: int) -> Iterator[Write]:
    """A folder without a manifest, as ``accelerate`` writes it."""
    yield f"epoch_{step}/model.safetensors", safetensors(step)
    yield f"epoch_{step}/optimizer.bin", zipped(step)
    yield f"epoch_{step}/random_states_0.pkl", b"\x80\x04."
    yield f"epoch_{step}/DONE", b""


def inspected(folder: Path, files: Sequence[Write]) -> list[CheckpointSet]:
    """Return the sets of files with the given content; the later a file, the newer."""
    found = []
    for at, (path, content) in enumerate(files):
        place = folder / "content"
        place.write_bytes(content)
        found.append(CheckpointFile(path, len(content), at / 10, *inspect_content(place, Path(path).name)))
    return find_sets(found)


@pytest.mark.parametrize("writer", [distributed, transformers, lightning, plain_folder])
def test_no_torn_checkpoint_is_chosen_after_a_power_cut_at_any_instant(
    writer: Callable[[int], Iterator[Write]], tmp_path: Path
) -> None:
    """Instants of a save and its last bytes, with and without zeros in place of unwritten blocks."""
    chance = random.Random(7)
    before = [*writer(1), *writer(2)]
    save = list(writer(3))
    total = sum(len(content) for _, content in save)
    for instant in sorted({*chance.sample(range(total), min(examples(100), total)), *range(total - 9, total)}):
        left, files = instant, list(before)
        for path, content in save:
            kept = content[:left]
            left -= len(kept)
            unwritten = chance.random() < 0.2 and content != kept
            files.append((path, bytes(len(content)) if unwritten else kept))
            if len(kept) < len(content):
                break
        latest = select_latest(inspected(tmp_path, files))
        assert {file.path for each in latest for file in each.files} <= {path for path, _ in before}, instant
        assert latest
    files = [*before, *save]
    newest = select_latest(inspected(tmp_path, files))[0]
    assert {file.path for file in newest.files} == {path for path, _ in save}
    if len(save) > 1:
        lacking = save.pop(chance.randrange(len(save)))
        sets = inspected(tmp_path, [*before, *save])
        assert sets[0].problem, f"complete without {lacking[0]}"


@pytest.mark.parametrize(
    ("paths", "latest"),
    [
        (["model.pt", "a/b.pt", "rank-0.json", "rank-1.json"], ["model.pt", "a/b.pt", "rank-0.json", "rank-1.json"]),
        (["s/__0_0.distcp", "s/__1_0.distcp", "log.txt"], ["log.txt"]),  # no metadata
        (["checkpoint-4/optimizer.pt", "checkpoint-4/trainer_state.json", "checkpoint-5/optimizer.pt",
          "checkpoint-5/model.safetensors"], ["checkpoint-4/optimizer.pt", "checkpoint-4/trainer_state.json"]),
        (["checkpoint-5/rng_state_0.pth", "checkpoint-5/rng_state_2.pth"], []),  # rank 1 has not saved
        (["checkpoint-5/model.pt", "checkpoint-5/checkpoint-is-incomplete.txt"], []),
        (["step-1/a.pt", "step-1/README", "step-2/a.pt", "step-3/a.pt"], ["step-3/a.pt"]),
        (["s/.metadata", "s/__0_0.distcp"], []),  # a shard is newer than the metadata: another save has begun
        (["a/epoch=1.ckpt", "a/epoch=2.ckpt", "b/epoch=1.ckpt", "a/last.ckpt"],
         ["a/epoch=2.ckpt", "b/epoch=1.ckpt", "a/last.ckpt"]),
        (["global_step5/mp_rank_00/x.pt", "seed1/x.pt", "seed2/x.pt"],
         ["global_step5/mp_rank_00/x.pt", "seed1/x.pt", "seed2/x.pt"]),
    ],
)  # fmt: skip
def test_run_continues_from_the_newest_complete_sets(paths: list[str], latest: list[str]) -> None:
    sets = find_sets(CheckpointFile(path, 1, at * 2.0) for at, path in enumerate(paths))
    assert {file.path for each in select_latest(sets) for file in each.files} == set(latest)


@pytest.mark.parametrize(
    ("keep", "limit", "outdated"),
    [
        (9, 1000, []),
        (2, 1000, ["step-1", "step-2"]),
        (9, 60, ["step-1", "step-2"]),
        (9, 59, ["step-1", "step-2", "step-3"]),
        (9, 1, ["step-1", "step-2", "step-3"]),  # the newest one stays, although it is larger
        (0, 1000, ["step-1", "step-2", "step-3"]),
    ],
)
def test_sets_beyond_the_number_or_the_size_are_outdated(keep: int, limit: int, outdated: list[str]) -> None:
    """Incomplete sets and files without a number are never outdated, and each family has its own limits."""
    files = [CheckpointFile(f"step-{step}/a.bin", 30, step * 10.0) for step in (1, 2, 3, 4)]
    more = [CheckpointFile("model.pt", 500, 1.0), CheckpointFile("b/step-1/a.bin", 30, 2.0)]
    torn = CheckpointFile("step-5/a.bin", 30, 50.0, "is cut off")
    sets = find_sets([*files, *more, torn])
    assert sorted(each.name for each in select_outdated(sets, keep, limit)) == outdated


@pytest.mark.parametrize("name", [".metadata", "a.json", "a.safetensors", "a.pt", "a.h5"])
def test_hostile_content_is_named_incomplete_or_opaque(name: str, tmp_path: Path) -> None:
    chance = random.Random(3)
    starts = [
        b"",
        b"PK\x03\x04",
        b"\x89HDF\r\n\x1a\n\x00",
        b"[" * 100_000,
        b"\x80\x04\x95",
        bytes(40),
        b"{}" + b"\xff" * 8,
    ]
    ends = [b"", b"PK\x05\x06" + b"\xff" * 18, b"PK\x05\x06" + bytes(8), b"."]
    bodies = [struct.pack("<Q", 2) + each for each in (b"[]", b"{}", b'{"a":1}', b'{"a":{"data_offsets":["x"]}}')]
    for content in [*bodies, *(s + chance.randbytes(chance.randrange(99)) + e for s in starts for e in ends)]:
        (tmp_path / "file").write_bytes(content)
        problem, needs = inspect_content(tmp_path / "file", name)
        assert isinstance(problem, str) and not needs
