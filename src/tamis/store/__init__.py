"""The message store: RocketMQ's own files, written and read a batch at a time."""
