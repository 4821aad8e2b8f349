"""White addresses: the patterns of RocketMQ's `RemoteAddressStrategyFactory` (4.9.4).

| pattern | matches |
|---|---|
| empty | nobody |
| `*`, `*.*.*.*`, `*:*:*:*:*:*:*:*` | everybody |
| `10.1.2.3`, `fe80::1` | one address |
| `10.1.2.3,10.1.2.4` | each of them |
| `10.1.2.{3,4}`, `fe80::{1,2}` | likewise |
| `10.1.*.*`, `10.1.2-5.*`, `10.1.2.3-9` | a range of the second, third or fourth number |
| `fe80::1:*`, `fe80::1:1-ff`, `fe80::1:1-ff:*` | a range of the last one, or of the one before it |

A range right after `::` is taken for one of another number (`fe80::1-ff` is `fe80:0:1-ff:...`): as
in RocketMQ. Parts after a range are not looked at, as in RocketMQ: `10.1-5.2.3` means `10.1-5.*.*`.
"""

import re
from collections.abc import Callable
from typing import Final

from ..errors import ConfigError

__all__ = ["Pattern", "canonical", "compile_pattern"]

Pattern = Callable[[str], bool]  # of a peer's address, as `canonical` has it

_EVERYBODY: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_V4: Final = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})", re.ASCII)
_PREFIX: Final = re.compile(r"\d{1,3}", re.ASCII)
_ZONE: Final = re.compile(r"[^\s/%]+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_HEX: Final = re.compile(r"[+-]?[0-9a-fA-F]+", re.ASCII)
_SHOWN: Final = 100  # characters of a pattern in an error


def canonical(host: str) -> str:
    """A peer's address as patterns want it: without zone, a mapped v4 address as v4."""
    host = host.partition("%")[0]
    if host.lower().startswith("::ffff:") and _is_v4(host[7:]):
        return host[7:]
    return host


def compile_pattern(text: str | None) -> Pattern:
    """Raises ConfigError."""
    if text is None or not text.strip():
        return lambda host: False
    if text in _EVERYBODY:
        return lambda host: True
    if text.endswith("}"):
        return _any_of(_expand_braces(text))
    if "," in text:
        return _any_of(_split(text, ","))
    if "*" in text or "-" in text:
        return _v6_range(text) if ":" in text else _v4_range(text)
    if not (_is_v4(text) or _is_v6(text)):
        raise _wrong(text)
    wanted = _expand(text, 8)
    return lambda host: _expand(host, 8) == wanted


def _wrong(text: str, why: str = "not an address, nor a pattern of addresses") -> ConfigError:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return ConfigError(f"white address {shown!r}: {why}")


def _any_of(parts: list[str]) -> Pattern:
    wanted = set()
    for part in parts:
        if _is_v4(part):
            wanted.add(part)
        elif _is_v6(part):
            wanted.add(_expand(part, 8))
        else:
            raise _wrong(part)
    return lambda host: (_expand(host, 8) if _is_v6(host) else host) in wanted


def _expand_braces(text: str) -> list[str]:
    separator = ":" if ":" in text else "."
    parts = _split(text, separator)
    if not parts or not parts[-1].startswith("{") or (separator == "." and len(parts) < 4):
        raise _wrong(text, "only the last part may be {a,b,...}")
    begin = text[: text.index("{")]
    return [begin + part for part in _split(parts[-1][1:-1], ",")]


def _v4_range(text: str) -> Pattern:
    parts = _split(text, ".")
    for index in (1, 2, 3):
        if index >= len(parts):
            break
        low, high = _range(text, parts[index].strip(), 10, 255)
        if not high:
            continue
        # of the parts before the range RocketMQ leaves the last one unchecked
        if len(parts) != 4 or not all(_is_byte(part) for part in parts[: index - 1]):
            raise _wrong(text)
        head = "".join(f"{part.strip()}." for part in parts[:index])
        return _v4_matcher(head, index, low, high)
    raise _wrong(text, "no range in it that an address could be in")


def _v4_matcher(head: str, index: int, low: int, high: int) -> Pattern:
    def matches(host: str) -> bool:
        if not _is_v4(host) or not host.startswith(head):
            return False
        return low <= int(host.split(".")[index]) <= high

    return matches


def _v6_range(text: str) -> Pattern:
    star, minus = text.find("*"), text.find("-")
    if star >= 0 and star != len(text) - 1:
        raise _wrong(text, "* may only be its end")
    colon = text.rfind(":")
    if minus >= 0 and minus <= (colon if star < 0 else text.rfind(":", 0, max(colon, 0))):
        raise _wrong(text, "only the last part, or the one before *, may be a range")
    parts = _split(text, ":")
    for index in range(1, len(parts)):
        low, high = _range(text, parts[index].strip(), 16, 0xFFFF)
        if not high:
            continue
        expanded = _split(_expand(text, 8), ":")
        for part in expanded[: index - 1]:
            value = int(part, 16) if _HEX.fullmatch(part) else -1
            if not 0 <= value <= 0xFFFF:
                raise _wrong(text)
        both = star >= 0 and minus >= 0
        end = text.rfind(":", 0, colon) if both else colon
        if end < 0:
            raise _wrong(text)
        head = _expand(text[:end], 6 if both else 7)
        return _v6_matcher(head, len(_split(head, ":")), low, high)
    raise _wrong(text, "no range in it that an address could be in")


def _v6_matcher(head: str, index: int, low: int, high: int) -> Pattern:
    def matches(host: str) -> bool:
        if not _is_v6(host):
            return False
        host = _expand(host, 8)
        if not host.startswith(head):
            return False
        part = host[5 * index : 5 * index + 4]
        return bool(_HEX.fullmatch(part)) and low <= int(part, 16) <= high

    return matches


def _range(text: str, part: str, base: int, most: int) -> tuple[int, int]:
    """Return the lowest and the highest number of one part; 0, 0 if it is no range."""
    if part == "*":
        return 0, most
    if "-" not in part:
        return 0, 0
    if part.startswith("-"):
        raise _wrong(text, f"{part!r} is not a range")
    ends = _split(part, "-")
    number = _NUMBER if base == 10 else _HEX
    if len(ends) < 2 or not all(number.fullmatch(end) for end in ends[:2]):
        raise _wrong(text, f"{part!r} is not a range")
    low, high = (int(end, base) for end in ends[:2])
    if not 0 <= low <= high <= most:
        last = f"{most:x}" if base == 16 else f"{most}"
        raise _wrong(text, f"{part!r} is not a range of numbers up to {last}")
    return low, high


def _split(text: str, separator: str) -> list[str]:
    """As `StringUtils.split`: empty parts are left out."""
    return [part for part in text.split(separator) if part]


def _is_byte(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text.strip())) and 0 <= int(text) <= 255


