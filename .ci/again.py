"""Rerun the failed tests of a suite run one by one, to tell flaky tests from broken ones.

``python .ci/again.py REPORT FLAKY``: REPORT is the run's JUnit file; pytest's cache names the failed tests. A test that
passes alone is flaky: its name is written to the file FLAKY, which CI prints at its end. The exit status is 1 if a test
fails again, if more than two tests are flaky that `.ci/flaky.txt` does not list, or if the run ended without a failed
test (because it crashed or was interrupted).
"""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

NEW_FLAKY_AT_MOST = 2
TRIED_AT_MOST = 10  # more failures than these have a common cause
CACHE = Path(".pytest_cache/v/cache/lastfailed")
KNOWN = Path(__file__).with_name("flaky.txt")  # one node id per line; tests/unit/test_ci_again.py keeps it from growing


def main(report: Path, flaky_file: Path) -> int:
    """Rerun each failed test and return the exit status."""
    failed = list(json.loads(CACHE.read_text())) if CACHE.exists() else []
    if not failed or not report.exists():
        print("The run failed without a failed test.", file=sys.stderr)
        return 1
    if len(failed) > TRIED_AT_MOST:
        print(f"{len(failed)} tests failed: too many to rerun.", file=sys.stderr)
        return 1
    messages = failure_messages(report)
    flaky = [test for test in failed if passes_alone(test, messages)]
    known = KNOWN.read_text("utf-8").split("\n") if KNOWN.exists() else []
    new = [test for test in flaky if test not in known]
    flaky_file.write_text("".join(f"FLAKY: {test}{'' if test in new else ' (known)'}\n" for test in flaky))
    print(f"{len(failed)} tests failed, {len(flaky)} of them passed alone. Fix these next.", flush=True)
    return 0 if len(flaky) == len(failed) and len(new) <= NEW_FLAKY_AT_MOST else 1


def passes_alone(test: str, messages: dict[str, str]) -> bool:
    """Run a test by itself and print the output of both runs."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", test]
    again = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    passed = again.returncode == 0 and " passed" in again.stdout  # a skipped test proves nothing
    print(f"\n===== {'FLAKY' if passed else 'FAILED TWICE'}: {test}")
    print(f"----- in the suite:\n{messages.get(report_name(test), '(no message)')}")
    print(f"----- alone:\n{again.stdout}", flush=True)
    return passed


def failure_messages(report: Path) -> dict[str, str]:
    """Return the messages of failed tests by their names in a JUnit report."""
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # trusted: pytest has just written the file
        texts = [part.text or part.get("message") or "" for part in case if part.tag in ("failure", "error")]
        if texts:
            found[f"{case.get('classname')}.{case.get('name')}"] = "\n".join(texts)
    return found


def report_name(test: str) -> str:
    """Convert a node id, such as ``tests/unit/test_a.py::TestB::test_c[1/2]``, to the name in a JUnit report."""
    path, *names = test.split("::", test.partition("[")[0].count("::"))  # parameters may contain "::"
    return ".".join([path.removesuffix(".py").replace("/", "."), *names])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
