"""Engines: one AST, one verdict, each fast at something else."""
