"""Guide: output of the head only, of some nodes, of none, or into an object of the script."""

import skyward as sky


@sky.function
@sky.stdout(only="head")
@sky.stderr(only=lambda info: info.node == 1)
def talk() -> int:
    import sys

    node = sky.instance_info().node
    print(f"out of {node}")
    print(f"err of {node}", file=sys.stderr)
    return node


@sky.silent
@sky.function
def quiet() -> None:
    print("said by nobody")


@sky.function
def capture_output() -> str:
    from contextlib import redirect_stdout

    lines: list = []
    with redirect_stdout(sky.CallbackWriter(lines.append)):
        print("kept")
    return "".join(lines).strip()


if __name__ == "__main__":
    with sky.Compute(provider=sky.Scaleway(), nodes=2) as compute:
        assert talk() @ compute == [0, 1]
        assert quiet() @ compute == [None, None]
        assert capture_output() >> compute == "kept"
