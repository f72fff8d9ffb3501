"""Shell commands as calls: log, exit status, timeout and environment."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skyward_core as sky
from skyward_core.client.launch.job_and_shell_launch import shell_task
from skyward_core.model.specs import Interpreter
from skyward_core.runtime import shell_and_scripts
from tests.support.pool_logs import last_run, log_of
from tests.support.processes import exists
from tests.support.pythons import another_python
from tests.support.sessions import new_session
from tests.support.waiting import wait_until

KEY = "sk-" + "NobodyMayRead" * 2


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sky.Compute]:
    folder = tmp_path_factory.mktemp("shell")
    (folder / "sub").mkdir()
    with sky.Compute(provider=sky.Local(), nodes=2, name="shell", image=sky.Image(workdir=str(folder))) as compute:
        yield compute


def log_text(pool: sky.Compute, rank: int, stream: str = "out") -> str:
    return log_of(pool, last_run(pool), rank, stream).decode()


def failure(call: sky.PendingFunction[None], pool: sky.Compute) -> sky.RunError:
    with pytest.raises(sky.RunError) as caught:
        call @ pool
    return caught.value


def test_shell_command_runs_on_each_rank_with_its_variables(pool: sky.Compute) -> None:
    command = (
        'echo "$SKYPILOT_NODE_RANK/$SKYPILOT_NUM_NODES $SKYPILOT_NUM_GPUS_PER_NODE" $SKYPILOT_NODE_IPS\n'
        "echo $SKYWARD_RANK of $SKYWARD_WORLD_SIZE, $RANK of $WORLD_SIZE >&2\n"
        'test "$SKYPILOT_TASK_ID" = "$SKYWARD_POOL-$SKYWARD_RUN" && command -v python'
    )
    assert sky.shell(command) @ pool == [None, None]
    for rank in range(2):
        assert log_text(pool, rank) == f"{rank}/2 0 127.0.0.1 127.0.0.1\n{Path(sys.executable).parent}/python\n"
        assert log_text(pool, rank, "err") == f"{rank} of 2, {rank} of 2\n"


def test_shell_command_on_one_rank_has_a_world_of_one(pool: sky.Compute) -> None:
    sky.shell("echo $SKYPILOT_NODE_RANK/$SKYPILOT_NUM_NODES $SKYPILOT_NODE_IPS ${RANK-none}") >> pool
    assert "0/1 127.0.0.1 none\n" in (log_text(pool, 0), log_text(pool, 1))


@pytest.mark.parametrize(
    "command, status, words",
    [
        ("exit 7", 7, "ended with status 7"),
        ("kill -9 $$", 137, "was ended by signal 9"),
        ("nonesuch", 127, "ended with status 127"),
    ],
)
def test_exit_status_of_a_shell_command_is_the_outcome_of_its_rank(
    pool: sky.Compute, command: str, status: int, words: str
) -> None:
    error = failure(sky.shell(f"[ $SKYWARD_RANK = 0 ] || {command}"), pool)
    assert error.root_cause.rank == 1
    assert (error.root_cause.outcome, error.root_cause.exit_code) == ("exited", status)
    assert words in str(error) and "sys.exit" not in str(error)


def test_failing_shell_command_stops_other_ranks_and_their_children(pool: sky.Compute) -> None:
    """Processes may end by themselves within the grace, and remaining ones are killed."""
    command = """
trap 'echo put away; exit 0' TERM
if [ $SKYWARD_RANK = 1 ]; then
    while ! [ -e begun ]; do sleep 0.01; done
    exit 3
