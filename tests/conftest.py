"""What all tests share: how hypothesis searches, here and at night."""

import os

from hypothesis import HealthCheck, settings

# The same cases on every machine in CI; new ones every night (`make test-nightly`).
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
