"""Runs once more, each alone, the tests that failed in a run of the suite, and tells flaky tests from broken ones.

``python .ci/again.py REPORT``: REPORT is the run's JUnit file; which tests failed pytest's own cache tells. A test
that passes now is printed as FLAKY, with what both runs said of it. The exit status is 1 if a test failed again, if
more than two were flaky, or if the run ended without a failed test to try (it broke, or was interrupted).
"""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

FLAKY_AT_MOST = 2
TRIED_AT_MOST = 10  # more than that is no accident
CACHE = Path(".pytest_cache/v/cache/lastfailed")


def main(report: Path) -> int:
    """Try each failed test once more, and give the exit status."""
    failed = list(json.loads(CACHE.read_text())) if CACHE.exists() else []
    if not failed or not report.exists():
        print("The run failed without a failed test.", file=sys.stderr)
        return 1
    if len(failed) > TRIED_AT_MOST:
        print(f"{len(failed)} tests failed; none is tried again.", file=sys.stderr)
        return 1
    said = _said(report)
    flaky = [test for test in failed if _passes_alone(test, said)]
    print(f"{len(failed)} tests failed, {len(flaky)} of them passed alone: mend these next.", flush=True)
    return 0 if len(flaky) == len(failed) <= FLAKY_AT_MOST else 1


def _passes_alone(test: str, said: dict[str, str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", test]
    again = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    passed = again.returncode == 0
    print(f"\n===== {'FLAKY' if passed else 'FAILED TWICE'}: {test}")
    print(f"----- beside others:\n{said.get(_name(test), '(nothing was reported)')}")
    print(f"----- alone:\n{again.stdout}", flush=True)
    return passed


def _said(report: Path) -> dict[str, str]:
    """What the run reported of each test that failed, by its name in the report."""
    found: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # our own pytest wrote it
        words = [part.text or part.get("message") or "" for part in case if part.tag in ("failure", "error")]
        if words:
            found[f"{case.get('classname')}.{case.get('name')}"] = "\n".join(words)
    return found


def _name(test: str) -> str:
    """``tests/unit/test_a.py::TestB::test_c[1/2]`` as the report has it: ``tests.unit.test_a.TestB.test_c[1/2]``."""
    path, *names = test.split("::", test.partition("[")[0].count("::"))  # an argument may hold some, too
    return ".".join([path.removesuffix(".py").replace("/", "."), *names])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
