"""``sky.log_image``: files and previews in a rank, and their validation by the client."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import skyward_core as sky
from skyward_core.protocol.validators import is_log_name
from skyward_core.runtime import metric_logging
from skyward_core.runtime.instance_info_and_attempt import InstanceInfo, using
from skyward_core.store.past_pool_views import load_metrics
from skyward_core.views.rank_metrics_and_progress import MAX_IMAGES, MetricStore
from tests.support.images import flat, image_file, image_line, many_scans, picture

Logged = list[tuple[dict[str, Any], bytes, bytes]]


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Logged]]:
    """Return the logged images: fields, file and preview of each."""
    monkeypatch.chdir(tmp_path)
    metric_logging.start_writer(str(tmp_path / "r000.metrics"), 0, str(tmp_path / "r000.5000.metrics"))

    def read() -> Logged:
        path = tmp_path / "r000.5000.metrics"
        lines = path.read_text().splitlines() if path.exists() else []
        images = [json.loads(line)["image"] for line in lines]
        return [(each, Path(each["path"]).read_bytes(), b64decode(each["data"])) for each in images]

    with using(InstanceInfo(run="r1")):
        yield read
    metric_logging._writer = None


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(BytesIO(data)))


def test_log_image_off_a_pool_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert metric_logging._writer is None
    sky.log_image("x", "no file")
    assert not list(tmp_path.iterdir())


def test_files_and_their_bytes_are_stored_unchanged(logged: Callable[[], Logged], tmp_path: Path) -> None:
    jpeg = BytesIO()
    Image.open(BytesIO(picture())).save(jpeg, "JPEG")
    (tmp_path / "a.png").write_bytes(picture())
    for image in ("a.png", tmp_path / "a.png", picture(), bytearray(jpeg.getvalue())):
        sky.log_image("samples", image, step=1200)
    sky.log_image("samples", picture())
    assert [data for _, data, _ in logged()] == [picture()] * 3 + [jpeg.getvalue(), picture()]
    assert all(data == preview for fields, data, preview in logged() if fields["path"].endswith("png"))
    assert pixels(logged()[3][2]).shape == (16, 24, 3)
    assert [(each["path"], each["step"]) for each, _, _ in logged()][2:] == [
        ("images/r1/samples-1200-0.png", 1200),
        ("images/r1/samples-1200-0.jpg", 1200),
        ("images/r1/samples-5-0.png", None),
    ]


GREY = np.arange(30, dtype=np.uint8).reshape(5, 6)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (GREY, GREY),
        (GREY[..., None], GREY),
        (GREY[None], GREY),
        (np.stack([GREY] * 3, 2), np.stack([GREY] * 3, 2)),
        (np.stack([GREY] * 4), np.stack([GREY] * 4, 2)),
        (np.asfortranarray(GREY), GREY),
        (np.array([[0.0, 0.5, 1.0, 7.0, -1.0, np.nan, np.inf]]), np.array([[0, 128, 255, 255, 0, 0, 255]])),
        (GREY > 9, np.where(GREY > 9, 255, 0)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_arrays_are_encoded_exactly(image: Any, expected: Any, logged: Callable[[], Logged]) -> None:
    sky.log_image("x", image)
    ((_, data, preview),) = logged()
    assert (pixels(data) == expected).all() and pixels(data).shape == expected.shape
    assert preview == data


def test_tensors_figures_and_pil_images_are_encoded(logged: Callable[[], Logged]) -> None:
    torch = pytest.importorskip("torch")

    class Figure:
        def savefig(self, file: Any, format: str) -> None:
            assert format == "png"
            file.write(picture())

    grey = torch.tensor(GREY / 255, dtype=torch.bfloat16, requires_grad=True)
    for image in (torch.tensor(GREY), grey[None], Figure(), Image.new("CMYK", (7, 3)), Image.new("P", (7, 3))):
        sky.log_image("x", image)
    found = [pixels(data) for _, data, _ in logged()]
    assert (found[0] == GREY).all() and np.allclose(found[1], GREY, atol=1)
    assert [each.shape for each in found[2:]] == [(16, 24, 3), (3, 7, 4), (3, 7, 4)]


@pytest.mark.parametrize(
    ("image", "error"),
    [
        (GREY.astype(int), "takes uint8, bool or floats from 0 to 1, but got int64"),
        (object(), "but got object"),
        (np.zeros((2, 3, 4, 5)), r"but got the shape \(2, 3, 4, 5\)"),
        (np.zeros((5, 6, 7)), r"but got the shape \(5, 6, 7\)"),
        (np.zeros((0, 6)), r"but got the shape \(0, 6\)"),
        (b"GIF89a", "takes PNG and JPEG files"),
        ("missing.png", "No such file"),
        (metric_logging.PNG + bytes(metric_logging.MAX_IMAGE_BYTES), "at most 16,777,216 bytes"),
    ],
)
def test_unsupported_images_are_rejected(image: object, error: str, logged: Callable[[], Logged]) -> None:
    with pytest.raises((TypeError, ValueError, OSError), match=error):
        sky.log_image("x", image)
    assert logged() == []


def test_names_cannot_leave_the_folder_or_collide(logged: Callable[[], Logged], tmp_path: Path) -> None:
    names = ["../../up", "a/b", "a_b", "a b", "\x1b]0;title\x07", ".", "..", "\udcff", "ü" * 200, "\n"]
    for name in names:
        sky.log_image(name, picture(), step=1)
    paths = [Path(each["path"]) for each, _, _ in logged()]
    assert {path.parent for path in paths} == {Path("images/r1")}
    assert len({*paths}) == len(names) == len([*Path("images/r1").iterdir()])
    assert all(path.name.isascii() and path.name.isprintable() and len(path.name) < 120 for path in paths)
    for wrong in ("", "x" * 201):
        with pytest.raises(ValueError, match="takes a name of 1 to 200 characters"):
            sky.log_image(wrong, picture())
    with pytest.raises(ValueError, match="takes a name of 1 to 200 characters, but got b'"):
        sky.log_image(picture(), "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="step is a str"):
        sky.log_image("x", picture(), step="5")  # type: ignore[arg-type]


def test_frequent_images_are_dropped_with_one_message(
    logged: Callable[[], Logged], capsys: pytest.CaptureFixture[str]
) -> None:
    for step in range(99):
        sky.log_image("x", picture(), step=step)
    assert 20 <= len(logged()) < 99
    assert capsys.readouterr().err.count("more than 4 images per second; some images are dropped") == 1


def test_images_beyond_the_log_limit_of_a_run_are_dropped_with_one_message(
    logged: Callable[[], Logged], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(metric_logging, "IMAGES_PER_SECOND", 1000)
    monkeypatch.setattr(metric_logging._writer, "_limit", 1000)
    for run in ("r1", "r2"):
        with using(InstanceInfo(run=run)):
            for step in range(30):
                sky.log_image("x", picture(), step=step)
                sky.log(step=step)
    assert metric_logging._writer is not None
    metric_logging._writer.flush()
    found = [each["path"].split("/")[1] for each, _, _ in logged()]
    assert 0 < found.count("r1") == found.count("r2") == len(list((tmp_path / "images/r1").iterdir())) < 30
    assert (tmp_path / "r000.5000.metrics").stat().st_size <= 2000
    assert len((tmp_path / "r000.metrics").read_text().splitlines()) > 20, "images must not displace metrics"
    notices = [line for line in capsys.readouterr().err.splitlines() if "further images are dropped" in line]
    assert notices == [
        f"sky.log: run {run} reached its limit of 1,000 bytes (Options(log_limit=...)); further images are dropped"
        for run in ("r1", "r2")
    ]


def test_image_that_cannot_be_written_is_reported(
    logged: Callable[[], Logged], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").write_text("a file")
    sky.log_image("x", picture(), step=7)
    assert "sky.log_image: cannot write images/r1/x-7-0.png" in capsys.readouterr().err
    assert logged() == []


NOISE = np.random.default_rng(0).integers(0, 256, (900, 700, 3), dtype=np.uint8)


def test_preview_of_a_large_image_is_small(logged: Callable[[], Logged]) -> None:
    sky.log_image("noise", NOISE)
    sky.log_image("flat", np.full((900, 700, 3), NOISE[:1, :1]) + (NOISE > 250))
    (_, data, noise), (_, _, flat) = logged()
    assert (pixels(data) == NOISE).all() and len(noise) <= metric_logging.MAX_PREVIEW_BYTES
    assert pixels(flat).shape == (320, 249, 3)


@pytest.mark.parametrize("file", [flat(2000), many_scans()], ids=["png", "jpeg"])
def test_preview_of_a_short_file_is_small_and_has_one_scan(file: bytes, logged: Callable[[], Logged]) -> None:
    assert len(file) <= metric_logging.MAX_PREVIEW_BYTES
    sky.log_image("x", file)
    ((_, data, preview),) = logged()
    assert data == file and pixels(preview).shape == (320, 320, 3)
    assert preview.count(b"\xff\xda") == 1


def test_preview_without_pillow_is_coarse_or_missing(
    logged: Callable[[], Logged], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)
        sky.log_image("array", NOISE)
        sky.log_image("file", logged()[0][1])
    (_, _, array), (_, _, file) = logged()
    assert (pixels(array) == NOISE[::12, ::12]).all() and file == b""


def test_client_stores_the_newest_image_of_each_name_by_the_lowest_rank(tmp_path: Path) -> None:
    store = MetricStore()
    for rank, step in ((1, 1), (0, 2), (1, 3), (0, 4)):
        store.feed(image_file(rank), rank, image_line("r1", "samples", picture(), step=step))
    (found,) = store.images("r1")
    assert (found.name, found.rank, found.step, found.preview) == ("samples", 0, 4, picture())
    assert store.images("r2") == [] and store.names("r1") == [] and store.ranks("r1") == []
    before = store.version
    store.feed(image_file(0), 0, image_line("r1", "other", b""))
    assert store.version > before and is_log_name(image_file(3)) and image_file(3).startswith("r003.")


@pytest.mark.parametrize(
    "line",
    [
        image_line("r1", "x", b"", data="abc"),
        image_line("r1", "x", b"", data="ü"),
        image_line("r1", "x", b"", data=[1]),
        image_line("r1", "x", b"", data=None),
        image_line("r1", "x", b"").replace(b'"path"', b'"paths"'),
        b'{"at": 1, "run": "r1", "values": {}, "image": "x"}\n',
        b'{"at": 1, "run": "r1", "values": {}, "image": ' + b"[" * 9999 + b"\n",
    ],
)
def test_invalid_image_lines_of_ranks_are_skipped(line: bytes) -> None:
    store = MetricStore()
    store.feed("r000.5000.metrics", 0, line + image_line("r1", "good", picture()))
    assert [each.name for each in store.images("r1")] == ["good"]


def test_text_and_number_of_images_are_bounded() -> None:
    store = MetricStore()
    for number in range(99):
        store.feed(
            "r000.5000.metrics", 0, image_line("r1", f"{number}\x1b[2J" + "x" * 9999, b"", path="\x1b]0;x\x07" * 999)
        )
    found = store.images("r1")
    assert len(found) == MAX_IMAGES
    assert all(len(each.name) <= 400 and len(each.path) <= 400 for each in found)
    assert not any("\x1b" in each.name + each.path or "\x07" in each.path for each in found)
    for step in ("nan", None, float("nan"), float("inf"), 10**400, True):
        store.feed("r000.5000.metrics", 0, image_line("r1", found[0].name, b"", step=step))
        assert store.images("r1")[0].step is None


def test_images_do_not_displace_metrics_of_ranks_in_the_history(tmp_path: Path) -> None:
    for rank in range(12):
        line = {"at": 1.0, "run": "r1", "values": {"loss": rank}}
        (tmp_path / f"r{rank:03d}.metrics").write_text(json.dumps(line) + "\n")
        (tmp_path / image_file(rank)).write_bytes(image_line("r1", "x", picture()))
    found = load_metrics(tmp_path, "r1")
    assert found.ranks("r1") == [*range(8)] and [each.rank for each in found.images("r1")] == [0]
