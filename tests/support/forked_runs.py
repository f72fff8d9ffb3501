"""Processes of a parallel test run (``-n``): forked from a process that has collected all tests.

Each process would otherwise import and collect all tests itself, which takes many seconds of processor time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from tests.support.forked import Loaded

# Collects as they do. What is wrong with a test they tell; what is printed here is for nobody.
FIRST = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a process with threads cannot be forked
os.chdir({folder!r})
sys.path[:] = {path!r}
from _pytest.config import _prepareconfig
config = _prepareconfig([*{arguments!r}, "--collect-only", "-qq"])
from xdist.remote import setup_config
setup_config(config, None)
config.workerinput, config.workeroutput = {{"workerid": "none"}}, {{}}
from tests.support.forked_runs import Collected
collected = Collected()
config.pluginmanager.register(collected)
config.hook.pytest_cmdline_main(config=config)
collected.pass_on()
del config
if len(os.listdir("/proc/self/task")) > 1:  # a library's, imported at the top of a test
    sys.exit()
"""


class Collected:
    """Plugin of the process that collects all tests, which passes them on to its forks."""

    session: pytest.Session | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.session = session

    def pass_on(self) -> None:
        """Let the next session of this process, or of a fork, use the collected tests instead of collecting them.

        After a failed collection, each fork collects and reports the failure itself.
        """
        session = self.session
        if session is None or session.testsfailed:
            return
        nodes = {*chain.from_iterable(item.listchain() for item in session.items)}
        plugins, fixtures = session.config.pluginmanager, session._fixturemanager
        path = [*sys.path]  # with the folders of the tests, which pytest inserts as it imports these

        def use_session(config: pytest.Config) -> pytest.Session:
            for node in nodes:
                node.config = config
            fixtures.config = config
            sys.path[:0] = [each for each in path if each not in sys.path]
            ours = config.pluginmanager
            ours.register(session, "session")
            for each in plugins._conftest_plugins:
                if not ours.has_plugin(name := str(each.__file__)):
                    ours._conftest_plugins.add(each)
                    ours.register(each, name)
            ours._dirpath2confmods = {**plugins._dirpath2confmods, **ours._dirpath2confmods}
            return session

        def use_tests() -> None:
            session._fixturemanager = fixtures  # each session start makes a new one
            session.config.hook.pytest_collection_finish(session=session)

        session.perform_collect = use_tests  # type: ignore[assignment, method-assign]
        pytest.Session.from_config = use_session  # type: ignore[method-assign]


def fork_runs(config: pytest.Config) -> None:
    """Fork the processes of this run. Processes for other interpreters and machines are started."""
    given = config.invocation_params
    first = FIRST.format(folder=str(given.dir), path=sys.path, arguments=list(map(str, given.args)))
    loaded = Loaded([sys.executable, "-u"], first, gateway_io.popen_bootstrapline)

    class Forked(gateway_io.Popen2IOMaster):
        def __init__(self, args: Sequence[str], execmodel: Any) -> None:
            plain = [sys.executable, "-u", "-c", gateway_io.popen_bootstrapline]
            pipe = execmodel.subprocess.PIPE
            try:
                process = loaded.start(["-c"], stdin=pipe, stdout=pipe) if list(args) == plain else None
            except OSError:  # there is none to fork from
                process = None
            if process is None:
                super().__init__(args, execmodel)
                return
            self.popen = process
            Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel)

    gateway_io.Popen2IOMaster = Forked  # type: ignore[misc]
