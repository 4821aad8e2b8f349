"""The filter server: it runs the filters that consumers upload beside a broker, and serves them
what matched."""

from .config import FilterServerConfig
from .server import FilterServer

__all__ = ["FilterServer", "FilterServerConfig"]
