"""Addresses as people write them."""

__all__ = ["parse_address"]


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not an address: it is written like 127.0.0.1:9876")
    return host.strip("[]"), int(port)
