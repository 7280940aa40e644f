"""What all tests share: how hypothesis searches, whose cores are whose, and where a test stands."""

import os

import pytest
from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # as many test processes as cores: one thread each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same cases on every machine in CI; new ones every night (`make test-nightly`).
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path, monkeypatch):
    """What a test writes without saying where (a Trainer's checkpoints) lands in no one's way."""
    monkeypatch.chdir(tmp_path)
