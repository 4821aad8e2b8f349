"""How hypothesis runs here: no deadlines (the machines are noisy), repeatable in CI."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tamis",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
settings.load_profile("tamis")
