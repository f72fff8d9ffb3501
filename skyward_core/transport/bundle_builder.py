"""Builder of the bundle: the code that agents and workers need, as one reproducible zip file."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from opcode import hasconst
from pathlib import Path
from types import CodeType
from typing import Any

from skyward_core.model.errors import PoolError
from skyward_core.node.bootstrap.host_inspection import is_writable_by_others
from skyward_core.util.light_dataclass import Value, value

DIGEST = 32  # length in bytes of the SHA-256 that detects archives which a power loss cut off


def load_archive(name: str, variant: str) -> bytes:
    """Return a cached archive of a bundle, or b"" if there is no valid one.

    An archive is invalid if its name or content differs, or if other users could have written the file.

    Args:
        name: Name that identifies the content.
        variant: Kind of the archive; one archive of each kind is cached.
    """
    try:
        with open(_path(variant), "rb") as file:
            cached = file.read() if _is_trusted(os.fstat(file.fileno())) else b""
    except (OSError, NotImplementedError):
        return b""
    archive = cached[DIGEST:]
    return archive if cached[:DIGEST] == _digest(name, archive) else b""


def store_archive(name: str, variant: str, archive: bytes) -> None:
    """Cache an archive of a bundle for the next start, atomically. Ignore all failures."""
    if sys.dont_write_bytecode:
        return
    # imported late, because most starts do not store an archive
    from skyward_core.util.safe_file_access import write_atomic

    with suppress(OSError, NotImplementedError):
        write_atomic(Path(_path(variant)), _digest(name, archive) + archive, mode=0o644)


def _is_trusted(found: os.stat_result) -> bool:
    """Check that a cached file was written only by users who can also write this package's code.

    Nodes execute the file's code.
    """
    return not is_writable_by_others(found) and found.st_uid in (0, os.getuid(), os.stat(__file__).st_uid)


def _path(variant: str) -> str:
    return cache_from_source(__file__).removesuffix(".pyc") + f".{variant}"


def _digest(name: str, archive: bytes) -> bytes:
    return hashlib.sha256(name.encode() + archive).digest()


UNCHECKED_HASH = 0b01
CO_OPTIMIZED, CO_HAS_DOCSTRING = 0x1, 0x4000000  # flags of code objects; CO_HAS_DOCSTRING exists since Python 3.14
PACKAGES = ("skyward_core", "cloudpickle")
# Code that every node loads at startup. It is sent as bytecode, uncompressed within the archive.
LOADED_AT_START = (
    "cloudpickle/",
    "skyward_core/__init__.py",
    "skyward_core/model/__init__.py",
    "skyward_core/model/errors.py",
    "skyward_core/model/function.py",
    "skyward_core/model/misuse_guards.py",
    "skyward_core/node/__init__.py",
    "skyward_core/node/agent/",
    "skyward_core/node/bootstrap/__init__.py",
    "skyward_core/node/bootstrap/host_command_server.py",
    "skyward_core/node/bootstrap/host_commands.py",
    "skyward_core/node/bootstrap/host_inspection.py",
    "skyward_core/node/bootstrap/receive_file.py",
    "skyward_core/node/bootstrap/receive_working_folder.py",
    "skyward_core/node/bootstrap/socket_relay.py",
    "skyward_core/node/library_bundle_importer.py",
    "skyward_core/node/deferred_imports.py",
    "skyward_core/node/gpu_locks_and_usage.py",
    "skyward_core/node/worker/",
    "skyward_core/plugins/__init__.py",
    "skyward_core/plugins/plugin.py",
    "skyward_core/protocol/__init__.py",
    "skyward_core/protocol/frame_codec.py",
    "skyward_core/protocol/frame_schemas_and_size_limits.py",
    "skyward_core/protocol/node_paths.py",
    "skyward_core/protocol/stdout_stderr_order_marks.py",
    "skyward_core/protocol/validators.py",
    "skyward_core/runtime/",
    "skyward_core/util/__init__.py",
    "skyward_core/util/redaction.py",
)
# Code that some nodes load. Nodes cannot cache bytecode, so this code is sent as bytecode, too. All other code is sent
# as source, because bytecode is larger.
COMPILED = (
    *LOADED_AT_START,
    "pynvml.py",
    "skyward_core/node/",
    "skyward_core/plugins/built_in/__init__.py",
    "skyward_core/plugins/built_in/jax.py",
    "skyward_core/plugins/built_in/torch.py",
    "skyward_core/plugins/pool_certificate_authority.py",
    "skyward_core/model/output_files.py",
    "skyward_core/protocol/blocking_tls_connection.py",
    "skyward_core/util/content_hash.py",
    "skyward_core/util/light_dataclass.py",
)
NVML = "nvml"  # variant of the bundle for hosts with an NVIDIA driver; it contains the driver's client library
# Code that finds free GPUs. Hosts without an NVIDIA driver receive this code after the start, with the rest of the
# bundle.
WITH_DRIVER = ("skyward_core/node/gpu_locks_and_usage.py",)
# Code for optional features. It is sent as source: bytecode is more than twice as large, and few starts need this code.
RARELY_LOADED = (
    *WITH_DRIVER,
    "skyward_core/node/agent/peer_heartbeats.py",
    "skyward_core/node/agent/preemption_notices.py",
    "skyward_core/node/agent/rank_inspection_and_debugger.py",
    "skyward_core/node/agent/results_retained_after_node_end.py",
    "skyward_core/node/agent/metrics_sampler_supervisor.py",
    "skyward_core/node/agent/output_checkpoint_and_source_files.py",
    "skyward_core/node/bootstrap/hardware_and_network_benchmark.py",
    "skyward_core/node/stack_dumps_and_profiles.py",
    "skyward_core/node/worker/breakpoints.py",
    "skyward_core/node/worker/node_level_plugin_contexts.py",
    "skyward_core/node/worker/returned_exceptions.py",
    "skyward_core/runtime/rank_side_async_stream_and_map_calls.py",
    "skyward_core/runtime/distributed_sampler.py",
    "skyward_core/runtime/file_mount_unpacker.py",
    "skyward_core/runtime/output_decorators.py",
    "skyward_core/runtime/printed_metrics_and_library_hooks.py",
    "skyward_core/runtime/sharding.py",
    "skyward_core/runtime/shell_and_scripts.py",
    "skyward_core/runtime/visible_nvidia_gpus.py",
)
# Code that is sent after the start: client code, which a script may import inside a rank, hardware measurements, and
# code whose own work takes longer than the transfer of the code.
LATE_FILES = (
    "skyward_core/__main__.py",
    "skyward_core/model/metric_definitions_series_and_export.py",
    "skyward_core/model/offers_and_rental_plans.py",
    "skyward_core/node/nvidia_and_amd_gpu_metrics.py",
    "skyward_core/node/machine_metrics_sampler.py",
    "skyward_core/plugins/built_in/dask.py",
    "skyward_core/plugins/built_in/deepspeed.py",
    "skyward_core/plugins/built_in/mpi.py",
    "skyward_core/plugins/built_in/ray.py",
    "skyward_core/plugins/built_in/shared_collections.py",
    "skyward_core/plugins/joblib_backend.py",
    "skyward_core/plugins/redis_shared_state_client.py",
    "skyward_core/plugins/plugin_server_start_and_stop.py",
    "skyward_core/plugins/ssh_between_nodes.py",
    "skyward_core/plugins/ssh_command_environment.py",
    "skyward_core/runtime/printed_metrics_and_library_hooks.py",
    "skyward_core/util/safe_file_access.py",
    *(f"skyward_core/{name}/" for name in ("api", "pool", "providers", "store", "tasks", "transport", "views")),
)
# Compression level of the archive. Compared with level 1, level 2 takes 1 ms longer once per release, and saves 2 % of
# the bytes on each connection.
LEVEL = 2
# compression level of the part that is sent after the start; compressing is slow, but runs in the background
REST_LEVEL = 9
# Folders with code of the app and the command line, which nothing on a node imports.
CLIENT_PACKAGE = "skyward_core/client"
CLIENT_FILES = (
    "skyward_core/store/run_log_reader.py",
    "skyward_core/views/job_file_steps.py",
    "skyward_core/views/result_comparison.py",
    "skyward_core/views/stack_groups_and_profiles.py",
    "skyward_core/views/sweep_trials.py",
)
COMPILE_TIMEOUT = 120.0  # seconds for another Python version to compile the files of the bundle
_compiling = threading.Lock()  # held while the bundle is compiled, because all hosts of a pool need the same files
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
TAG = str(sys.implementation.cache_tag)
TYPE_STUBS_SUFFIX = "_types.py"  # modules for type checkers, which are never imported at run time
SOURCE_SUFFIXES = (".py", ".json")  # suffixes of the files in the bundle; the accelerator catalog is JSON
# Files that are sent only as bytecode. Each process on a node reads the list of all files, so fewer files are faster.
# Tracebacks of user code never show lines of these files.
SOURCELESS = (
    *LOADED_AT_START,
    "pynvml.py",
    "skyward_core/node/",
    "skyward_core/plugins/",
    "skyward_core/protocol/",
    "skyward_core/util/",
)


@value(frozen=True)
class Bundle(Value):
    """Code bundle that is sent to a node.

    Attributes:
        name: Folder and file name on nodes, which identifies the content of ``files``.
        files: Path in the archive, and content.
        origins: Local paths of the files.
        variant: Kind of the bundle; one packed archive of each kind is cached.
        tag: Bytecode tag of the node's Python, for example "cpython-312".
    """

    name: str
    files: tuple[tuple[str, bytes], ...]
    origins: tuple[str, ...]
    variant: str
    tag: str = TAG

    @cached_property
    def archive(self) -> bytes:
        """Archive that nodes start with, in the format of ``host_command_server.unpack``.

        Contains bytecode of the files in ``COMPILED``, because otherwise each process on a node would compile the
        sources. A single file is written faster than many files, and is either complete or absent.
        """
        return self._packed(self.variant, lambda path: not path.startswith(self._late_prefixes))

    @cached_property
    def rest(self) -> bytes:
        """Files that nodes do not need to start, as one compressed stream.

        The stream is a quarter smaller than separately compressed files.
        """
        return self._packed(f"{self.variant}-rest", lambda path: path.startswith(self._late_prefixes), REST_LEVEL)

    @property
    def _late_prefixes(self) -> tuple[str, ...]:
        return LATE_FILES if self.variant == NVML else (*LATE_FILES, *WITH_DRIVER)

    def compile_bytecode(self, program: str) -> None:
        """Compile the bundle's files with another Python version, because only that version can create its bytecode.

        Without an interpreter of that version, hosts receive sources, which each process compiles.

        Args:
            program: Path of the interpreter, or "".
        """
        import subprocess  # imported late, because the files are compiled only once per release

        with _compiling:
            if load_archive(self.name, self._archive_variant(self.variant)) or not os.access(program, os.X_OK):
                return
            pairs = zip(self.files, self.origins, strict=True)
            uncompiled = [at for (path, _), at in pairs if _is_sent_compiled(path) and not _bytecode(at, self.tag)]
            command = [program, "-I", "-S", "-m", "compileall", "-q", "-i", "-"]
            paths = "\n".join(uncompiled).encode()
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(command, input=paths, capture_output=True, check=False, timeout=COMPILE_TIMEOUT)

    def _archive_variant(self, variant: str) -> str:
        return variant if self.tag == TAG else f"{variant}.{self.tag}"

    def _packed(self, variant: str, belongs: Callable[[str], bool], level: int = LEVEL) -> bytes:
        if cached := load_archive(self.name, self._archive_variant(variant)):
            return cached
        complete = True
        loaded: dict[str, bytes] = {}
        others: dict[str, bytes] = {}
        for (path, data), origin in zip(self.files, self.origins, strict=True):
            if not belongs(path):
                continue
            code = _bytecode(origin, self.tag) if _is_sent_compiled(path) else b""
            complete = complete and bool(code or not _is_sent_compiled(path))
            part = loaded if path.startswith(LOADED_AT_START) else others
            if not code or not path.startswith(SOURCELESS):
                part[path] = data
            if code:
                part[path + "c"] = code
        if level == REST_LEVEL:
            loaded, others = loaded | others, {}
        archive = _archive(loaded, others, level)
        if complete:  # Do not cache an archive that lacks bytecode, because the next start may find all bytecode.
            store_archive(self.name, self._archive_variant(variant), archive)
        return archive


def _archive(loaded: dict[str, bytes], rest: dict[str, bytes], level: int) -> bytes:
    """Return a zip file that Python can import from, in the format in which it is sent to hosts.

    The format is a zlib stream with the uncompressed entries, followed by the individually compressed entries.
    """
    import zipfile  # imported late, because most starts send no bundle

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for path, data in loaded.items():
            archive.writestr(zipfile.ZipInfo(path), data)
        begins = file.tell()
        for path, data in rest.items():
            archive.writestr(zipfile.ZipInfo(path), data, zipfile.ZIP_DEFLATED, level)
    whole = file.getvalue()
    return zlib.compress(whole[:begins], level) + whole[begins:]


def bundle_for(nvml: bool, minor: str = MINOR) -> Bundle:
    """Return the bundle for hosts with or without an NVIDIA driver.

    Args:
        minor: Version of the Python on the hosts, for example "3.12".

    Raises:
        PoolError: If a required package is not installed, or cannot be copied for another Python.
    """
    if minor != MINOR:
        return _bundle_for_other(nvml, minor)
    return bundle_with_nvml() if nvml else bundle()


@cache
def bundle() -> Bundle:
    """Return the bundle of the packages that this process runs, for its own Python version."""
    return _make_bundle("plain", PACKAGES, Bundle(MINOR, (), (), ""))


@cache
def bundle_with_nvml() -> Bundle:
    """Return the bundle that also contains the client library of the NVIDIA driver."""
    return _make_bundle(NVML, ["pynvml"], bundle())


@cache
def _bundle_for_other(nvml: bool, minor: str) -> Bundle:
    """Return the bundle for hosts with another Python version than this process."""
    # imported late, because most pools use the Python version of this process
    from skyward_core.tasks.script_interpreter_and_environment import library_path_entries

    places = library_path_entries()
    if not nvml:
        nothing = Bundle(minor, (), (), "", f"cpython-{minor.replace('.', '')}")
        return _make_bundle("plain", PACKAGES, nothing, (places.first, places.last))
    return _make_bundle(NVML, ["pynvml"], _bundle_for_other(False, minor), (places.last,))


def _is_sent_compiled(path: str) -> bool:
    return path.startswith(COMPILED) and not path.startswith(RARELY_LOADED)


def _make_bundle(variant: str, packages: Sequence[str], more_than: Bundle, places: Sequence[str] = ()) -> Bundle:
    """Build a bundle of installed packages, or of packages in the given folders."""
    sources = sorted(source for name in packages for source in _files_of(name, places))
    files = tuple((path, _read(source)) for path, source in sources)
    digest = hashlib.sha256(more_than.name.encode())
    for path, data in files:
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    return Bundle(
        f"bundle-{digest.hexdigest()[:16]}/all.zip",
        more_than.files + files,
        more_than.origins + tuple(source for _, source in sources),
        variant,
        more_than.tag,
    )


def _bytecode(source: str, tag: str) -> bytes:
    """Return the bytecode of a source file, marked as valid even without the source file.

    Some installers, for example uv, do not create bytecode files. If a source has no current bytecode file, it is
    compiled for this Python; for another Python version, the result is b"". The layout follows PEP 552: magic number,
    flags, time and size of the source, code. In the result, an unchecked hash replaces time and size.
    """
    if tag == TAG:
        compiled: Any = SourceFileLoader(source, source).get_code(source)
        magic, code = importlib.util.MAGIC_NUMBER, marshal.dumps(_without_docstrings(compiled))
    else:
        folder, name = os.path.split(source)
        try:
            data, found = _read(f"{folder}/__pycache__/{name.removesuffix('.py')}.{tag}.pyc"), os.stat(source)
        except OSError:
            return b""
        # The code is copied as bytes, because this Python cannot load another version's code objects.
        magic, code = data[:4], data[16:]
        if data[4:16] != struct.pack("<III", 0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF):
            return b""
    return magic + struct.pack("<IQ", UNCHECKED_HASH, 0) + code


def _without_docstrings(code: CodeType) -> CodeType:
    """Return a code object without the docstrings of its functions, which are 5 % of the bytes sent at a start."""
    constants = [_without_docstrings(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    flags = code.co_flags
    if sys.version_info >= (3, 14):
        is_documented = bool(flags & CO_HAS_DOCSTRING)
    else:  # Before Python 3.14, the first constant of a function is its docstring or None.
        is_documented = bool(flags & CO_OPTIMIZED) and code.co_name[0] != "<" and isinstance(constants[0], str)
    text = code.co_code
    used = any(text[at] in hasconst and not text[at + 1] for at in range(0, len(text), 2))
    if is_documented and not used:
        # A string literal equal to the docstring shares the docstring's constant, which must then remain.
        constants[0] = None
        flags &= ~CO_HAS_DOCSTRING
    return code.replace(co_consts=tuple(constants), co_flags=flags)


def _files_of(package: str, places: Sequence[str]) -> list[tuple[str, str]]:
    """Return archive path and local path of a package's files. Uses os.walk, four times as fast as pathlib."""
    if places:
        possible = (f"{place}/{package}{end}" for place in places for end in ("/__init__.py", ".py"))
        origin = next(filter(os.path.exists, possible), "")
    else:
        spec = importlib.util.find_spec(package)
        origin = (spec and spec.origin) or ""
    if not origin:
        raise PoolError(f"The Python package {package} is not installed: reinstall this library.")
    above, name = os.path.split(origin)
    if name != "__init__.py":
        return [(name, origin)]
    found = []
    for folder, folders, names in os.walk(above):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        inside = package + folder[len(above) :]
        if inside == CLIENT_PACKAGE:
            folders.clear()
            continue
        sent = [name for name in names if name.endswith(SOURCE_SUFFIXES) and not name.endswith(TYPE_STUBS_SUFFIX)]
        found += [(path, f"{folder}/{name}") for name in sent if (path := f"{inside}/{name}") not in CLIENT_FILES]
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
