"""The policy in the documentation is that of the calls which the code makes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("boto3")
DOCS = Path(__file__).parents[2] / "docs" / "where" / "aws.md"


def test_the_documentation_s_policy_is_what_the_code_needs() -> None:
    from tests.aws.policy import policy

    (shown,) = re.findall(r"^```json\n(.*?)^```$", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    needed = policy()
    assert json.loads(shown) == needed, "python -m tests.aws.policy prints it"
    allowed = {action for each in needed["Statement"] for action in each["Action"]}
    assert {"ec2:RunInstances", "ec2:TerminateInstances", "ec2:DescribeInstances"} <= allowed
    for each in needed["Statement"]:
        ends = [action for action in each["Action"] if ":Delete" in action or ":Terminate" in action]
        assert not ends or "aws:ResourceTag/skyward:pool" in each["Condition"]["StringLike"]
