"""Handlers: one module for each subject, one function for each request."""
