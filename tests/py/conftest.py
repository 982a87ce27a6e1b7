"""Settings of all Python tests: hypothesis repeats the same examples at every run."""

import numpy as np
import pytest

try:
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "dvm",
        derandomize=True,
        deadline=None,
        max_examples=60,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile("dvm")
except ImportError:  # pragma: no cover
    pass


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


@pytest.fixture
def fresh():
    """torch.compile as in a new process, before the test and behind it; the same random numbers."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
