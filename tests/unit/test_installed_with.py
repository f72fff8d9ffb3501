"""What packages an interpreter has is its own to say: one that says nothing, or nonsense, holds nobody up."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward_core.node.bootstrap import image_environment


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("exec sleep 300", "has not said within 0.2 s"),
        ("echo 5", "cannot be looked at"),
        ("echo '[1, 2]'", "cannot be looked at"),
        ("echo no; exit 1", "cannot be looked at"),
        ("exit 0", "cannot be looked at"),
    ],
)
def test_an_interpreter_that_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, words: str
) -> None:
    monkeypatch.setattr(
        image_environment, "ANSWER_TIMEOUT", 0.2 if "sleep" in says else image_environment.ANSWER_TIMEOUT
    )
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o755)
    with pytest.raises(image_environment.EnvironmentFailed, match=words):
        image_environment.list_installed_packages(str(python))
    if "sleep" in says:
        with pytest.raises(image_environment.EnvironmentFailed, match=words):
            image_environment.find_unmet_requirements(str(python), ["six"])
