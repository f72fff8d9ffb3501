"""Images as ranks log them."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from io import BytesIO
from typing import Any

from PIL import Image

from skyward_core.protocol.node_paths import IMAGE_SLOTS, METRICS, log_stem
from skyward_core.runtime.metric_logging import PNG
from skyward_core.views.pool_view import PoolView


def picture(width: int = 24, height: int = 16) -> bytes:
    """Return a PNG file: red at the left, blue at the right, brighter towards the bottom."""
    image = Image.new("RGB", (width, height))
    for x in range(width):
        for y in range(height):
            light = 55 + 200 * y // height
            image.putpixel((x, y), (light * (width - x) // width, 0, light * x // width))
    image.save(file := BytesIO(), "PNG")
    return file.getvalue()


def flat(side: int) -> bytes:
    """Return a PNG file of one color, which is much smaller than its pixels."""
    Image.new("RGB", (side, side)).save(file := BytesIO(), "PNG")
    return file.getvalue()


def many_scans(side: int = 320) -> bytes:
    """Return a short JPEG file that contains thousands of scans, each of which takes as long as an image."""
    Image.new("RGB", (side, side)).save(buffer := BytesIO(), "JPEG", progressive=True)
    file = buffer.getvalue()[:-2]
    scan = file[file.rfind(b"\xff\xda") :]
    return file + scan * ((32_000 - len(file)) // len(scan)) + b"\xff\xd9"


def bomb() -> bytes:
    """Return a PNG file of a few hundred bytes that claims to have hundreds of millions of pixels."""
    size = (30_000).to_bytes(4) * 2
    chunks = (b"IHDR" + size + bytes((8, 2, 0, 0, 0)), b"IDAT" + zlib.compress(bytes(100_000)), b"IEND")
    return PNG + b"".join((len(each) - 4).to_bytes(4) + each + zlib.crc32(each).to_bytes(4) for each in chunks)


def image_file(rank: int) -> str:
    """Return the name of the file to which the first worker of a rank writes the lines of its images."""
    return log_stem(rank, IMAGE_SLOTS) + METRICS


def image_line(run: str, name: object, file: bytes, **fields: object) -> bytes:
    """Return the line that a rank writes to its file of images."""
    image: dict[str, Any] = {"name": name, "step": 3, "path": "images/x.png", "data": b64encode(file).decode()}
    return json.dumps({"at": 1.0, "run": run, "values": {}, "image": image | fields}).encode() + b"\n"


def log_image(view: PoolView, run: str, name: object, data: bytes, rank: int = 0, **fields: object) -> None:
    """Let a rank of a view log an image."""
    view.metrics.feed(image_file(rank), rank, image_line(run, name, data, **fields))
