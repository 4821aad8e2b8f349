"""Sockets round a `wire.Connection`."""
