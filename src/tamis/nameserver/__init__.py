"""The name server: which broker holds which topics, and where it is."""
