"""Process of the simulated EC2. ``python -m tests.aws.child`` prints its address and runs until its input ends."""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import tempfile
import threading

from .images import for_moto


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--boot", type=float, default=0.05)
    given = parser.parse_args()
    gc.disable()  # what is loaded stays
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its parent says when it is over
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as images:
        json.dump(for_moto(), images)
        images.flush()
        # Read by moto as it is imported. No names of clouds are looked up here.
        os.environ.update(MOTO_AMIS_PATH=images.name, AWS_EC2_METADATA_DISABLED="true")
        _serve(given.simulated, given.boot)
    os._exit(0)  # nothing is left to end, and taking all of moto apart takes as long as loading it


def _serve(simulated: bool, boot: float) -> None:
    from moto.backends import get_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    from .control import Control
    from .front import Front
    from .semantics import install
    from .world import World

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept, as EC2 keeps them

        def log(self, type: str, message: str, *args: object) -> None: ...

    def forget() -> None:
        for service in ("ec2", "sts", "iam"):
            get_backend(service).reset()  # type: ignore[call-overload]

    world = World(simulated, boot, forget)
    install(world)
    gc.freeze()
    gc.enable()
    front = Front(world, DomainDispatcherApplication(create_backend_app), Control(world))
    server = make_server("127.0.0.1", 0, front, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True, name="bed-front").start()
    try:
        print(json.dumps({"port": server.server_port}), flush=True)
        sys.stdin.buffer.readline()  # or its end, where whoever started us has died
    finally:
        server.shutdown()
        world.close()


if __name__ == "__main__":
    main()
