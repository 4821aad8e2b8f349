"""Tamis: RocketMQ's message filtering, in Python."""

__version__ = "0.1.0"
