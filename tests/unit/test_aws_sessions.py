"""Sessions with AWS, which are many, and what they share."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("boto3")

from botocore.loaders import JSONFileLoader

from skyward_core.model.errors import UsageError
from skyward_core.providers.aws.boto_calls import AwsAccount, AwsCalls


def test_sessions_read_what_describes_a_service_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (config := tmp_path / "config").write_text("[profile theirs]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    read: list[str] = []
    load = JSONFileLoader.load_file

    def noted(self: JSONFileLoader, path: str) -> Any:
        read.append(path)
        return load(self, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", noted)
    theirs = AwsCalls(AwsAccount(profile="theirs", endpoint="http://127.0.0.1:9"))
    theirs.ec2_endpoint("eu-west-1")
    assert theirs.default_region() == "eu-north-1"
    read.clear()
    ours = AwsCalls(AwsAccount(endpoint="http://127.0.0.1:8"))
    assert ours.ec2_endpoint("eu-west-1") == "http://127.0.0.1:8"
    theirs._reset_session()
    assert theirs.default_region() == "eu-north-1"
    assert theirs.ec2_endpoint("us-east-1") == "http://127.0.0.1:9"
    assert [path for path in read if "ec2" in path] == []
    assert ours._client("ec2", "eu-west-1") is not theirs._client("ec2", "eu-west-1")


def test_a_profile_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="nobodys"):
        AwsCalls(AwsAccount(profile="nobodys")).default_region()
