"""Guide: values that are only passed on, and values that a function reports while it runs."""

import skyward as sky


@sky.function
def train(steps: int) -> int:
    for step in range(steps):
        sky.emit("step", {"step": step, "loss": 1 / (step + 1), "phase": "warm"})
    sky.emit("done")
    return steps


def healthy(info: sky.InstanceInfo) -> bool:
    return True


if __name__ == "__main__":
    with sky.Compute(
        provider=sky.Novita(docker_image=sky.DockerImage.cuda("12.8", ubuntu="24.04")),
        image=sky.Image(metrics=[sky.metrics.GPU(interval=1), sky.MetricSpec("load", "uptime")]),
        options=sky.Options(
            health_checker=sky.HealthChecker(healthy, interval=5), logging=sky.LogConfig(level="DEBUG")
        ),
    ) as compute:
        assert train(2) >> compute == 2
    assert sky.Image() == sky.DEFAULT_IMAGE
