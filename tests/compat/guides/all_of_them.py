"""Runner of guide scripts, one after another in this process, because starting a process takes longer than a guide."""

import runpy
import sys
import traceback

from skyward_core import providers
from skyward_core.runtime import import_hooks_gc_pause_and_alias

if __name__ == "__main__":
    import_hooks_gc_pause_and_alias.install()
    providers.provider_override = "local"
    failed = 0
    for path in sys.argv[1:]:
        try:
            runpy.run_path(path, run_name="__main__")
        except Exception:  # noqa: BLE001  shown, and counted
            failed += 1
            print(f"FAILED {path}\n{traceback.format_exc()}", file=sys.stderr)
        else:
            print(f"RAN {path}")
    sys.exit(failed)
