"""Whole scripts as tasks, compared with plain Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import skyward_core as sky
from tests.support.cli import Cli
from tests.support.pool_logs import last_run, log_of, settled
from tests.support.waiting import wait_until

TRAIN = '''
"""Trains nothing."""
import argparse, atexit, inspect, json, multiprocessing, os, pickle, sys, threading, time
from dataclasses import dataclass
import beside

@dataclass
class Cfg:
    width: int = 1

def double(number):
    return 2 * number

def late():
    time.sleep(0.2)
    print("a thread ended", flush=True)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--how", default="")
    said = parser.parse_args()
    config = Cfg(said.epochs)
    with open(f"config-{os.environ.get('RANK', 'plain')}.pickle", "wb") as file:
        pickle.dump(config, file)
    with multiprocessing.get_context("spawn").Pool(1) as children:
        doubled = children.map(double, [1, 2])
    print(json.dumps({
        "argv": sys.argv, "again": sys.orig_argv[1:], "twice": sys.path.count(sys.path[0]),
        "file": __file__, "name": __name__, "spec": repr(__spec__), "doc": __doc__,
        "first": sys.path[0], "cwd": os.getcwd(), "beside": beside.WORD, "doubled": doubled,
        "source": inspect.getsource(Cfg), "main": sys.modules["__main__"].Cfg is Cfg, "package": __package__,
    }))
    atexit.register(print, "exit handlers ran", flush=True)
    threading.Thread(target=late).start()
    sys.stdout.flush()
    if said.how == "leave":
        os._exit(0)
    if said.how == "again":
        os.execv(sys.executable, [sys.executable, "-c", "print('another program')"])
    if said.how == "raise":
        sys.excepthook = lambda *told: print("hook:", *told[:2], flush=True)
        raise LookupError("no data")
    if said.how:
        sys.exit(said.how if said.how == "words" else int(said.how))

if __name__ == "__main__":
    main()
'''
LEFT_OPEN = """
import atexit, multiprocessing, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

def double(number):
    return 2 * number

def last():
    print("exit handlers still have", list(shared), flush=True)

