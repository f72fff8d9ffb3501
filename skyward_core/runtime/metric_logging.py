"""Implementation of ``sky.log`` in a rank.

A call only stores its metrics in memory. A background thread writes a JSON line for each call to a spool file, at most
``WRITES_PER_SECOND`` times per second, and the agent follows that file like a log. Training never waits for a reader.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from binascii import b2a_base64, crc32
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf, isfinite
from time import monotonic, sleep, thread_time, time  # imported by name, because user code may replace these functions
from typing import TYPE_CHECKING, Any, SupportsFloat

from skyward_core.protocol.node_paths import ERR, OUT
from skyward_core.runtime.import_hooks_gc_pause_and_alias import call_when_imported
from skyward_core.runtime.instance_info_and_attempt import (
    call_in_progress,
    instance_info,
    place_in_pool,
    working_folder,
)

if TYPE_CHECKING:
    from skyward_core.runtime.printed_metrics_and_library_hooks import PrintedMetrics, Progress

WRITES_PER_SECOND = 20  # maximum number of times per second that metrics are written to the file
# maximum number of stored calls of `log` between two writes; further calls only update each metric's latest value
MAX_PENDING = 20_000
PRINTED = "log"  # name of the source of metrics that are found in printed lines
POSITIONS = frozenset(("step", "epoch"))  # names of metrics that several sources may log
IMAGES = "images"  # name of the folder for logged images, in the working folder of the ranks
MAX_IMAGE_BYTES = 16 << 20  # maximum bytes of the file of a logged image
# Maximum number of images that a process logs per second, and number of seconds whose images it may log at once.
IMAGES_PER_SECOND, IMAGE_BURST = 4, 5.0
MAX_PREVIEW_BYTES = 32 << 10  # maximum bytes of the preview of an image, which screens show
PREVIEW_SIDES = (320, 160, 80)  # maximum sides of a preview in pixels; the first one that fits is used
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"  # first bytes of a file
MAX_OTHER_NAMES = 48  # maximum number of metric names per run: of `log`, and of all other sources together
SCAN_INTERVAL = 0.5  # seconds between two searches for metrics in a rank's output
SCAN_SHARE = 0.001  # share of a core that searches for metrics may use; further output is not searched
# processor seconds that searches may use at the start, and after a pause
FIRST_SCAN_SECONDS, MAX_SCAN_SECONDS = 0.03, 0.01
MIN_SCAN_BYTES, MAX_SCAN_BYTES = 300, 64_000  # minimum and maximum bytes of a stream that one search reads
# Modules of libraries whose classes log metrics; see `printed_metrics_and_library_hooks.HOOKS`.
LIBRARIES = (
    "torch.utils.tensorboard.writer", "tensorboardX.writer", "wandb.sdk.wandb_run", "mlflow.tracking.client",
    "lightning.pytorch.loggers.csv_logs", "pytorch_lightning.loggers.csv_logs", "transformers.trainer_callback",
    "keras.src.callbacks.callback_list",
)  # fmt: skip


def log(**numbers: SupportsFloat) -> None:
    """Log metrics: ``sky.log(step=step, loss=loss.item())``.

    Takes a few microseconds and never blocks. Screens show up to 512 values of a metric, spread evenly over the run;
    exports have all values, up to ``log_limit`` bytes of a run. Off a pool it does nothing.

    ``sky.log(step=step, total=steps)`` also shows the progress and the time left.

    Args:
        **numbers: Values by name of the metric; any type that ``float()`` accepts. A GPU tensor is read after the GPU
            is done.

    Raises:
        TypeError: If a value is not a number. The message names the metric.
    """
    for name, value in numbers.items():
        if type(value) is not float and type(value) is not int:
            numbers[name] = _to_float(name, value)
    if _writer is not None:
        _writer.add(instance_info().run, numbers, call=call_in_progress())


def log_image(name: str, image: Any, step: SupportsFloat | None = None) -> None:
    """Log an image: ``sky.log_image("samples", pixels, step=step)``.

    Writes the file ``images/RUN/NAME-STEP-INDEX.png`` in the working folder, which can be fetched like all files of
    ranks. INDEX is the index of the rank or task. The app shows a preview of the newest image of each name. Off a pool
    it does nothing.

    A process may log 4 images per second, on average over 5 seconds, and previews of ``log_limit`` bytes per run.
    Further images are dropped, with one message in the log.

    Args:
        name: Name of the image, at most 200 characters.
        image: Path or bytes of a PNG or JPEG file of at most 16 MiB, PIL image, matplotlib figure, or NumPy array or
            PyTorch tensor (HxW, HxWxC or CxHxW with 1, 3 or 4 channels; uint8, bool, or floats from 0 to 1).
        step: Step of the training. None for the number of images that the process has logged so far.

    Raises:
        TypeError: If the step or the values of an array have an unsupported type.
        ValueError: If the name is not a text or is too long, or the image is too large or has an unsupported format or
            shape.
        OSError: If the given file cannot be read.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        raise ValueError(f"sky.log_image() takes a name of 1 to {MAX_NAME_LENGTH} characters, but got {name!r:.80}")
    if _writer is not None:
        _writer.add_image(instance_info().run, name, image, None if step is None else _to_float("step", step))


