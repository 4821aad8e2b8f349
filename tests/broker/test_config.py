"""Settings: RocketMQ's names and ours, units, and what may change while a broker runs."""

import pytest

from tamis.broker.config import BrokerConfig, Settings
from tamis.errors import ConfigError


def test_a_setting_is_known_by_both_names_each_in_its_own_unit() -> None:
    theirs = BrokerConfig.from_text(
        {
            "enablePropertyFilter": "false",
            "transactionTimeOut": "1500",
            "diskSpaceCleanForciblyRatio": "0.8",
            "flushDiskType": "SYNC_FLUSH",
        }
    )
    ours = BrokerConfig.from_text(
        {
            "sql_filters": "false",
            "transaction_timeout": "1.5",
            "clean_ratio": "0.8",
            "flush": "sync",
        }
    )
    assert theirs == ours
    assert ours.transaction_timeout == 1.5


def test_what_is_shown_reads_back_as_it_was() -> None:
    config = BrokerConfig(sql_filters=False, transaction_timeout=2.5, clean_ratio=0.8, flush="sync")
    shown = config.shown()
    assert shown["transactionTimeOut"] == "2500"
    assert shown["flushDiskType"] == "SYNC_FLUSH"
    assert BrokerConfig.from_text(shown) == config


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"nonsense": "1"}, "nonsense: there is no such setting"),
        ({"sql_filters": "maybe"}, "sql_filters = 'maybe': it takes true or false"),
        ({"port": "x"}, "port = 'x': it takes a whole number"),
        ({"flush": "later"}, "flush = 'later': it takes async or sync"),
        ({"port": "70000"}, "port = 70000: it takes 0 to 65535"),
        ({"permission": "9"}, "permission = 9"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(values: dict[str, str], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        BrokerConfig.from_text(values)


def test_a_running_broker_changes_what_it_can_and_refuses_the_rest() -> None:
    settings = Settings(BrokerConfig())
    told: list[tuple[bool, bool]] = []
    settings.on_change = lambda old, new: told.append((old.sql_filters, new.sql_filters))
    settings.change({"enablePropertyFilter": "false", "listenPort": "10911"})
    assert told == [(True, False)]
    with pytest.raises(ConfigError, match="mappedFileSizeCommitLog: it can't be changed"):
        settings.change({"mappedFileSizeCommitLog": "4096", "enablePropertyFilter": "true"})
    assert settings.config.sql_filters is False


def test_bitmaps_bring_the_extensions_they_lie_in() -> None:
    assert BrokerConfig(bitmaps=True).extensions
