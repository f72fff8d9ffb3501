"""Main loop of a worker, the process of a rank.

Standard output and error are files of the spool, so slow readers cannot stall training. Calls and outcomes pass through
a Unix socket of the agent; large results are files in the spool.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, MutableMapping
from contextlib import ExitStack, suppress
from time import monotonic, perf_counter  # imported by name, because user code may replace the functions of `time`
from typing import TYPE_CHECKING, Any, TypeVar

from skyward_core.node.worker.agent_channel import AgentChannel
from skyward_core.node.worker.call_unpickling_and_script_modules import (
    PICKLE_MARKER,
    LoadedModules,
    LoadedObject,
    MainNamespaceLoader,
)
from skyward_core.node.worker.result_pickles_and_summaries import PickledValue, pickle_result, safe_text
from skyward_core.node.worker.stdio import CapturedStreams
from skyward_core.node.worker.stop_signal import Stopped, StopSignal, enable_stack_dumps
from skyward_core.protocol.frame_codec import MAX_INLINE_BYTES, WINDOW, AnyHeader, Header
from skyward_core.protocol.node_paths import IMAGE_SLOTS, MARKS, METRICS, NodePaths, log_stem
from skyward_core.runtime import import_hooks_gc_pause_and_alias, metric_logging, preemption
from skyward_core.runtime.instance_info_and_attempt import (
    import_for_call,
    not_reusable_reason,
    set_attempt,
    set_checkpoint_dir,
    set_phase_listener,
    set_place,
    using,
)

if TYPE_CHECKING:
    from skyward_core.protocol import frame_types as frames
    from skyward_core.runtime.framework_rendezvous_and_thread_limits import TorchrunEnvironment
    from skyward_core.runtime.instance_info_and_attempt import InstanceInfo
    from skyward_core.runtime.rank_side_async_stream_and_map_calls import StreamedIterator


class WorkerConfig:
    """Start options of one worker, removed from its environment variables."""

    # (Not a named tuple: creating one would delay each worker by 1 ms.)
    # capacity: number of concurrent calls
    # patience: seconds to look for a new agent after the agent died
    # grace: seconds to leave the plugins' contexts
    # rendezvous: whether broadcasts get the environment variables of torchrun
    # debug_wait: seconds to wait at a breakpoint for a debugger
    # start_options: environment variables of the pool, for agents that did not start this worker
    # sources: folders of modules that the user may edit
    # folders: the working folder here and on the client
    # log_limit: bytes of metrics that a run may write; 0 for no limit
    # receives_notices: whether the agent may announce preemptions
    # collects_metrics: whether metrics of printed lines and of other logging libraries are recorded

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self.start_options: frames.StartOptions = {}
        if (names := environ.pop("SKYWARD_VARIABLES", None)) is not None:
            self.start_options["env"] = {name: environ[name] for name in names.split(",") if name in environ}
        self.capacity = int(environ.pop("SKYWARD_CAPACITY", "1"))
        self.patience = float(environ.pop("SKYWARD_PATIENCE"))
        self.grace = float(environ.pop("SKYWARD_GRACE"))
        self.rendezvous = environ.pop("SKYWARD_RENDEZVOUS", "1") != "0"
        self.debug_wait = float(environ.pop("SKYWARD_DEBUG_WAIT", "0"))
        self.sources, self.folders = json.loads(environ.pop("SKYWARD_FOLDERS", '[[""], []]'))
        self.log_limit = int(environ.pop("SKYWARD_LOG_LIMIT", "0"))
        self.receives_notices = bool(environ.pop("SKYWARD_NOTICES", ""))
        self.collects_metrics = environ.get("SKYWARD_COLLECT_METRICS", "1") != "0"


MAX_FUNCTIONS = 64
MAX_REASON = 120  # maximum characters of the reason for a new attempt, which the log states
T = TypeVar("T")


def main(socket_path: str, folder: str, rank: str, number: str) -> None:
    """Serve calls until the agent ends this process, or until no agent has run for too long."""
    import_hooks_gc_pause_and_alias.install()
    paths = NodePaths(folder)
    log_path = f"{paths.spool}/{log_stem(int(rank), int(number))}"
    config, process = WorkerConfig(os.environ), os.getpid()
    scan = metric_logging.OutputScan(log_path) if config.collects_metrics else None
    streams = CapturedStreams(log_path + MARKS, scan)
    faulthandler.enable()
    stacks = paths.stacks(int(rank), int(number))
    enable_stack_dumps(stacks)
    # Called before user code opens files, because files that are open now do not count as unwritten data at exit.
    import_hooks_gc_pause_and_alias.install_gc_pause((log_path + MARKS, log_path + METRICS))
    # Cancels the stack dump of `leave_contexts` in the last exit handler: the handler registered first runs last. The
    # remaining steps of the exit only free memory, which can take long, and a dump would show no Python frames.
    atexit.register(faulthandler.cancel_dump_traceback_later)

    def catch_breakpoints(pdb: Any) -> None:
        from skyward_core.node.worker.breakpoints import patch_pdb

        patch_pdb(pdb, config.debug_wait, paths.debugger(int(rank), int(number)), process)

    def shorten_stacks(traceback: Any) -> None:
        from skyward_core.node.worker.returned_exceptions import hide_worker_frames

        hide_worker_frames(traceback)

    import_hooks_gc_pause_and_alias.call_when_imported(catch_breakpoints, "pdb")  # breakpoint() also imports pdb.
    import_hooks_gc_pause_and_alias.call_when_imported(shorten_stacks, "traceback")
    images = f"{paths.spool}/{log_stem(int(rank), IMAGE_SLOTS + int(number))}{METRICS}"
    flush_metrics = metric_logging.start_writer(log_path + METRICS, config.log_limit, images)
    if scan is not None:
        metric_logging.forward_libraries()
    worker = WorkerProcess(socket_path, paths, config, streams, flush_metrics, stacks, scan)
    try:
        code = worker.serve()
    except SystemExit as error:
        code = int(error.code or 0)
    worker.leave_contexts(code, config.grace)
    # Exit normally: wait for threads, run exit handlers, close files.
    sys.exit(code)


class WorkerProcess:
    """State of one worker: loaded functions, plugins' contexts and running calls."""

    _phase, _phase_since = "", 0.0
    _handles_sigterm = False
    _torchrun: TorchrunEnvironment | None = None

    def __init__(
        self,
        socket_path: str,
        paths: NodePaths,
        config: WorkerConfig,
        streams: CapturedStreams,
        flush_metrics: Callable[[], None],
        stacks: str,
        scan: metric_logging.OutputScan | None,
    ) -> None:
        self._known: frames.StartOptions = {}
        self._setup: Header = {}
        self._plugins = b""
        self._modules = LoadedModules(config.sources)
        # (run, call index, argument number) -> argument that is an iterator on the client
        self._streamed: dict[tuple[str, int, int], StreamedIterator] = {}
        self._is_receiving = False  # whether some thread is receiving frames from the agent
        self._received = threading.Condition()
        self._channel = AgentChannel(socket_path, self._hello, config.patience)
        self._known = config.start_options
        self._paths = paths
        self._rendezvous = config.rendezvous
        self._blobs = paths.blobs
        self._spool = paths.spool
        self._capacity = capacity = config.capacity
        self._is_orphaned = False
        self._has_run_code = False
        self._streams = streams
        self._flush_metrics = flush_metrics
        self._scan = scan
        set_phase_listener(self._report_phase)
        self._functions: dict[str, LoadedObject] = {}
        self._script = MainNamespaceLoader(paths.folder, (paths.sources, *config.folders), together=capacity > 1)
        self._contexts = ExitStack()
        # rank and world (True: of broadcasts, False: of tasks) as child processes see them in an environment variable
        self._places: dict[bool, dict[str, Any]] = {}
        self._infos: dict[bool, InstanceInfo] = {}
        self._current_place: bool | None = None  # key in ``_places`` of the value that child processes currently see
        self._serves_both = False  # whether this process runs both broadcasts and tasks
        self._has_entered_plugins = False
        self._setup_error: BaseException | None = None
        self._reader_windows: dict[tuple[str, int], _ReaderWindow] = {}
        self._pending_frames: deque[tuple[frames.ToWorker, bytes]] = deque()
        # Threads cannot be interrupted individually, so SIGTERM immediately ends a process that runs calls in threads.
        self._stop = StopSignal(interrupts=capacity == 1, on_handler=self._report_handler, stacks=stacks)
        preemption.install_handler(paths.notices, expected=config.receives_notices)

    def _hello(self) -> tuple[Header, bytes]:
        """Return the first frame that the worker sends on a connection to an agent.

        From this frame a new agent also learns the environment, the gang and the gang's plugins.
        """
        phase = {"phase": self._phase, "age": monotonic() - self._phase_since, "handles": self._handles_sigterm}
        modules = {"modules": self._modules.files} if self._modules.files else {}
        # Request again the values that the old agent had not delivered before it died.
        lost = [
            _make_want(*key[:2], items, again=True) for key, items in list(self._streamed.items()) if items.is_waiting
        ]
        wants = {"wants": lost} if lost else {}
        return {
            "t": "hello",
            "pid": os.getpid(),
        } | phase | self._known | self._setup | modules | wants, self._plugins

    def _report_phase(self, phase: str) -> None:
        """Report the phase to the agent: imports and joining process groups take long without output."""
        self._phase, self._phase_since = phase, monotonic()
        self._channel.send({"t": "phase", "phase": phase})

    def _report_handler(self, handles: bool) -> None:
        self._handles_sigterm = handles
        self._channel.send({"t": "sigterm", "handles": handles})

    def serve(self) -> int:
        """Handle frames of the agent until the agent ends this process. Return the exit status.

        Raises:
            SystemExit: If a call or SIGTERM ended the process.
        """
        tasks = _CallThreads(self._capacity, self._run_call) if self._capacity > 1 else None
        header: frames.ToWorker
        while True:
            try:
                self._receive_until(self._pending_frames.__len__)
            except EOFError:
                # The agent has ended, so no further call will arrive. The running calls have already ended.
                self._is_orphaned = True
                return 0
            header, body = self._pending_frames.popleft()
            if header["t"] == "call":
                if tasks is None:
                    self._run_call(header, body)
                else:
                    self._reader_windows[header["run"], header["i"]] = _ReaderWindow()
                    tasks.put(header, body)
            elif header["t"] == "place":
                self._places = {True: header["info"], False: header["own"]}
                self._set_place(True)
            elif header["t"] == "setup":
                self._set_up(header, body)
            elif header["t"] == "exit":
                return 0

    def leave_contexts(self, code: int, grace: float) -> None:
        """Leave the plugins' contexts before the process exits.

        Args:
            code: Exit status.
            grace: Time limit in seconds, after which the agent kills the process. The stacks of all threads are logged
                shortly before. Without an agent the process exits by itself at the limit.
        """
        self._stop.is_ending = True
        if not self._has_run_code:
            self._flush()
            os._exit(code)  # No user code has run, so no exit handlers need to run.
        if not_reusable_reason() and not self._is_orphaned:
            # The exit has no time limit, because exit handlers of a script in plain Python have none either.
            grace = 0
        if grace:
            share = 1 if self._is_orphaned else 0.9
            faulthandler.dump_traceback_later(grace * share, exit=self._is_orphaned, file=2)
        try:
            if plugins := sys.modules.get("skyward_core.plugins.plugin"):
                plugins.leave_late()
            self._contexts.close()
        except Exception:  # noqa: BLE001  # logged; a failing plugin must not block the node's end
            sys.excepthook(*sys.exc_info())
        self._flush()
        # Drop references to user functions. Daemon threads would keep them until the end, and files in the functions'
        # globals would never be closed.
        self._functions.clear()
        self._script.clear()
        self._reader_windows.clear()

    # -- plugins -----------------------------------------------------------------------------------------

    def _set_up(self, header: frames.ToWorkerSetup, body: bytes) -> None:
        self._setup_error = None
        gang, has_separate_tasks = header.get("gang", False), header.get("apart", False)
        self._places = {True: header["info"], False: header.get("own", header["info"])}
        self._current_place = None
        own, info = self._set_place(False), self._set_place(True)
        if has_separate_tasks and not gang:
            self._set_place(False)
        if "sharers" in header and (body or self._rendezvous):
            from skyward_core.runtime.framework_rendezvous_and_thread_limits import limit_machine_share

            limit_machine_share(header["sharers"], header.get("devices", ""))
        # Workers of a gang live for one epoch. Workers for tasks live longer, and enter the plugins' contexts without a
        # gang.
        if "failed" in header:
            self._setup_error = _plugin_context_error(header["failed"], body)
        elif body and not self._has_entered_plugins:
            from skyward_core.plugins.plugin import enter_process

            self._has_run_code = True
            try:
                with self._stop:
                    self._report_phase("importing")
                    plugins = pickle.loads(body)
                    if not (gang or has_separate_tasks):
                        plugins = [plugin for plugin in plugins if not plugin.gang]
                    self._report_phase("joining")
                    self._contexts = enter_process(plugins, info, None if gang else own)
                    self._stop.preserve_handler()
                    self._has_entered_plugins = True
            except Stopped:
                sys.exit(128 + signal.SIGTERM)
            except BaseException as error:  # noqa: BLE001  # reported as the outcome of all calls that need the plugins
                self._setup_error = error
                if not isinstance(error, Exception):
                    # Report for example SystemExit as a plugin error, because raising it in a call would end the call.
                    from skyward_core.plugins.plugin import PluginError

                    message = f"entering its plugins failed: {type(error).__name__}: {safe_text(error)}"
                    self._setup_error = PluginError(message)
                    self._setup_error.__cause__ = error
        # "members" lists the gang's nodes if the gang does not have all nodes of the pool.
        has_peers = info.world_size > 1 or "members" in header["info"]
        if self._rendezvous and has_peers and not info.stands_alone and self._torchrun is None:
            from skyward_core.runtime.framework_rendezvous_and_thread_limits import TorchrunEnvironment

            self._torchrun = TorchrunEnvironment(info, own, self._paths.error_file(os.getpid()))
        self._serves_both = gang and has_peers and not has_separate_tasks
        self._flush()
        restored_keys = ("epoch", "info", "secrets", "hooks", "apps", "joins", "alone")
        self._plugins = b"" if "failed" in header else body
        fields: AnyHeader = header
        self._setup = {key: fields[key] for key in restored_keys if key in fields}
        self._phase = ""
        self._channel.send({"t": "ready", "epoch": header["epoch"]})

    # -- calls -------------------------------------------------------------------------------------------

    def _run_call(self, header: frames.ToWorkerCall, body: bytes) -> None:
        run, index = header["run"], header["i"]
        answer: frames.WorkerOutcome = {"t": "outcome", "run": run, "i": index, "kind": "returned"}
        result = PickledValue()
        exit_code: int | None = None
        self._has_run_code = True
        self._streams.start_run(run)
        if self._scan is not None:
            self._scan.start_call(run, index)
        self._modules.scan()
        gang = bool(header.get("gang"))
        preemption.start_call(gang)
        set_attempt(header.get("attempt"))
        set_checkpoint_dir(header.get("checkpoints", run), create="checkpoints" in header)
        if (attempt := header.get("attempt")) is not None and attempt["number"] > 1:
            reason = attempt["message"].partition(" (")[0].partition("\n")[0][:MAX_REASON]
            with suppress(OSError, ValueError):  # An earlier task in this process may have closed standard error.
                sys.stderr.write(f"--- attempt {attempt['number']}: {reason} ---\n")
        place = self._set_place(gang)
        started = perf_counter()
        try:
            if self._setup_error is not None:
                answer["unusable"] = True
                raise self._setup_error
            with self._stop:
                value = self._run_function(header, body, place)
                reacts = (self._stop.was_overridden or "attempt" in header) and self._may_have_stopped_early(header)
            self._exit_if_forked()
            result = pickle_result(value, f"{header.get('name', 'the function')}()", self._spill_path(header))
            if reacts and preemption.is_sigterm_announced():
                answer["left"] = True
        except Stopped:
            answer["kind"] = "collateral"
            exit_code = 128 + signal.SIGTERM
        except SystemExit as error:
            if self._stop.is_ending:  # The exception comes from SIGTERM, not from user code.
                raise
            code = _EXIT_CODE(error)
            status = _exit_status(code)
            if status or self._channel.is_forked:
                exit_code = status
                message = (
                    _ATTRIBUTES(error).get("__skyward_words__")
                    or f"called sys.exit({safe_text(code, repr)[:200]}) before it returned"
                )
                answer |= {"kind": "exited", "exit_code": exit_code}
                answer["error"] = {"type": "SystemExit", "message": message}
            else:  # A command-line program that exits with status 0 has succeeded.
                result, answer["left"] = pickle_result(None, "", ""), True
        except BaseException as error:  # noqa: BLE001  # any exception of user code is its outcome
            answer["kind"] = "raised"
            # imported late, because most calls raise no exception
            from skyward_core.node.worker.returned_exceptions import describe_error

            words, result.data = describe_error(error)
            answer["error"] = words | {"traceback": self._script.to_client_paths(words["traceback"])}
        if self._channel.is_forked:
            _end_child(answer)
        if self._serves_both and has_process_group():
            self._serves_both = False
            self._setup |= {"joins": True}
            answer["joined"] = True
        if self._stop.is_ending:
            exit_code = 128 + signal.SIGTERM if exit_code is None else exit_code
        elif exit_code is None and (spent_reason := not_reusable_reason()):
            answer["ends"], exit_code = spent_reason, 0
        answer["seconds"] = perf_counter() - started
        if self._phase == "importing":  # Only a call that ended while importing still has this phase.
            self._report_phase("")
        whole: AnyHeader = answer
        whole |= result.header()
        self._streams.flush()
        if self._scan is not None:
            self._scan.end_call(run, index)
        self._flush_metrics()
        self._streams.end_run(run)
        window = self._reader_windows.pop((run, index), None)
        if window is not None and window.yielded:
            answer |= {"items": window.yielded, "last": window.last_summary}
        if numbers := metric_logging.pop_call_metrics(run, index):
            answer["numbers"] = numbers
        if self._modules.scan():
            self._channel.send({"t": "modules", "files": self._modules.files})
        self._channel.send(answer, result.data)
        if exit_code is not None:
            if self._capacity > 1:
                main_thread = threading.main_thread().ident or 0
                # This call ran in a thread. SIGTERM wakes the main thread, which waits for calls.
                signal.pthread_kill(main_thread, signal.SIGTERM)
            sys.exit(exit_code)

    def _may_have_stopped_early(self, header: frames.ToWorkerCall) -> bool:
        """Check whether user code may have returned early, with an incomplete result, because of a preemption notice.

        In a run without restarts, the value of a function always counts as complete.
        """
        restarts = "attempt" in header
        return (self._stop.was_overridden and (restarts or bool(header.get("script")))) or (
            restarts and preemption.has_callbacks()
        )

    def _set_place(self, gang: bool) -> InstanceInfo:
        """Set the rank and world that user code sees: those of broadcasts (``gang``) or those of tasks. Return them."""
        if self._current_place is not gang:
            self._current_place = gang
            self._infos[gang] = set_place(self._places[gang], own=not gang)
        return self._infos[gang]

    def _run_function(self, header: frames.ToWorkerCall, body: bytes, place: InstanceInfo) -> Any:
        streamed: list[StreamedIterator] = []
        if header.get("fed"):
            # imported late, because few calls have streamed arguments
            from skyward_core.runtime.rank_side_async_stream_and_map_calls import collect_streamed_arguments

            streamed = collect_streamed_arguments()
        fn, (args, kwargs) = _load_checked("its function or arguments", self._load_function, header, body)
        self._bind_streamed_arguments(header["run"], header["i"], streamed)
        if self._phase == "importing":
            self._report_phase("running")
        torchrun = self._torchrun
        if torchrun is not None:
            torchrun.start_call(bool(header.get("gang")), header.get("attempt"))
        if hasattr(fn, "__skyward_programs__"):
            fn.__skyward_programs__ = self._paths.programs
        if secrets := getattr(fn, "__skyward_secrets__", ()):
            # Before the command prints any output, send its secrets to the agent, which redacts them in logs.
            self._channel.send({"t": "secrets", "values": list(secrets)})
        try:
            with using(place, header["run"], header["i"]):
                value = fn(*args, **kwargs)
                if header.get("stream") and isinstance(value, Generator):
                    return self._send_values(header, value)
        finally:
            if streamed:
                self._close_streamed_arguments(header["run"], header["i"])
            if torchrun is not None:
                torchrun.end_call(fn)
            if stops := sys.modules.get("skyward_core.node.worker.breakpoints"):
                stops.end_debugging()
        return value

    def _exit_if_forked(self) -> None:
        """Exit if this process is a child that user code forked, because it must not act as a second worker."""
        if self._channel.is_forked:
            raise SystemExit(0)

    def _load_function(self, header: frames.ToWorkerCall, body: bytes) -> tuple[Any, Any]:
        (name, size), (args_name, args_size) = header["fn"], header["args"]
        inline = size if size <= MAX_INLINE_BYTES else 0
        fn = self._functions.get(name)
        if fn is None:
            self._report_phase("importing")
            with import_for_call():
                fn = self._script.load(body[:inline] if inline else f"{self._blobs}/{name}")
            if len(self._functions) >= MAX_FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            self._functions[name] = fn
        source = body[inline:] if args_size <= MAX_INLINE_BYTES else f"{self._blobs}/{args_name}"
        if isinstance(source, bytes) and PICKLE_MARKER not in source:
            # The arguments contain only plain values, which plain pickle loads faster.
            self._script.install(fn, None)
            return fn.value, pickle.loads(source)
        args = self._script.load(source)
        self._script.install(fn, args if args.names else None)
        return fn.value, args.take_value()

    def _spill_path(self, header: frames.ToWorkerCall, kind: str = "result") -> str:
        return f"{self._spool}/{header['run']}.{header['i']}.{os.getpid()}.{kind}"

    # -- generators --------------------------------------------------------------------------------------

    def _send_values(self, header: frames.ToWorkerCall, values: Generator[Any, None, Any]) -> Any:
        key = (header["run"], header["i"])
        window = self._reader_windows.setdefault(key, _ReaderWindow())
        try:
            while True:
                try:
                    value = next(values)
                except StopIteration as end:
                    return end.value
                self._exit_if_forked()
                what = f"value {window.yielded} of {header.get('name', 'the generator')}()"
                item = pickle_result(value, what, self._spill_path(header, f"{window.yielded}.item"))
                self._streams.flush()
                metric_logging.record_yielded(key[0], window.yielded, value, key[1])
                frame = {"t": "item", "run": key[0], "i": key[1], "seq": window.yielded} | item.header()
                self._channel.send(frame, item.data)
                window.yielded += 1
                window.last_summary = item.summary
                self._wait_for_reader(window)
        finally:
            values.close()

    def _wait_for_reader(self, window: _ReaderWindow) -> None:
        """Wait until the reader of a generator has room for another value."""
        if self._capacity > 1:
            window.wait()
            return
        self._receive_until(lambda: window.is_open)

    def _receive_until(self, done: Callable[[], object]) -> None:
        """Handle frames of the agent until a condition is true. Only one thread receives frames; other threads wait."""
        while not done():
            with self._received:
                if self._is_receiving:
                    self._received.wait()
                    continue
                self._is_receiving = True
            try:
                header, body = self._channel.receive()
                self._on_frame(header, body)
            finally:
                with self._received:
                    self._is_receiving = False
                    self._received.notify_all()

    def _on_frame(self, header: frames.ToWorker, body: bytes) -> None:
        """Pass a frame to the running call that it concerns. Put all other frames into a queue."""
        if header["t"] == "credit":
            window = self._reader_windows.get((header["run"], header["i"]))
            if window is not None:
                window.advance(header["next"])
        elif header["t"] == "fed":
            if (items := self._streamed.get((header["run"], header["i"], header["arg"]))) is not None:
                more, ends = header.get("more", False), header.get("ends", "")
                items.add_part(header["seq"], header["part"], body, more=more, ends=ends)
                if self._capacity > 1:
                    with self._received:
                        self._received.notify_all()
        else:
            self._pending_frames.append((header, body))

    # -- streamed arguments ------------------------------------------------------------------------------

    def _bind_streamed_arguments(self, run: str, index: int, streamed: list[StreamedIterator]) -> None:
        """Connect a call's streamed arguments (iterators on the client) to the agent."""

        def request_values(items: StreamedIterator) -> None:
            self._channel.send(_make_want(run, index, items))

        for items in streamed:
            self._streamed[run, index, items.number] = items
            items.bind(request_values, self._wait_for_values, _load_checked)

    def _wait_for_values(self, have_arrived: Callable[[], bool]) -> None:
        self._streams.flush()
        if self._capacity == 1:
            self._receive_until(have_arrived)
            return
        with self._received:
            self._received.wait_for(have_arrived)

    def _close_streamed_arguments(self, run: str, index: int) -> None:
        """Close a call's streamed arguments (iterators on the client) after the call has ended."""
        for key in [key for key in self._streamed if key[:2] == (run, index)]:
            self._streamed.pop(key).close()
        with self._received:  # Wake a thread that the ended call left waiting for values of a streamed argument.
            self._received.notify_all()

    def _flush(self) -> None:
        self._flush_metrics()
        self._streams.flush()


