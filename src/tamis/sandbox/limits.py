"""How much a filter in code may use."""

from dataclasses import dataclass, fields

from ..errors import ConfigError

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of each filter. Raising one lets a bad filter hurt others for longer, or more."""

    wall: float = 1.0
    """Seconds that a batch may take. A caller waits for up to `restarts` times as long."""
    load_wall: float = 5.0
    """Seconds that loading the class and making its object may take."""
    cpu: float = 2.0
    """Seconds of CPU that a batch may take, all threads of the filter together."""
    memory: int = 512 * 2**20
    """Bytes of memory for the filter's own data: private memory that can be written to, beyond
    that of an empty child."""
    processes: int = 8
    """Threads, with the one that judges; Arrow's `filter` and `group_by` need up to 7. Processes
    of its own a filter never has."""
    output: int = 64 * 2**10
    """Bytes of an answer beyond a byte a message: the reasons why messages failed."""
    batch_bytes: int = 64 * 2**20
    """Bytes of a batch as it is sent; a larger one is cut. Memory that is shared with the child,
    and given back after a large batch."""
    restarts: int = 16
    """How often the child may be replaced for one batch, before the rest of the batch fails."""
    longest_rest: float = 60.0
    """Seconds. After each batch that broke a limit a filter rests, twice as long each time."""

    def __post_init__(self) -> None:
        smallest = {"memory": 16 * 2**20, "output": 4096, "batch_bytes": 2**16, "processes": 1}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ConfigError(f"{field.name} = {value!r}: it takes a number")
            least = smallest.get(field.name)
            if least is not None and (not isinstance(value, int) or value < least):
                raise ConfigError(f"{field.name} = {value!r}: it takes an integer from {least} on")
            if not 0 < value < 2**40:
                raise ConfigError(f"{field.name} = {value!r}: it must be more than 0")
        if self.restarts != int(self.restarts):
            raise ConfigError(f"restarts = {self.restarts!r}: it takes an integer")
        if self.batch_bytes > 2**30 or self.output > 2**20:
            raise ConfigError("batch_bytes may be 1 GiB at most, and output 1 MiB")
