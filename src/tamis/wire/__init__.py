"""Bytes to values and back. No sockets, clocks, files or threads."""