def _load_checked(what: str, load: Callable[..., T], *args: Any) -> T:
    """Load objects that a client sent. Convert exceptions that would end the rank, such as SystemExit.

    Raises:
        NotPicklableError: If loading raised StopIteration, or an exception that is not an ``Exception``.
    """
    try:
        return load(*args)
    except BaseException as error:
        if isinstance(error, (Exception, Stopped)) and not isinstance(error, StopIteration):
            raise
        from skyward_core.model.errors import NotPicklableError

        message = f"{what} cannot be loaded on this node: {type(error).__name__}: {safe_text(error)}"
        raise NotPicklableError(message) from error


def _make_want(run: str, index: int, items: StreamedIterator, *, again: bool = False) -> frames.WorkerWant:
    begin, end = items.wanted_range
    want: frames.WorkerWant = {"t": "want", "run": run, "i": index, "arg": items.number, "next": begin, "until": end}
    # A request from 0 also counts as repeated, because an earlier attempt at this call may have requested these values.
    return want | {"again": True} if again or not begin else want


class _ReaderWindow:
    """Limit on the number of values that a generator may yield before its reader has acknowledged them.

    Attributes:
        yielded: Number of yielded values.
        last_summary: Summary of the latest value.
    """

    def __init__(self) -> None:
        self.yielded = 0
        self.last_summary: frames.SummaryKeys | None = None
        self._condition = threading.Condition()
        self._end = WINDOW

    def advance(self, until: int) -> None:
        """Allow more values after the reader has acknowledged all values below ``until``. Ignore lower numbers."""
        with self._condition:
            self._end = max(self._end, until + WINDOW)
            self._condition.notify()

    @property
    def is_open(self) -> bool:
        return self.yielded < self._end

    def wait(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self.is_open)


