"""Copies of checkpoints outside of the pool: in an S3 bucket, or in any file system that fsspec supports.

A copy consists of files and of a manifest, which is written last. An interrupted upload therefore leaves no manifest,
even in a store without atomic writes. Files that have not changed since the previous copy are not sent again.
Credentials come from the client's environment; nodes never receive them. Names in a store are not trusted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from hashlib import file_digest
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from skyward_core.model.errors import UsageError
from skyward_core.model.output_files import may_contain
from skyward_core.protocol.validators import is_relative_subpath
from skyward_core.util.light_dataclass import Value, value
from skyward_core.views import group_pairs

MANIFEST = ".json"  # file name ending of a manifest
# Pattern of manifest names; files in the store with other names are never deleted.
_MANIFEST_NAME = re.compile(r"\d{8}T\d{6}-\d{9}\.json")
MAX_MANIFEST_BYTES = 32 << 20
MAX_NAMES = 100_000  # maximum number of file names that are read from a listing of the store
SPARE_BYTES = 1 << 20  # bytes of the client's disk that a download leaves free


@value
class StoredFile(Value):
    """A file of a copy: path below the ranks' working folder, size, Unix time of its change, SHA-256, and its name in
    the store below the folder of the run.
    """

    path: str
    size: int
    at: float
    sha256: str
    name: str


class LocalFile(NamedTuple):
    """A file to save: local path, size in bytes, time of the last change in ns, and SHA-256; "" if unknown."""

    path: Path
    size: int
    changed_at: int
    sha256: str = ""


class CheckpointStore:
    """Copies of the checkpoints of runs below a URL. All methods block.

    Args:
        url: URL such as "s3://bucket/folder" or "file:///mnt/shared".

    Raises:
        UsageError: If the library for the URL is not installed, or does not support the URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._files = open_files(self.url)

    def save(self, run: str, files: Mapping[str, LocalFile], keep: int) -> bool:
        """Save a copy of files, and delete the oldest copies.

        Args:
            run: Id of the run.
            files: Path below the ranks' working folder -> local file.
            keep: Number of copies to keep.

        Returns:
            Whether the copy is complete. False if a file changed in the meantime.

        Raises:
            OSError: If the store cannot be used.
        """
        with _convert_errors(self.url):
            manifests = self._manifests(run)
            kept = self._load_manifest(run, manifests[0]) if manifests else []
            known = {(file.path, file.size, file.at): file for file in kept}
            seconds, ns = divmod(time.time_ns(), 10**9)
            stamp = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}-{ns:09}"
            stored = []
            for path, local in files.items():
                at = local.changed_at / 1e9
                file = known.get((path, local.size, at))
                if file is None:
                    with open(local.path, "rb") as content:
                        digest = local.sha256 or file_digest(content, "sha256").hexdigest()
                    file = StoredFile(path, local.size, at, digest, f"{stamp}/{path}")
                    self._files.upload(local.path, f"{run}/{file.name}")
                found = local.path.lstat()
                if (found.st_size, found.st_mtime_ns) != (local.size, local.changed_at):
                    return False
                stored.append(file)
            data = json.dumps({"files": [asdict(file) for file in stored]}).encode()
            self._files.write(f"{run}/{stamp}{MANIFEST}", data)
            self._prune(run, [f"{stamp}{MANIFEST}", *manifests], keep, {file.name for file in stored})
            return True

    def load(self, run: str, folder: Path) -> list[tuple[StoredFile, Path]]:
        """Download the newest complete copy into a new folder.

        Args:
            run: Id of the run.
            folder: Folder to create.

        Returns:
            The files and their local paths. Empty if there is no copy of the run.

        Raises:
            OSError: If the store cannot be used, or no copy is complete.
        """
        reason = ""
        with _convert_errors(self.url):
            for manifest in self._manifests(run):
                files = self._load_manifest(run, manifest)
                if not files:
                    continue
                try:
                    return [(file, self._download(run, file, folder)) for file in files]
                except OSError as error:  # try the next older copy, because this one is incomplete
                    shutil.rmtree(folder, ignore_errors=True)
                    reason = f"{manifest}: {error}"
            if reason:
                raise OSError(f"no copy of run {run} can be loaded; {reason}")
            return []

    def stored_versions(self, run: str) -> dict[str, list[tuple[int, float]]]:
        """Return, by path, the size and the modification time of the files of all stored copies.

        Raises:
            OSError: If the store cannot be used.
        """
        with _convert_errors(self.url):
            files = [file for name in self._manifests(run) for file in self._load_manifest(run, name)]
        return group_pairs((file.path, (file.size, file.at)) for file in files)

    def _download(self, run: str, file: StoredFile, folder: Path) -> Path:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if file.size > free - SPARE_BYTES:
            raise OSError(f"not enough disk space in {folder}: {file.size:,} bytes needed, {free:,} free")
        with _convert_errors(self.url):
            if self._files.size(f"{run}/{file.name}") != file.size:
                raise OSError(f"the size of {file.path} differs from the manifest")
            self._files.download(f"{run}/{file.name}", target)
        with open(target, "rb") as content:
            if file_digest(content, "sha256").hexdigest() != file.sha256:
                raise OSError(f"the SHA-256 of {file.path} differs from the manifest")
        os.utime(target, (file.at, file.at))
        return target

    def _manifests(self, run: str) -> list[str]:
        """Return the names of the manifests, the newest first."""
        if not is_relative_subpath(run) or "/" in run:
            raise OSError(f"{run!r:.80} is not the id of a run")
        names = [name for name in self._files.names(run) if _MANIFEST_NAME.fullmatch(name)]
        return sorted(names, reverse=True)

    def _load_manifest(self, run: str, name: str) -> list[StoredFile]:
        """Return the files of a copy. Empty if its manifest is invalid."""
        try:
            data = self._files.read(f"{run}/{name}") if self._files.size(f"{run}/{name}") > 0 else b""
            files = [StoredFile(**file) for file in json.loads(data)["files"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            return []
        paths = {file.path for file in files if _is_valid(file)}
        return files if len(paths) == len(files) <= MAX_NAMES else []

    def _prune(self, run: str, manifests: Sequence[str], keep: int, used: set[str]) -> None:
        """Delete all copies except the newest ones, and the files that only deleted copies contain."""
        for name in manifests[1:keep]:
            used |= {file.name for file in self._load_manifest(run, name)}
        for name in manifests[keep:]:
            files = self._load_manifest(run, name)
            self._files.delete(f"{run}/{name}")
            for file in files:
                if file.name not in used:
                    self._files.delete(f"{run}/{file.name}")


def _is_valid(file: StoredFile) -> bool:
    texts = file.path, file.name, file.sha256
    if not all(isinstance(each, str) and len(each) <= 4096 for each in texts):
        return False
    numbers = isinstance(file.size, int) and file.size >= 0 and isinstance(file.at, float) and 0 <= file.at < 1e11
    return numbers and is_relative_subpath(file.path) and is_relative_subpath(file.name)


class _S3Files:
    """Files in an S3 bucket."""

    folder = None

    def __init__(self, url: str) -> None:
        import boto3

        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        # A new boto3 session, because the default session keeps the credentials of its first use.
        self._client = boto3.Session().client("s3")

    def names(self, folder: str) -> Iterator[str]:
        """Return the names of the files directly in a folder, without the folder."""
        pages = self._client.get_paginator("list_objects_v2")
        prefix = f"{self._prefix}{folder}/"
        found = pages.paginate(Bucket=self._bucket, Prefix=prefix, Delimiter="/")
        return islice((each["Key"][len(prefix) :] for page in found for each in page.get("Contents", ())), MAX_NAMES)

    def size(self, name: str) -> int:
        """Return the size of a regular file; -1 for a link or a device."""
        return int(self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)["ContentLength"])

    def read(self, name: str) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
        return bytes(answer["Body"].read(MAX_MANIFEST_BYTES))

    def write(self, name: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def upload(self, path: Path, name: str) -> None:
        self._client.upload_file(str(path), self._bucket, self._prefix + name)

    def download(self, name: str, path: Path) -> None:
        self._client.download_file(self._bucket, self._prefix + name, str(path))

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)


class _FsspecFiles:
    """Files in a file system of fsspec.

    Attributes:
        folder: Folder on this machine; None for other file systems.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        self._system, self._root = url_to_fs(url)
        self.folder = Path(self._root) if getattr(self._system, "local_file", False) else None

    def _place(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _prepare(self, name: str) -> str:
        self._system.makedirs(self._place(name).rpartition("/")[0], exist_ok=True)
        return self._place(name)

    def names(self, folder: str) -> list[str]:
        try:
            found = self._system.ls(self._place(folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return [str(each).rpartition("/")[2] for each in found[:MAX_NAMES]]

    def size(self, name: str) -> int:
        found = self._system.info(self._place(name))
        kind, size, is_link = map(found.get, ("type", "size", "islink"))
        return int(size or 0) if kind == "file" and not is_link else -1

    def read(self, name: str) -> bytes:
        with self._system.open(self._place(name), "rb") as file:
            return bytes(file.read(MAX_MANIFEST_BYTES))

    def write(self, name: str, data: bytes) -> None:
        self._system.pipe_file(self._prepare(name), data)

    def upload(self, path: Path, name: str) -> None:
        self._system.put_file(str(path), self._prepare(name))

    def download(self, name: str, path: Path) -> None:
        self._system.get_file(self._place(name), str(path))

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._system.rm_file(self._place(name))


def open_files(url: str) -> _S3Files | _FsspecFiles:
    """Return an object that reads and writes files below a URL, in S3 or through fsspec.

    Raises:
        UsageError: If the library for the URL is not installed, or does not support the URL.
    """
    try:
        return _S3Files(url) if url.startswith("s3://") else _FsspecFiles(url)
    except ImportError as error:
        extra = "skyward-tui[checkpoints]"
        raise UsageError(
            f"Cannot open {url}: {error}. Install the missing library with: pip install '{extra}'."
        ) from error
    except Exception as error:  # fsspec does not convert the errors of the library behind each file system
        raise UsageError(f"Cannot open {url}: {error}") from error


def check_store(url: str, cwd: Path, patterns: Sequence[str]) -> None:
    """Check that a store can be used for the checkpoints of ranks that work in the user's own folder.

    Args:
        url: URL of the store.
        cwd: Working folder of the ranks.
        patterns: Patterns of the checkpoints.

    Raises:
        UsageError: If the store cannot be opened, or its content would itself be saved as checkpoints.
    """
    folder = open_files(url).folder
    place = "" if folder is None else os.path.relpath(folder.resolve() / "RUN", cwd.resolve())
    if place and patterns and not place.startswith("../") and may_contain(place, patterns):
        raise UsageError(
            f"Cannot save checkpoints in {url}: patterns of checkpoints ({', '.join(patterns)}) match files of this "
            f"folder, so copies would be saved as checkpoints again. Choose a folder outside of {cwd}."
        )


@contextmanager
def _convert_errors(url: str) -> Iterator[None]:
    """Convert all errors of client libraries to ``OSError``."""
    try:
        yield
    except Exception as error:
        raise OSError(f"{url}: {str(error) or type(error).__name__}") from error
