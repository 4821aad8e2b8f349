"""The broker: what is done with each request."""