def _is_v4(text: str) -> bool:
    """As commons-validator has it."""
    found = _V4.fullmatch(text)
    return found is not None and all(
        int(part) <= 255 and (len(part) == 1 or part[0] != "0") for part in found.groups()
    )


def _is_v6(text: str) -> bool:
    """As commons-validator 1.7 has it: with a prefix length and a zone, if it likes."""
    address, slash, prefix = text.partition("/")
    if slash and not (_PREFIX.fullmatch(prefix) and int(prefix) <= 128):
        return False
    address, percent, zone = address.partition("%")
    if percent and not _ZONE.fullmatch(zone):
        return False
    is_short = "::" in address
    if is_short and address.find("::") != address.rfind("::"):
        return False
    if address.startswith(":") and not address.startswith("::"):
        return False
    if address.endswith(":") and not address.endswith("::"):
        return False
    parts = address.split(":")
    while parts and not parts[-1]:  # as Java splits
        parts.pop()
    if is_short:
        if address.endswith("::"):
            parts.append("")
        elif address.startswith("::") and parts:
            parts.pop(0)
    if len(parts) > 8:
        return False
    groups, is_last_empty = 0, False
    for i, part in enumerate(parts):
        if not part:
            if is_last_empty:
                return False
            is_last_empty = True
        else:
            is_last_empty = False
            if i == len(parts) - 1 and "." in part:
                if not _is_v4(part):
                    return False
                groups += 2
                continue
            if len(part) > 4 or not _HEX.fullmatch(part) or not 0 <= int(part, 16) <= 0xFFFF:
                return False
        groups += 1
    return groups <= 8 and (groups == 8 or is_short)


def _expand(text: str, count: int) -> str:
    """As `AclUtils.expandIP`: in capitals, `::` spelled out, parts with four digits each."""
    text = text.upper()
    missing = count - text.count(":")
    if missing > 0:
        text = text.replace("::", ":" + ":" * missing)
    return ":".join(part.rjust(4, "0") for part in text.split(":"))