def _encode_image(image: Any) -> tuple[bytes, bytes]:
    """Return the file of an image, and its preview; b"" if the preview needs Pillow, which is not installed."""
    from io import BytesIO  # imported late, because few ranks log images

    buffer, pixels = BytesIO(), None
    if isinstance(image, str | os.PathLike):
        with open(image, "rb") as file:
            buffer.write(file.read(MAX_IMAGE_BYTES + 1))
    elif isinstance(image, bytes | bytearray | memoryview):
        buffer.write(image)
    elif hasattr(image, "savefig") or hasattr(image, "convert"):
        (getattr(image, "savefig", None) or image.convert("RGBA").save)(buffer, format="png")
    else:
        pixels = _to_pixels(image)
        buffer.write(_encode_png(pixels))
    data = buffer.getvalue()
    if len(data) > MAX_IMAGE_BYTES or not data.startswith((PNG, JPEG)):
        raise ValueError(f"sky.log_image() takes PNG and JPEG files of at most {MAX_IMAGE_BYTES:,} bytes")
    is_short = len(data) <= MAX_PREVIEW_BYTES
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])  # of a PNG file
    if is_short and data.startswith(PNG) and max(width, height) <= PREVIEW_SIDES[0]:
        return data, data
    try:
        from PIL import Image
    except ImportError:
        if pixels is None:
            return data, data if is_short and data.startswith(JPEG) else b""
        stride = -(-max(pixels.shape) // PREVIEW_SIDES[-1])
        return data, _encode_png(pixels[::stride, ::stride])
    small = Image.open(buffer).convert("RGB")
    for side in PREVIEW_SIDES:
        small.thumbnail((side, side))
        small.save(preview := BytesIO(), "JPEG", quality=85)
        if preview.tell() <= MAX_PREVIEW_BYTES:
            break
    return data, preview.getvalue()


def _to_pixels(image: Any) -> Any:
    """Return a NumPy array or a PyTorch tensor as an array of bytes: rows, columns, channels.

    Raises:
        TypeError, ValueError: If the values have an unsupported type, or the array has an unsupported shape.
    """
    import numpy as np

    if hasattr(image, "detach"):
        image = image.detach().cpu()
        image = image.float() if image.is_floating_point() else image  # NumPy has no bfloat16.
    pixels = np.atleast_3d(image)
    if pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise ValueError(f"sky.log_image() takes arrays of HxW, HxWxC or CxHxW, but got the shape {np.shape(image)}")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind not in "bf":
        raise TypeError(f"sky.log_image() takes uint8, bool or floats from 0 to 1, but got {pixels.dtype}")
    return (np.nan_to_num(pixels).clip(0, 1) * 255).round().astype(np.uint8)


def _encode_png(pixels: Any) -> bytes:
    """Encode an array of bytes (rows, columns, channels) as a PNG file."""
    from zlib import compress

    height, width, channels = pixels.shape
    head = width.to_bytes(4) + height.to_bytes(4) + bytes((8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0))
    rows = compress(b"".join(b"\0" + row.tobytes() for row in pixels))
    chunks = (b"IHDR" + head, b"IDAT" + rows, b"IEND")
    return PNG + b"".join((len(each) - 4).to_bytes(4) + each + crc32(each).to_bytes(4) for each in chunks)


def pop_call_metrics(run: str, call: int) -> dict[str, list[float | None]]:
    """Return the metric summaries of an ended call, and forget them. The worker calls this once."""
    return _writer.summaries.pop(run, call) if _writer else {}


def record_yielded(run: str, seq: int, value: Any, call: int = -1) -> None:
    """Log the numbers in a dictionary that a generator yielded. The worker calls this.

    Args:
        seq: Index of the value among all yielded values.
    """
    if _writer is None or type(value) is not dict:
        return
    numbers = {name: number for name, number in value.items() if type(name) is str and type(number) in (int, float)}
    if numbers:
        _writer.add(run, numbers, seq, call)


def _to_float(name: str, value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(f"sky.log() takes numbers, but {name} is a {type(value).__name__}")
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"sky.log() takes numbers, but {name} is a {type(value).__name__} ({error})") from error


def start_writer(path: str, limit: int = 0, images: str = "") -> Callable[[], None]:
    """Write this process's metrics to a file from now on. The worker calls this. The first metrics create the file.

    Each line is ``{"at": Unix time, "run": id, "values": {name: number}}``. Lines of yielded values also have "seq".
    Lines of other sources have the source as "src", and may have value, total and kind of a progress as "done".
    NaN and infinities are written as Python's ``json`` module writes them.

    Args:
        path: Path of the file.
        limit: Bytes that one run may write to each file; 0 for no limit.
        images: Path of the file for images. Its lines have "image": name, step, path of the file, and preview.

    Returns:
        A function that writes all pending metrics. The worker calls it at the end of every call.
    """
    global _writer
    _writer = _Writer(path, limit or inf, images)
    return _writer.flush


class _Writer:
    """Writer that stores the metrics of each call of ``sky.log``, and writes them to a file in a thread."""

    def __init__(self, path: str, limit: float, images: str) -> None:
        self._path, self._limit, self._images_path = path, limit, images
        self._image_count = 0
        # message about the first dropped image; "" after it was printed
        self._drop_notice = f"sky.log_image: more than {IMAGES_PER_SECOND} images per second; some images are dropped\n"
        self._images_used_at = 0.0  # time up to which the logged images have used their rate
        # (run, "metrics" or "images") -> bytes that may still be written; negative after the limit is reached
        self._left: dict[tuple[str, str], float] = {}
        # descriptor of the metrics file, or -1 until the first metrics, which also start the thread; most ranks log
        # nothing
        self._file = -1
        self._entries: list[dict[str, Any]] = []
        self.summaries = MetricSummaries()  # metric summaries of the calls
        self._run = ""  # run for which the names below are valid
        self._logged: set[str] = set()  # metric names that the run passed to `log`
        self._owners: dict[str, str] = {}  # metric name of another source -> source that logged this name first
        self._lock = threading.Lock()  # held only briefly, because each call of `log` by user code acquires it
        self._writing = threading.Lock()
        self._has_values = threading.Event()
        self._broken = False
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._renew_locks)

    def _renew_locks(self) -> None:
        # Create new locks in a forked child: another thread may have held them during the fork, and does not exist in
        # the child.
        self._lock, self._writing = threading.Lock(), threading.Lock()

    def add(self, run: str, numbers: dict[str, Any], seq: int | None = None, call: int = -1) -> None:
        entry: dict[str, Any] = {"at": time(), "run": run, "values": numbers}
        if seq is not None:
            entry["seq"] = seq
        with self._lock:
            self._start_run(run)
            if not self._logged.issuperset(numbers) and len(self._logged) < MAX_OTHER_NAMES:
                self._logged.update(map(str.lower, numbers), numbers)
            self._append(entry, call)
        self._wake()

    def add_other(
        self,
        run: str,
        call: int,
        numbers: dict[str, float],
        source: str,
        at: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Add metrics of a source other than `log`. Ignore metrics that `log` or another library has already logged.

        Args:
            source: `PRINTED`, or the name of a library.
            at: Unix time in seconds; None for now.
            progress: Value, total and kind of the progress.
        """
        with self._lock:
            self._start_run(run)
            values = {}
            for name, value in numbers.items():
                # A library may also print a metric or pass it on under another name, for example train/loss as loss,
                # eval/loss as eval_loss. All names of a metric have the same key.
                key = name.removeprefix("train/").replace("/", "_").lower()
                if key not in self._logged and (name in POSITIONS or self._owns(key, source)):
                    values[name] = value
            if values.keys() <= POSITIONS and progress is None:
                return
            entry = {"at": time() if at is None else at, "run": run, "values": values, "src": source}
            if progress is not None:
                entry["done"] = progress
            self._append(entry, call)
        self._wake()

    def add_image(self, run: str, name: str, image: Any, step: float | None) -> None:
        """Write an image and its preview to files now, because user code may change the image later."""
        used_at = max(self._images_used_at, monotonic() - IMAGE_BURST)
        if used_at > monotonic():
            sys.stderr.write(self._drop_notice)
            self._drop_notice = ""
            return
        self._images_used_at, self._image_count = used_at + 1 / IMAGES_PER_SECOND, self._image_count + 1
        data, preview = _encode_image(image)
        index = call_in_progress() if call_in_progress() >= 0 else place_in_pool().rank
        safe = "".join(each if each.isascii() and each.isalnum() else "_" for each in name[:80])
        if safe != name:  # The checksum keeps names different.
            safe += f"-{crc32(name.encode(errors='backslashreplace')):08x}"
        place = f"{self._image_count if step is None else step:.12g}-{index}"
        path = f"{IMAGES}/{run}/{safe}-{place}.{'png' if data.startswith(PNG) else 'jpg'}"
        logged = {"name": name, "step": step, "path": path, "data": b2a_base64(preview, newline=False).decode()}
        with self._writing:
            line = self._encode({"at": time(), "run": run, "values": {}, "image": logged}, "images")
        if not line:
            return
        try:
            os.makedirs(f"{working_folder()}/{IMAGES}/{run}", exist_ok=True)  # noqa: PTH103
            with open(f"{working_folder()}/{path}", "wb") as file, open(self._images_path, "ab") as previews:
                file.write(data)
                previews.write(line)
        except OSError as error:
            sys.stderr.write(f"sky.log_image: cannot write {path} ({error})\n")

    def _owns(self, name: str, source: str) -> bool:
        owner = self._owners.get(name)
        if owner is None and len(self._owners) >= MAX_OTHER_NAMES:
            return False
        if owner is None or owner == PRINTED:
            self._owners[name] = source
        return owner in (None, PRINTED, source)

    def _start_run(self, run: str) -> None:
        if run != self._run:
            self._run, self._logged, self._owners = run, set(), {}

    def _append(self, entry: dict[str, Any], call: int) -> None:
        run, values = entry["run"], entry["values"]
        self.summaries.add(run, call, values)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
            self._thread.start()
        if len(self._entries) >= MAX_PENDING:
            last = self._entries[-1]
            if (last["run"], last.get("src")) == (run, entry.get("src")):
                entry["values"] = self._entries.pop()["values"] | values
        self._entries.append(entry)

    def _wake(self) -> None:
        if not self._has_values.is_set():
            self._has_values.set()

    def flush(self) -> None:
        with self._writing:
            with self._lock:
                pending, self._entries = self._entries, []
                self._has_values.clear()
            if self._broken or not pending:
                return
            data = b"".join(map(self._encode, pending))
            try:
                if self._file < 0:
                    self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                while data:  # Repeat, because os.write() may write only a part of the data.
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                # A full disk must not stop the training. Stop writing metrics, and print the reason to the log.
                self._broken = True
                sys.stderr.write(f"sky.log stopped: cannot write its file ({error})\n")

    def _encode(self, entry: dict[str, Any], kind: str = "metrics") -> bytes:
        """Return the JSON line of an entry; b"" if its run has reached the limit of metrics or of images."""
        line, run = json.dumps(entry).encode() + b"\n", entry["run"]
        before = self._left.pop((run, kind), self._limit)
        self._left[run, kind] = left = before - len(line)
        if len(self._left) > MAX_CALLS:
            del self._left[next(iter(self._left))]
        if left < 0 <= before:
            limit = f"its limit of {self._limit:,} bytes (Options(log_limit=...))"
            sys.stderr.write(f"sky.log: run {run} reached {limit}; further {kind} are dropped\n")
        return line if left >= 0 else b""

    def _serve(self) -> None:
        while True:
            self._has_values.wait()
            self.flush()
            sleep(1 / WRITES_PER_SECOND)


_writer: _Writer | None = None


class OutputScan:
    """Search for metrics in a rank's own output files, in a separate thread that uses at most `SCAN_SHARE` of a core.

    Args:
        stem: Path of the files without their endings.

    Attributes:
        has_output: Whether anything was printed since the last search.
        since: Unix time of the first output since the last search.
    """

    def __init__(self, stem: str) -> None:
        self._paths = stem + OUT, stem + ERR
        self._offsets = {path: os.stat(path).st_size for path in self._paths}
        self.has_output, self.since = False, 0.0
        self._has_printed = False  # whether the calls that currently run have printed anything
        self._calls: list[tuple[str, int]] = []
        self._metrics: PrintedMetrics | None = None
        self._run = ""
        self._room, self._at = FIRST_SCAN_SECONDS, monotonic()
        self._cost = 1e-6  # measured processor seconds per byte that a search reads
        self._lock, self._process = threading.Lock(), os.getpid()

    def note_output(self) -> None:
        """Record that output was printed, or will be printed immediately, so that the next search is due."""
        self._has_printed = True
        if not self.has_output:
            self.since, self.has_output = time(), True

    def start_call(self, run: str, call: int) -> None:
        """Attribute the output that follows to a call."""
        self._calls.append((run, call))

    def end_call(self, run: str, call: int) -> None:
        """Search the rest of an ended call's output for metrics."""
        if self._has_printed:
            self._has_printed = False
            self.search(is_end=True)
        self._calls.remove((run, call))

    def search_if_due(self) -> float | None:
        """Search if enough time has passed. Return the seconds until the next search; None if nothing was printed."""
        left = self._at + SCAN_INTERVAL - monotonic()
        if left > 0 or not self.has_output:
            return left if self.has_output else None
        self.search()
        return None

    def search(self, *, is_end: bool = False) -> None:
        """Search new output for metrics. Output of concurrent calls cannot be attributed, and is skipped."""
        if os.getpid() != self._process:  # Do not search in a child process that user code forked.
            return
        # User code may delete files. An error must not end the thread that calls this, or the call.
        with self._lock, suppress(Exception):
            self.has_output, since, now = False, self.since, monotonic()
            refilled = min(self._room + (now - self._at) * SCAN_SHARE, MAX_SCAN_SECONDS)
            self._room, self._at = max(self._room, refilled), now
            for path in self._paths:
                begin, size = self._offsets[path], os.stat(path).st_size
                self._offsets[path] = size
                if len(self._calls) == 1 and size > begin and not self._parse(path, begin, size, since, is_end):
                    self._offsets[path] = begin

    def _parse(self, path: str, begin: int, size: int, since: float, is_end: bool) -> bool:
        """Record the metrics in a part of a file. If the part is too long, search only its start and its end.

        Returns:
            False if the parser is not loaded yet and there are too few lines to load it.
        """
        ((run, call),) = self._calls
        if run != self._run:
            self._run, self._metrics = run, None
        most = min(max(int(self._room / self._cost), MIN_SCAN_BYTES), MAX_SCAN_BYTES)
        pieces = [(begin, size)] if size - begin <= most else [(begin, begin + most // 2), (size - most // 2, size)]
        with open(path, "rb", buffering=0) as file:
            found = [os.pread(file.fileno(), end - start, start) for start, end in pieces]
        if self._metrics is None:
            if len(found) == 1 and found[0].count(b"\n") + found[0].count(b"\r") < 3:
                return is_end
            from skyward_core.runtime.printed_metrics_and_library_hooks import PrintedMetrics

            self._metrics = PrintedMetrics()
        began, until = thread_time(), time()
        for (start, end), data in zip(pieces, found, strict=True):
            first, last = (since + (until - since) * (place - begin) / (size - begin) for place in (start, end))
            for at, values, progress in self._metrics.feed(path, data, first, last, start > begin):
                if _writer is not None:
                    _writer.add_other(run, call, values, PRINTED, at, progress)
        used = thread_time() - began
        self._room = max(self._room - used, 0.0)
        if size - begin >= MIN_SCAN_BYTES:
            self._cost = max(used / min(size - begin, most), 1e-8)
        return True


def forward_libraries() -> None:
    """Also log the metrics that user code gives to other logging libraries. The worker calls this once."""
    process = os.getpid()

    def patch(module: Any) -> None:
        with suppress(Exception):  # An error here must not make the import of a logging library fail.
            from skyward_core.runtime.printed_metrics_and_library_hooks import patch_library

            patch_library(record, module)

    def record(numbers: dict[str, float], step: float | None, progress: Progress | None, source: str) -> None:
        if _writer is not None and os.getpid() == process:
            # Ignore forked children: another thread may have held the writer's lock during the fork.
            place = {} if step is None else {"step": step}
            run = instance_info().run
            _writer.add_other(run, call_in_progress(), place | numbers, source, progress=progress)

    call_when_imported(patch, *LIBRARIES)


MAX_NAMES = 64  # maximum number of metrics that are summarized per call
MAX_NAME_LENGTH = 200  # maximum characters of a metric's name
MAX_CALLS = 1024  # maximum number of calls whose summaries are stored until they are requested


class MetricSummaries:
    """Metric summaries (last, minimum, maximum) of the calls of one process."""

    def __init__(self) -> None:
        self._by_call: dict[tuple[str, int], dict[str, list[Any]]] = {}

    def add(self, run: str, call: int, numbers: Mapping[str, Any]) -> None:
        """Update a call's summaries with new metrics. Ignore metrics outside of calls, whose index is -1."""
        if call < 0:
            return
        found = self._by_call.setdefault((run, call), {})
        if len(self._by_call) > MAX_CALLS:
            del self._by_call[next(iter(self._by_call))]
        for name, value in numbers.items():
            summary = found.get(name)
            if summary is None:
                if len(found) >= MAX_NAMES or len(name) > MAX_NAME_LENGTH:
                    continue
                summary = found[name] = [value, inf, -inf]
            summary[0] = value
            if value < summary[1]:
                summary[1] = value
            if value > summary[2]:
                summary[2] = value

    def pop(self, run: str, call: int) -> dict[str, list[float | None]]:
        """Return the summaries of a call, with None for non-finite values, and forget them."""
        found = self._by_call.pop((run, call), {})
        return {name: [_to_finite(each) for each in summary] for name, summary in found.items()}


def _to_finite(number: Any) -> float | None:
    try:
        found = float(number)
    except OverflowError:  # An int may exceed the range of float.
        return None
    return found if isfinite(found) else None


def emit(name: str, payload: Any = None) -> None:
    """Print an event to the log, and log its numbers as metrics ``NAME.KEY`` with ``sky.log``.

    Args:
        name: Name of the event.
        payload: A mapping, a number, or any other JSON value.
    """
    parts = payload if isinstance(payload, Mapping) else {"": payload}
    numbers = {
        f"{name}.{key}".removesuffix("."): value
        for key, value in parts.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if numbers:
        log(**numbers)
    print(name if payload is None else f"{name} {json.dumps(payload, default=str)}", flush=True)  # noqa: T201
