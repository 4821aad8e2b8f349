"""Settings: RocketMQ's names and ours, units, and what may change while a broker runs."""

import asyncio

import pytest

from tamis.broker.config import BrokerConfig, Settings, _settings
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


def test_every_number_has_bounds() -> None:
    for name, kind, _ in _settings():
        if kind in (int, float):
            for value in ("-1e300", "1e300") if kind is float else (f"-{10**30}", f"{10**30}"):
                with pytest.raises(ConfigError, match=f"{name} = .*: it takes .* [0-9]"):
                    BrokerConfig.from_text({name: value})


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"flushIntervalCommitLog": "1e300"}, "flush_interval = 1e.297: it takes more than 0, up"),
        ({"regionId": 'a","code":1,"b":"'}, "region = .*without quotes"),
        ({"regionId": "a\\"}, "region"),
        ({"regionId": "a\nflushDiskType=ASYNC_FLUSH"}, "region"),
        ({"regionId": "a" * 129}, "up to 128 characters"),
        ({"maxMessageSize": "999999999999"}, "max_message_size"),
        ({"transactionCheckMax": "-1"}, "transaction_check_max"),
    ],
)
def test_a_change_is_checked_as_a_start_is(values: dict[str, str], part: str) -> None:
    settings = Settings(BrokerConfig())
    with pytest.raises(ConfigError, match=part):
        settings.change(values)
    with pytest.raises(ConfigError, match=part):
        BrokerConfig.from_text(values)
    assert settings.config == BrokerConfig()


def test_a_long_sleep_is_cut_short_when_its_setting_is_changed() -> None:
    async def scene() -> None:
        settings = Settings(BrokerConfig(flush_interval=3600))
        sleeping = asyncio.create_task(settings.sleep(lambda config: config.flush_interval))
        await asyncio.sleep(0)
        settings.change({"regionId": "Other"})  # of no concern to it
        await asyncio.sleep(0)
        assert not sleeping.done()
        settings.change({"flushIntervalCommitLog": "1"})
        async with asyncio.timeout(10):
            await sleeping

    asyncio.run(scene())


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