fi
(trap '' TERM; echo $BASHPID; touch begun; exec sleep 1000) &
wait
"""
    assert failure(sky.shell(command), pool).root_cause.rank == 1
    pid, words = log_text(pool, 0).split("\n", 1)
    assert words == "put away\n"
    wait_until(lambda: not exists(int(pid)), what="the end of what the command left")


def test_timeout_stops_a_shell_command(pool: sky.Compute) -> None:
    with pytest.raises(sky.RunError, match=r"sleep failed: .* longer than its timeout of 0\.2 s"):
        sky.shell("sleep 1000", timeout=0.2) >> pool


def test_ranks_are_usable_after_a_failed_shell_command(pool: sky.Compute) -> None:
    failure(sky.shell("exit 1"), pool)
    assert sky.shell("true") @ pool == [None, None]


def test_shell_command_gets_variables_and_working_folder(pool: sky.Compute) -> None:
    sky.shell("pwd; echo $LR $OUT", env={"LR": 0.1, "OUT": Path("a b")}, cwd="sub") >> pool
    assert "/sub\n0.1 a b\n" in log_text(pool, 0) + log_text(pool, 1)
    with pytest.raises(sky.RunError, match=r"folder .*/nowhere does not exist on this node"):
        sky.shell("pwd", cwd="nowhere") >> pool


def test_word_list_is_run_as_one_command(pool: sky.Compute) -> None:
    sky.shell(["echo", "a  b", "$HOME", Path("c"), 1]) >> pool
    assert "a  b $HOME c 1\n" in (log_text(pool, 0), log_text(pool, 1))


def test_secrets_of_a_shell_command_are_redacted_and_not_in_arguments(pool: sky.Compute) -> None:
    other = KEY[:-1] + "x"
    command = f"echo $API_KEY {other}\ntr '\\0' ' ' </proc/$$/cmdline"
    sky.shell(command, env={"API_KEY": KEY}, secrets=[other]) >> pool
    shown, arguments = (log_text(pool, 0) or log_text(pool, 1)).splitlines()
    assert shown == f"{'*' * len(KEY)} {'*' * len(other)}"
    assert re.fullmatch(r"\S*sh /dev/fd/\d+ ", arguments)


@pytest.mark.proof("1 s of a processor")
def test_python_in_a_shell_command_is_the_interpreter_of_the_rank(tmp_path: Path, home: Path) -> None:
    known = another_python()
    named = tmp_path / "bin" / "python{}.{}".format(*known.version.split("."))
    named.parent.mkdir()
    named.symlink_to(known.path)
    named.with_name("python3").symlink_to(sys.executable)  # the host's own
    chosen = Interpreter(str(named), known.prefix, known.version, "--python")
    options = sky.Options(console=False)
    text = f"for each in python python3; do $each -c 'import sys; print(sys.version)' >> {tmp_path}/said; done"
    with new_session() as session:
        session.create(sky.PoolSpec(name="named", provider=sky.Local(), interpreter=chosen, options=options)).result(60)
        run = session.launch("named", shell_task([text], {}, {})).result(60)
        assert session.wait("named", run.id).result(60).state == "done"
        assert session.tear_down("named").result(60).ok
    lines = (tmp_path / "said").read_text().splitlines()
    assert [line.split()[0] for line in lines] == [known.version] * 2


def test_invalid_shell_command_is_rejected(pool: sky.Compute) -> None:
    for wrong, words in (
        ({"command": "  \n"}, "empty"),
        ({"command": "a\0b"}, "zero byte"),
        ({"command": ""}, "empty one"),
        ({"command": []}, "empty one"),
        ({"command": ["", "a"]}, "its program, is empty"),
        ({"command": None}, "a str or a list of words, got None$"),
        ({"command": b"ls"}, r"got bytes. Pass a str \(.decode\(\)\)"),
        ({"command": Path("run.sh")}, r"got PosixPath. Pass a list, \[path\]"),
        ({"command": {"ls": "-l"}}, "got dict$"),
        ({"command": 1}, "got int$"),
        ({"command": ["ls", None]}, "word 2 of the command must be a str, got NoneType: None"),
        ({"command": ["ls", b"a"]}, "word 2 of the command must be a str, got bytes: b'a'"),
        ({"command": "a", "env": {"A": b"1"}}, "A is bytes"),
        ({"command": "a", "env": {"A": None}}, "A is None. Leave it out, or pass an empty string$"),
        ({"command": "a", "env": {"A B": "1"}}, "'A B' is not a variable name"),
        ({"command": "a", "env": {"A": "\0"}}, "zero byte"),
        ({"command": "a", "secrets": "one"}, "list"),
    ):
        with pytest.raises(sky.UsageError, match=words):
            sky.shell(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than 0"):
        sky.shell("a", timeout=0)


@pytest.mark.parametrize(
    "command, name",
    [
        ("nvidia-smi -L", "nvidia-smi"),
        ("# what it is\nLR=0.1 /usr/bin/python train.py", "python"),
        ("export API_KEY=abcdef", "export"),
        ("$(echo sk-abcdef)", "shell"),
        (["torchrun", "a b.py"], "torchrun"),
    ],
)
def test_shell_call_is_named_after_its_program(command: str, name: str) -> None:
    assert sky.shell(command).name == name
    assert sky.shell(command, name="mine").name == "mine"


class Own(SystemExit):
    """Definitions of a script with the same names as ours."""

    words = 7

    def __call__(self) -> int:
        if self.secrets != [7]:
            return 0
        raise self

    secrets = [7]  # noqa: RUF012  such as people write


def test_object_of_a_script_resembling_a_shell_call_is_not_one(pool: sky.Compute) -> None:
    with pytest.raises(sky.RunError, match=r"called sys\.exit\(3\) before it returned"):
        sky.PendingFunction(Own(3)) >> pool


def test_interpreter_in_a_folder_with_a_colon_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/env/14:55/bin/python")
    with pytest.raises(OSError, match="/env/14:55/bin cannot be an entry of PATH"):
        shell_and_scripts._python_folders("")
