"""One filter, one verdict: message by message, a batch at a time, and explained."""

from tamis.filter import Outcome, parse
from tamis.filter.engines.closures import compile_closure
from tamis.filter.engines.columnar import compile_batch
from tamis.filter.explain import explain

expr = parse("region = 'eu' AND price > 100.0")

matches = compile_closure(expr)
print(matches({"region": "eu", "price": "250"}))
print(matches({"region": "eu"}))

strings = ["region\x01eu\x02price\x01250", "price\x019.5", "region\x01eu\x02price\x01free"]
outcomes = compile_batch(expr).match_strings(strings)
print([Outcome(outcome).name for outcome in outcomes])

print(explain(expr, {"region": "eu", "price": "free"}).reason)