processes = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
manager = multiprocessing.get_context("fork").Manager()
shared = manager.list([processes.submit(double, 2).result()])
threads = ThreadPoolExecutor(1)
print(threads.submit(double, 4).result(), flush=True)
threads.submit(time.sleep, 0.2).add_done_callback(lambda _: print("what was begun is ended", flush=True))
atexit.register(last)
atexit.register(lambda: print("no", 1 / 0))
"""
STAYS = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "begun").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
"""
CLOSES = """
import os, sys
os.closerange(3, 512)
print("a daemon", flush=True)
sys.stdout.close()
"""
COMMAND_OF_CLICK = """
import os, click

@click.command()
@click.option("--epochs", type=int, required=True)
def main(epochs):
    click.echo(f"{epochs} epochs in {os.getpid()}")

main()
"""
COMMAND_OF_TYPER = """
import typer

app = typer.Typer()

@app.command()
def main(words: list[str], epochs: int = typer.Option(...)):
    print(__name__, words, epochs)
    raise typer.Exit(epochs)

if __name__ == "__main__":
    app()
"""
MAIN_OF_HYDRA = """
import os

import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    job = HydraConfig.get()
    print(__name__, config, job.job.name, list(job.overrides.task))
    print(os.path.relpath(job.runtime.cwd), os.path.isdir("ran"))

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    cli = Cli(tmp_path_factory.mktemp("cli"))
    cli.write("train.py", TRAIN)
    cli.write("left_open.py", LEFT_OPEN)
    cli.write("stays.py", STAYS)
    cli.write("closes.py", CLOSES)
    cli.write("clicks.py", COMMAND_OF_CLICK)
    cli.write("typed.py", COMMAND_OF_TYPER)
    cli.write("configured.py", MAIN_OF_HYDRA)
    (cli.folder / "conf").mkdir()
    cli.write("conf/config.yaml", "epochs: 1\nnet: {width: 3}\nhydra: {run: {dir: ran}}\n")
    cli.write("beside.py", "WORD = 'found'\n")
    (cli.folder / "package").mkdir()
    cli.write("package/__init__.py", "")
    cli.write("package/__main__.py", "import sys; print(__package__, sys.argv[1:], __spec__.name)\n")
    return cli


@pytest.fixture(scope="module")
def pool(cli: Cli) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cli.folder)
        patch.setenv("SKYWARD_HOME", str(cli.folder / "home"))
        options = sky.Options(console=False, fail_fast=False)
        with sky.Compute(nodes=1, worker=sky.Worker(ranks_per_node=2), options=options) as pool:
            yield pool
        assert pool.receipt is not None and pool.receipt.ok


def printed(pool: Any, rank: int) -> list[str]:
    settled(pool)
    return log_of(pool, last_run(pool), rank).decode().splitlines()


def test_script_in_a_rank_has_the_environment_of_plain_python(pool, cli):
    command = [sys.executable, "train.py", "--epochs", "3"]
    plain = subprocess.run(command, cwd=cli.folder, capture_output=True, text=True, check=True)
    facts, *ends = plain.stdout.splitlines()
    assert sky.script("train.py", ["--epochs", 3]) @ pool == [None, None]
    for rank in (0, 1):
        found, *ended = printed(pool, rank)
        assert json.loads(found) == json.loads(facts)
        assert ended == ends == ["a thread ended", "exit handlers ran"]
    # What was pickled there is the script's own.
    load = "import runpy, pickle, sys; sys.modules['__main__'].__dict__.update(runpy.run_path('train.py'))\n"
    load += "print(pickle.load(open('config-1.pickle', 'rb')))"
    loaded = subprocess.run([sys.executable, "-c", load], cwd=cli.folder, capture_output=True, text=True, check=True)
    assert loaded.stdout == "Cfg(width=3)\n"


def test_outcome_of_a_script_task_follows_its_exit(pool):
    assert sky.script("train.py", ["--how", "0"]) @ pool == [None, None]
    for how, kind, code in (("4", "exited", 4), ("words", "exited", 1), ("raise", "raised", None)):
        with pytest.raises(sky.RunError) as failed:
            sky.script("train.py", ["--how", how]) @ pool
        assert {(each.kind, each.exit_code) for each in failed.value.outcomes.values()} == {(kind, code)}
        assert isinstance(failed.value.__cause__, LookupError) == (how == "raise")
    assert "hook: <class 'LookupError'> no data" in printed(pool, 0)
    outcome = failed.value.outcomes[1].error
    assert outcome is not None and outcome.traceback.count("train.py") == 2  # its main program, and main()
    assert 'in main\n    raise LookupError("no data")\n' in outcome.traceback


@pytest.mark.proof("1 s of a processor")
def test_script_task_may_exit_by_os_exit_or_exec(pool):
    assert sky.script("train.py", ["--how", "leave"]) @ pool == [None, None]
    assert sky.script("train.py", ["--how", "again"]) @ pool == [None, None]
    assert printed(pool, 0)[1:] == printed(pool, 1)[1:] == ["another program"]


def test_resources_left_open_by_a_script_are_closed_as_by_python(pool, cli):
    """The script leaves executors open, and a multiprocessing server that ends in the exit handlers."""
    alone = subprocess.run([sys.executable, "left_open.py"], cwd=cli.folder, capture_output=True, text=True)
    sky.script("left_open.py") @ pool
    assert printed(pool, 0) == printed(pool, 1) == alone.stdout.splitlines()
    assert "ZeroDivisionError" in log_of(pool, last_run(pool), 0, "err").decode()
    assert alone.returncode == 0 and alone.stdout.endswith("exit handlers still have [4]\n")


def test_script_that_closes_unknown_descriptors_still_returns(pool):
    assert sky.script("closes.py") @ pool == [None, None]
    assert printed(pool, 0) == ["a daemon"] and log_of(pool, last_run(pool), 0, "err") == b""


def test_each_script_run_uses_fresh_processes(pool):
    seen = set()
    for _ in range(2):
        sky.script("clicks.py", ["--epochs", "3"]) @ pool
        seen |= {line for rank in (0, 1) for line in printed(pool, rank)}
        assert sky.function(abs)(-3) @ pool == [3, 3]
    assert len(seen) == 4 and all(line.startswith("3 epochs in ") for line in seen)
    sky.script("package", ["a"], module=True) >> pool
    assert printed(pool, 0) == ["package ['a'] package.__main__"]


def test_broadcast_waits_for_a_script_on_one_rank(pool, tmp_path):
    message = "broadcasts wait for scripts that use all processes"
    assert sky.function(abs)(-3) @ pool == [3, 3]
    with ThreadPoolExecutor(2) as beside:
        try:
            script = sky.script("stays.py", [tmp_path]) > pool
            wait_until((tmp_path / "begun").exists)
            broadcast = beside.submit(lambda: sky.function(abs)(-4) @ pool)
            wait_until(lambda: message in str(pool.pool.view))
            later = sky.script("clicks.py", ["--epochs", "1"]) > pool
            assert sky.function(abs)(-5) >> pool == 5, "the other rank is free"
            assert not broadcast.done() and not later.done()
        finally:
            (tmp_path / "go").touch()
        assert (script.result(), broadcast.result(), later.result()) == (None, [4, 4], None)
    assert message not in str(pool.pool.view)


@pytest.mark.proof("3 s of a processor", after=1)
@pytest.mark.parametrize(
    ("script", "words", "status"),
    [
        ("clicks.py", ["--epochs", "many"], 2),
        ("configured.py", ["epochs=5", "+seed=1"], 0),
        ("typed.py", ["a", "b c", "--epochs", "0"], 0),
        ("typed.py", ["a", "--epochs", "7"], 7),
        ("configured.py", ["epoch=5"], 1),
    ],
)
def test_click_typer_and_hydra_scripts_behave_as_in_plain_python(pool, cli, script, words, status):
    alone = subprocess.run([sys.executable, script, *words], cwd=cli.folder, capture_output=True, text=True)
    assert alone.returncode == status, alone.stderr
    if status:
        with pytest.raises(sky.RunError) as failed:
            sky.script(script, words) @ pool
        # The other is not begun any more where it was still starting.
        ended = {each.rank: each.exit_code for each in failed.value.outcomes.values() if each.kind == "exited"}
        assert set(ended.values()) == {status}
    else:
        ended = dict.fromkeys((0, 1))
        assert sky.script(script, words) @ pool == [None, None]
    for rank in ended:
        assert printed(pool, rank) == alone.stdout.splitlines()
        assert log_of(pool, last_run(pool), rank, "err").decode() == alone.stderr


def test_invalid_script_is_rejected_before_sending(cli, monkeypatch):
    monkeypatch.chdir(cli.folder)
    cli.write("broken.py", "x = (\n")
    for path, says in (("trian.py", "Did you mean 'train.py'"), ("broken.py", "does not parse")):
        with pytest.raises(sky.ScriptError, match=says):
            sky.script(path)
    with pytest.raises(sky.UsageError, match=r"such as \['--epochs', '3'\]"):
        sky.script("train.py", "--epochs 3")
    with pytest.raises(sky.ScriptError, match="is not a module name"):
        sky.script("train.py/x", module=True)


@pytest.mark.proof("1 s of a processor")
def test_torchrun_variables_are_set_for_a_single_process_on_request(cli):
    """Scripts for torchrun always read ``LOCAL_RANK``; other scripts take RANK as a sign of torchrun."""
    cli.write(
        "place.py",
        "import os\nprint(*[os.environ.get(each) for each in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', "
        "'GROUP_RANK', 'MASTER_ADDR')], os.environ.get('MASTER_PORT', '0') > '0')\n",
    )
    alone = "r000| 0 0 1 0 127.0.0.1 True"
    assert alone in cli("torchrun", "place.py").stdout.splitlines()
    assert alone in cli("run", "--torchrun", "place.py").stdout.splitlines()
    assert "r000| None None None None None False" in cli("run", "place.py").stdout.splitlines()


@pytest.mark.proof("0.5 s of a processor")
def test_run_command_passes_arguments_to_a_whole_script(cli):
    found = cli("run", "train.py", "--ranks-per-node", 2, "--json", "--", "--epochs", 3, "--how", "4", status=4)
    found = json.loads(found.stdout.splitlines()[-1])
    assert found["function"] == "train.py"
    assert "sys.exit(4)" in found["root_cause"]["message"]
    first = found["root_cause"]["rank"]  # the other is stopped, perhaps before it has said anything
    output = cli("logs", f"{found['run']}:{first}").stdout
    assert '"argv": ["train.py", "--epochs", "3", "--how", "4"]' in output
    refused = cli("run", "train.py", "--epochs", 3, status=2).stderr
    assert "must follow --. Write: train.py -- --epochs 3" in refused
