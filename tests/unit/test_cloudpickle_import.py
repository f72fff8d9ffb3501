"""What cloudpickle is imported without is whole for whoever asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

AFTERWARDS = """
from skyward_core.tasks.function_pickling import cloudpickle
print(sorted({"platform", "uuid"} & set(sys.modules)))
import cloudpickle as again, platform, uuid
from uuid import uuid4
inner = again.cloudpickle
print(again is cloudpickle, type(platform) is type(uuid) is type(sys), uuid4 is uuid.uuid4)
print(inner.uuid.UUID is uuid.UUID, inner.platform.system() == platform.system())
print(inner.PYPY == (platform.python_implementation() == "PyPy"))
class Own:
    size = 3
print(cloudpickle.loads(cloudpickle.dumps(Own)).size)
"""


@pytest.mark.parametrize("before", ["", "import platform, uuid\n", "import cloudpickle\n"])
def test_platform_and_uuid_come_when_somebody_asks(before: str) -> None:
    script = f"import sys\n{before}{AFTERWARDS}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = "['platform', 'uuid']" if before else "[]"
    assert done.stdout.splitlines() == [loaded, "True True True", "True True", "True", "3"]