class _CallThreads:
    """Daemon threads that run calls, so that they do not keep the process alive."""

    def __init__(self, count: int, call: Callable[[frames.ToWorkerCall, bytes], None]) -> None:
        from queue import SimpleQueue  # imported late, because most workers run calls in one thread only

        self._calls: SimpleQueue[tuple[frames.ToWorkerCall, bytes]] = SimpleQueue()
        self._call = call
        self._left = count

    def put(self, header: frames.ToWorkerCall, body: bytes) -> None:
        self._calls.put((header, body))
        if self._left:
            self._left -= 1
            threading.Thread(target=self._serve, name="task", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._call(*self._calls.get())


def has_process_group() -> bool:
    """Check whether this process has initialized torch.distributed or jax.distributed and has not left it."""
    for name in ("torch.distributed.distributed_c10d", "jax.distributed"):
        if (module := sys.modules.get(name)) is not None and getattr(module, "is_initialized", bool)():
            return True
    return False


def _plugin_context_error(keys: frames.PluginErrorKeys, data: bytes) -> BaseException:
    """Return the exception for calls that need plugins whose ``around_app`` contexts could not be entered."""
    from skyward_core.model.errors import RemoteTraceback
    from skyward_core.plugins.plugin import PluginError

    error: BaseException = PluginError(keys["message"], keys.get("plugin", ""), "around_app")
    with suppress(BaseException):  # Unpickling an exception runs code of its class.
        if data:
            error = pickle.loads(data)
    if "traceback" in keys:
        error.__cause__ = RemoteTraceback(keys["traceback"])
    return error


def _end_child(answer: frames.WorkerOutcome) -> None:
    """Exit from a child process that user code forked, in the way in which Python ends a script."""
    error = answer.get("error")
    if answer["kind"] == "raised" and error is not None:
        sys.stderr.write(error.get("traceback") or error["message"])
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(1 if answer["kind"] == "raised" else answer.get("exit_code") or 0)


# A user's subclass may have overridden these attributes.
_EXIT_CODE, _ATTRIBUTES = SystemExit.__dict__["code"].__get__, BaseException.__dict__["__dict__"].__get__


def _exit_status(code: object) -> int:
    """Return the exit status that Python would use for an argument of ``sys.exit``."""
    if code is None:
        return 0
    if issubclass(type(code), int):
        return int.__and__(code, 0xFF)  # type: ignore[operator]
    sys.stderr.write(f"{safe_text(code)}\n")
    return 1
