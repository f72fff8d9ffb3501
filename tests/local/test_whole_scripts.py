"""Whole scripts by ``python -m skyward_core``, and the packaged examples."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from tests.support.child import Child
from tests.support.cli import EXAMPLES, PATIENCE, Cli

NOT_INSTALLED = "torch._dynamo"  # what training uses of it has a stand-in


class TestModule:
    """``python -m skyward_core``."""

    @staticmethod
    def run(cli: Cli, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "skyward_core", *map(str, arguments)],
            cwd=cli.folder, env=cli.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip

    def test_a_whole_script_runs_with_its_pools(self, cli: Cli) -> None:
        cli.write("older.py", "import skyward as sky\ndef rank(): return sky.instance_info().rank\n")
        cli.write(
            "whole.py",
            "import sys\nimport skyward as sky\nimport neighbour, older\n"
            "@sky.function\ndef f(x):\n"
            "    import skyward.errors\n"
            "    return older.rank(), neighbour.WORD, x\n"
            "if __name__ == '__main__':\n"
            "    with sky.Compute(provider=None, nodes=2) as compute:\n"
            "        print(f(sys.argv[1:]) @ compute)\n",
        )
        done = self.run(cli, "--provider", "local", "whole.py", "--lr", "3")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{[(rank, 'next door', ['--lr', '3']) for rank in range(2)]}\n"
        assert cli.pools() == {}

    @pytest.mark.proof("1 s of a processor", after=1)
    @pytest.mark.parametrize("options", [(), ("-m", "skyward_core")], ids=["python", "skyward_core"])
    def test_ranks_of_a_script_elsewhere_work_in_its_folder(self, cli: Cli, options: tuple[str, ...]) -> None:
        script = cli.write(
            "where.py",
            "import os\nimport skyward_core as sky\n@sky.function\ndef f(): return os.getcwd()\n"
            "with sky.Compute(provider=sky.Local(), nodes=1) as compute:\n    print(f() >> compute)\n",
        )
        (elsewhere := cli.folder / "elsewhere").mkdir()
        for folder, expected in ((elsewhere, cli.folder), (cli.folder.parent, cli.folder.parent)):
            done = subprocess.run(
                [sys.executable, *options, str(script)],
                cwd=folder, env=cli.env, capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
            assert done.stdout == f"{expected}\n", done.stderr

    @pytest.mark.proof("1 s of a processor", after=1)
    @pytest.mark.parametrize("body, status", [("raise ValueError('x')", 1), ("import sys; sys.exit(7)", 7)])
    def test_a_failed_run_gives_its_status(self, cli: Cli, body: str, status: int) -> None:
        cli.write(
            "fails.py",
            f"import skyward_core as sky\n@sky.function\ndef f():\n    {body}\n"
            "with sky.Compute() as compute:\n    f() >> compute\n",
        )
        done = self.run(cli, "fails.py")
        assert done.returncode == status
        assert "RunError: f failed" in done.stderr
        assert "__main__.py" not in done.stderr
        assert cli.pools() == {}

    @pytest.mark.proof("1 s of a processor")
    def test_errors_and_exits_of_the_script_itself(self, cli: Cli) -> None:
        cli.write("own.py", "import sys\nif sys.argv[1:]: sys.exit(int(sys.argv[1]))\n1 / 0\n")
        assert self.run(cli, "own.py", 5).returncode == 5
        failed = self.run(cli, "own.py")
        assert failed.returncode == 1
        assert failed.stderr.splitlines()[0] == "Traceback (most recent call last):"
        assert 'File "own.py", line 3' in failed.stderr.splitlines()[1]
        missing = self.run(cli, "missing.py")
        assert (missing.returncode, missing.stderr) == (2, "error: script missing.py does not exist\n")
        assert self.run(cli, "--provider", "locl", "own.py").returncode == 2

    def test_a_terminated_script_takes_its_pool_down(self, cli: Cli) -> None:
        cli.write(
            "stuck.py",
            "import signal\nimport skyward_core as sky\n"
            "with sky.Compute(nodes=1, name='stuck') as compute:\n    print('up', flush=True)\n    signal.pause()\n",
        )
        command = [sys.executable, "-m", "skyward_core", "stuck.py"]
        with Child(command, cwd=cli.folder, env=cli.env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 143
        assert cli.pools() == {}

    @pytest.mark.proof("1 s of a processor")
    def test_a_script_goes_on_when_its_terminal_closes_under_nohup(self, cli: Cli) -> None:
        cli.write(
            "long.py",
            "import sys\nimport skyward_core as sky\n"
            "with sky.Compute() as compute:\n    print('up', flush=True)\n    print(sys.stdin.readline())\n",
        )
        command = ["nohup", sys.executable, "-m", "skyward_core", "long.py"]
        pipe = subprocess.PIPE
        with Child(command, cwd=cli.folder, env=cli.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGHUP)
            assert process.communicate("went on\n", timeout=PATIENCE)[0].strip() == "went on"
            assert process.returncode == 0


class TestExamples:
    """The packaged examples, launched as a first-time user would."""

    @pytest.mark.proof("3 s of a processor")
    def test_ddp_trains_one_model_on_all_ranks(self, cli: Cli) -> None:
        options = ("--nodes", 2, "--plugin", "torch", "--arg", "epochs=3", "--arg", "samples=2048")
        done = cli("run", EXAMPLES / "ddp.py", *options, "--json")
        found = json.loads(done.stdout)
        values = [rank["value"] for rank in found["ranks"]]
        assert [value["rank"] for value in values] == [0, 1]
        assert values[0]["weights"] == values[1]["weights"]
        assert found["aggregate"]["loss"]["std"] == 0
        losses = [float(x) for x in re.findall(r"^r000\| epoch \d/3 loss=([\d.]+)", done.stderr, re.MULTILINE)]
        assert len(losses) == 3
        assert losses == sorted(losses, reverse=True)
        assert losses[-1] < losses[0]
        assert losses[-1] == pytest.approx(values[0]["loss"], abs=1e-4)

    @pytest.mark.proof("1 s of a processor")
    def test_ddp_runs_without_a_pool(self) -> None:
        code = "import ddp; print(ddp.train.local(epochs=1, samples=64)['rank'])"
        done = subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "0"

    @pytest.mark.proof("1 s of a processor")
    def test_streaming_yields_on_every_rank(self, cli: Cli) -> None:
        arguments = ("--nodes", 2, "--arg", "steps=3", "--arg", "pause=0")
        done = cli("run", EXAMPLES / "streaming.py", *arguments)
        assert len(re.findall(r"^r00\d  n\d    ✓ returned .* 3 items; last {'step': 2", done.stdout, re.MULTILINE)) == 2

    @pytest.mark.proof("1 s of a processor", after=1)
    @pytest.mark.parametrize("first, rank, status", [("raised", 1, 1), ("killed", 2, 137)])
    def test_broken_names_the_root_cause(self, cli: Cli, first: str, rank: int, status: int) -> None:
        options = ("--nodes", 4, "--arg", f"first={first}", "--arg", "after=3.0")
        found = cli.json("run", EXAMPLES / "broken.py", *options, status=status)
        assert found["root_cause"]["rank"] == rank
        outcomes = [each["outcome"] for each in found["ranks"]]
        expected = ["returned", *["collateral"] * 3]
        expected[rank] = "raised" if first == "raised" else "exited"
        assert outcomes == expected
        assert found["ranks"][0]["value"] == "returned before the failures"

    @pytest.mark.proof("1 s of a processor")
    @pytest.mark.parametrize("name, says", [("hello", "= 499999500000"), ("broken", "root cause: rank 1, loss is nan")])
    def test_they_are_scripts_too(self, cli: Cli, name: str, says: str) -> None:
        done = TestModule.run(cli, EXAMPLES / f"{name}.py")
        assert done.returncode == 0, done.stderr
        assert says in done.stdout
