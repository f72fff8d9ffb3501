"""Guide: errors: the function's own exception, a timeout, an argument that cannot be pickled, an invalid call."""

import threading

import skyward as sky


@sky.function
def half(x: int) -> int:
    if x % 2:
        raise ValueError(f"{x} is odd")
    return x // 2


@sky.function(timeout=0.2)
def slow() -> None:
    import time

    time.sleep(60)


if __name__ == "__main__":
    with sky.Compute(provider=sky.TensorDock(), options=sky.Options(grace=0)) as compute:
        assert half(4) >> compute == 2
        for call, expected in (
            (half(3), ValueError),
            (half(3), sky.RunError),
            (slow(), sky.RunError),
            (half(threading.Lock()), sky.NotPicklableError),
            (half(), TypeError),
        ):
            try:
                call >> compute
            except expected as error:
                assert str(error)
            else:
                raise AssertionError(f"{call} went well")
        assert half(8) >> compute == 4
