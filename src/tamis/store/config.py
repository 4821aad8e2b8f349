"""How a store is kept. Defaults are RocketMQ's, save `flush`: ours waits for the disk."""

from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError
from ..filter.bloom import BloomFilter
from ..message import Host
from .dispatch import DELAY_LEVELS, parse_delay_levels
from .format import EXT_HEAD_SIZE, EXT_TAIL, UNIT_SIZE

__all__ = ["StoreConfig"]


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """File sizes must stay as they were for the life of a store directory."""

    # Behaviour.
    flush: Literal["sync", "async"] = "sync"  # see `Store.append`
    extensions: bool = False  # consume queue extensions; costs 20 bytes a message and more
    bitmaps: bool = False  # which groups' SQL matched, in the extensions; costs their evaluation
    delay_levels: str = DELAY_LEVELS
    keep_hours: float = 72.0  # log files older than that are removed
    clean_ratio: float = 0.85  # of the disk in use: above it old files go whatever their age
    full_ratio: float = 0.90  # above it appends are refused
    max_body: int = 4 * 2**20  # bytes; larger messages hold up others behind them
    store_host: Host = Host(b"\x7f\0\0\1", 10911)  # noqa: RUF009  # goes into message ids
    bloom_error_percent: int = 20
    bloom_groups: int = 32

    # Sizes, in bytes unless said otherwise.
    log_file_size: int = 2**30
    queue_file_size: int = 6_000_000  # 300,000 messages
    extension_file_size: int = 48 * 2**20
    index_slots: int = 5_000_000  # numbers; an index file takes 4 a slot and 20 an entry
    index_entries: int = 20_000_000
    open_files: int = 0  # mappings and descriptors held; 0: a fourth of what the process may have

    def __post_init__(self) -> None:
        if self.flush not in ("sync", "async"):
            raise ConfigError(f"flush = {self.flush!r}: it takes 'sync' or 'async'")
        if self.queue_file_size <= 0 or self.queue_file_size % UNIT_SIZE:
            raise ConfigError(
                f"queue_file_size = {self.queue_file_size}: it takes a multiple of {UNIT_SIZE}"
            )
        for name in ("log_file_size", "extension_file_size", "index_slots", "index_entries"):
            if getattr(self, name) < 64:
                raise ConfigError(f"{name} = {getattr(self, name)}: it takes 64 or more")
        for name in ("clean_ratio", "full_ratio"):
            if not 0.1 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} = {getattr(self, name)}: it takes 0.1 to 1.0")
        parse_delay_levels(self.delay_levels)
        bloom = BloomFilter(self.bloom_error_percent, self.bloom_groups)
        if self.extension_file_size < EXT_HEAD_SIZE + bloom.bits // 8 + EXT_TAIL:
            raise ConfigError(
                f"extension_file_size = {self.extension_file_size}: a unit does not fit"
            )
