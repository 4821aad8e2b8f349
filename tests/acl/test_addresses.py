"""White addresses; tests/interop/test_acl_oracle.py asks RocketMQ's own code about random ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.acl.addresses import canonical, compile_pattern
from tamis.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        (None, "10.1.2.3", False),
        ("", "10.1.2.3", False),
        ("  ", "10.1.2.3", False),
        ("*", "10.1.2.3", True),
        ("*.*.*.*", "::1", True),
        ("*:*:*:*:*:*:*:*", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.30", False),
        ("10.1.2.3,10.1.2.5", "10.1.2.5", True),
        ("10.1.2.3,10.1.2.5", "10.1.2.4", False),
        ("10.1.2.3,", "10.1.2.3", True),  # Java drops the empty part
        ("10.1.2.{3,5}", "10.1.2.5", True),
        ("10.1.2.{3,5}", "10.1.2.35", False),
        ("10.1.2.*", "10.1.2.255", True),
        ("10.1.2.*", "10.1.20.1", False),
        ("10.1.*.*", "10.1.77.1", True),
        ("10.1.2-5.*", "10.1.5.1", True),
        ("10.1.2-5.*", "10.1.6.1", False),
        ("10.1.2.3-9", "10.1.2.9", True),
        ("10.1.2.3-9", "10.1.2.10", False),
        ("10.1-5.2.3", "10.2.77.88", True),  # what follows a range is not looked at
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("fe80::a", "FE80::A", True),
        ("fe80::{a,b}", "fe80::b", True),
        ("fe80::{a,b}", "fe80::c", False),
        ("fe80::1:*", "fe80::1:77", True),
        ("fe80::1:*", "fe80::2:77", False),
        ("fe80::1:1-ff", "fe80::1:fe", True),
        ("fe80::1:1-ff", "fe80::1:100", False),
        ("fe80::1:1-ff:*", "fe80::1:f0:1234", True),
        ("fe80::1:1-ff:*", "fe80::1:100:1234", False),
        # right after a :: RocketMQ takes the range for one of the third number
        ("fe80::1-ff", "fe80::fe", False),
        ("fe80::1-ff", "fe80:0:fe::1", True),
    ],
)
def test_a_pattern_matches_as_rocketmqs_does(pattern: str | None, host: str, matches: bool) -> None:
    assert compile_pattern(pattern)(canonical(host)) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "localhost",
        "10.1.2",
        "10.1.2.256",
        "10.1.2.03",
        "10.1.2.3,x",
        "10.1.*",
        "10.1.2.-5",
        "10.1.2.9-3",
        "10.1.2.1-256",
        "10.1.2.0-0",  # RocketMQ takes it, and then fails at every request
        "10.{1,2}.3.4",
        "10.1.{2,3}",
        "1-2:*",
        "fe80:*:1",
        "fe80::1-10000",
        "fe80::x",
        "12345::",
    ],
)
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="white address"):
        compile_pattern(pattern)


@given(st.text("0123456789abf.:*-{},/% x", max_size=30), st.ip_addresses().map(str))
def test_no_pattern_and_no_address_fails_otherwise(pattern: str, host: str) -> None:
    try:
        matches = compile_pattern(pattern)
    except ConfigError:
        return
    assert matches(canonical(host)) in (True, False)


def test_an_address_without_its_zone_and_a_mapped_one_are_compared() -> None:
    assert canonical("fe80::1%eth0") == "fe80::1"
    assert canonical("::ffff:10.1.2.3") == "10.1.2.3"
