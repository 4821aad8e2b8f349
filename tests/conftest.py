"""How hypothesis runs here: no deadlines (the machines are noisy), repeatable in CI. What a plain
`make test` leaves to `.ci/run`. And which tests go together when several workers share them
(`pytest -n 2`, pytest-xdist): most of a test is waiting."""

import logging
import os
import re
import sys
from importlib.metadata import version
from typing import Any

import pytest
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

# A broker that still compiles in the background is slower, and the machine busier: not in tests,
# but for `test_plain_loops.py`, which runs some of them with no loop compiled at all.
os.environ.setdefault("TAMIS_SPARK_KEEP", "off")
if os.environ.setdefault("TAMIS_LOOPS", "wait") == "plain":
    from tamis.filter.engines import tiers

    tiers.run_plain()

IS_REQUIRED = os.environ.get("TAMIS_INTEROP") == "required"
LONGEST = (
    "test_assign",
    "test_audit",
    "test_client_acl",
    "test_clients",
    "test_cluster",
    "test_code_consumer",
    "test_code_filters",
    "test_cpp_client",
    "test_cutover",
    "test_disagreement_variations",
    "test_doctor",
    "test_explain",
    "test_filter_engine",
    "test_inconsistent_subscriptions",
    "test_js_client",
    "test_mixed",
    "test_mixed_groups",
    "test_mqadmin",
)
collect_ignore = [] if IS_REQUIRED else [f"interop/{name}.py" for name in LONGEST]

# A plain `make test` has of Spark what needs no driver, and a few tests that do; `.ci/run` and
# `make spark` have all.
OF_SPARK = (
    *("spark/test_image", "spark/test_yarn"),
    *("spark/test_columns", "spark/test_connect", "spark/test_declarative", "spark/test_kill"),
    *("spark/test_security", "spark/test_session", "spark/test_source", "spark/test_standalone"),
    *("spark/test_metrics", "spark/test_sql_functions", "spark/test_sql_tables"),
    *("spark/test_stream",),
    *("spark/test_writer", "pipeline/test_archive", "pipeline/test_backtest"),
    *("pipeline/test_audit", "pipeline/test_audit_code"),
    *("pipeline/test_causes", "pipeline/test_columns", "pipeline/test_slow_start"),
    *("spark/test_code", "pipeline/test_replay", "pipeline/test_route"),
    *("sinks/test_jdbc", "sinks/test_kafka", "sinks/test_object_store", "sinks/test_tables"),
)
collect_ignore += [] if IS_REQUIRED else [f"{name}.py" for name in OF_SPARK]

# What else takes long, and is seldom what a change breaks.
LONG_TESTS = (
    "cli/test_demo.py::test_apaches_java_client_gets_the_same",
    "cli/test_demo.py::test_rocketmqs_cpp_client_gets_the_same",
    "cli/test_demo.py::test_the_demo_ends_with_the_pipeline",
    "client/test_failures.py",
    "sandbox/test_ordinary_user.py",
    "test_examples.py::test_the_story_of_lost_messages",
    "test_examples.py::test_a_document_shows_what_its_programs_print[spark.md]",
    "test_plain_loops.py::test_tests_of_loops_pass_without_compiled_ones",
    "test_hostile.py::test_under_limits_of_the_system_nothing_acknowledged_is_lost",
)

# Tests of one group are run by one worker, one after the other.
BY_LINE = (  # these start servers for each line of RocketMQ's
    "client/test_failures",
    "interop/test_filter_engine",
    "interop/test_mixed_groups",
)
OWN_DRIVER = ("spark/test_connect", "spark/test_declarative", "spark/test_standalone")
# Groups that take longest are begun first: a worker that is done early finds short ones to do.
FIRST = (
    "spark",
    "sinks",
    "interop/test_clients",
    "interop/test_mixed_groups 4.9",
    "client 5.3",
    "client 4.9",
    "client/test_failures 5.3",
    "client/test_failures 4.9",
    "client/test_failures",
    *OWN_DRIVER,
    "interop/test_filter_engine 4.9",
    "interop/test_filter_engine 5.3",
    "interop/test_mixed_groups 5.3",
    "interop/test_assign",
    "filter/test_engines_agree",
    "store/test_crashes",
)
LAST = "broker/test_connections"  # it is the busiest: few others are left to suffer


def group_of(nodeid: str) -> str:
    """That of its file, if nothing costly is shared with others: one driver serves all tests of
    Spark, another those of sinks, one cluster of each line of RocketMQ's those of the client."""
    file, _, test = nodeid.removeprefix("tests/").partition(".py::")
    folder = file.partition("/")[0]
    line = re.search(r"[\[-](4\.9|5\.3)[-\]]", test)
    if folder in ("spark", "pipeline") and file not in OWN_DRIVER:
        return "spark"
    if folder == "sinks":
        return "sinks"
    if line and file in BY_LINE:
        return f"{file} {line[1]}"
    return f"client {line[1]}" if line and folder == "client" else file


def _turn(group: str) -> int:
    if group in FIRST:
        return FIRST.index(group)
    return len(FIRST) + (group == LAST)


def _is_asked_for(config: pytest.Config, name: str) -> bool:
    file = name.partition("::")[0]
    return any(file in given for given in config.args)


@pytest.hookimpl(trylast=True)  # within a group, in the order that pytest chose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not IS_REQUIRED:
        longs = tuple(f"tests/{name}" for name in LONG_TESTS if not _is_asked_for(config, name))
        items[:] = [item for item in items if not item.nodeid.startswith(longs)]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(group_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Two processes that compile at once could spoil each other's index of what is compiled."""
    if version("pyspark").startswith("4.1."):  # it leaves sockets to the garbage collector
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(config.rootpath / ".pytest_cache" / f"numba-{worker}")


def pytest_report_header() -> list[str]:
    if IS_REQUIRED:
        return []
    left_out = [*(f"interop/{name}" for name in LONGEST), *OF_SPARK, *LONG_TESTS]
    return [f"left to .ci/run (TAMIS_INTEROP=required): {', '.join(left_out)}"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """pytest adds its handler to loggers that do not propagate, and those of PySpark make a handler
    that is added write JSON, for all tests from then on: `caplog.text` would be another."""
    pyspark = sys.modules.get("pyspark.logger.logger")
    if pyspark is not None:
        pyspark.PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[attr-defined]
