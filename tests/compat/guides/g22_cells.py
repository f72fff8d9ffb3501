# %% [markdown]
# As exported from a notebook: the pool is entered by hand, cells define functions anew.
# %%
import math

import skyward as sky
from skyward.accelerators import A100

# %%
compute = sky.Compute(provider=sky.TensorDock(tier=1), accelerator=A100(count=8), ttl=int(sky.time.minutes(30)))
compute.__enter__()
# %%
RATE = 0.25


@sky.function
def decay(x):
    return math.exp(-RATE * x)


assert decay(0) >> compute == 1
# %%
RATE = 0.5  # the next call sees it
assert abs((decay(2) >> compute) - math.exp(-1)) < 1e-9


# %%
@sky.function
def decay(x):
    return [math.exp(-RATE * each) for each in x]


assert decay([0, 0]) >> compute == [1, 1]
# %%
compute.__exit__(None, None, None)
