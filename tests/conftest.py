"""How hypothesis runs here: no deadlines (the machines are noisy), repeatable in CI. And what a
plain `make test`, which has ten minutes, leaves to `.ci/run`."""

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

IS_REQUIRED = os.environ.get("TAMIS_INTEROP") == "required"
LONGEST = (
    "test_cluster",
    "test_cpp_client",
    "test_filter_engine",
    "test_js_client",
    "test_mixed",
    "test_mixed_groups",
    "test_mqadmin",
)
collect_ignore = [] if IS_REQUIRED else [f"interop/{name}.py" for name in LONGEST]


def pytest_report_header() -> str | None:
    if IS_REQUIRED:
        return None
    return f"interop: {', '.join(LONGEST)} run with TAMIS_INTEROP=required only"
