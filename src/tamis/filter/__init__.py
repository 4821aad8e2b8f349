"""RocketMQ's filter language: tags and SQL92, parsed once, run by several engines.

The engines that need NumPy are imported by name: `from tamis.filter.engines import columnar`.
"""

from .logic import Outcome
from .nodes import Expr
from .parser import Selector, parse, parse_selector
from .render import render
from .tokens import Dialect

__all__ = ["Dialect", "Expr", "Outcome", "Selector", "parse", "parse_selector", "render"]
