"""Bodies of requests, read so that none holds the others up, and answers with many entries."""

from collections.abc import Generator
from functools import partial
from typing import Any, Final, TypeVar

from ...errors import ResponseError
from ...net.longwork import Steps
from ...net.server import Answer, Request
from ...wire import beans
from ...wire.codes import ResponseCode

__all__ = ["answer_steps", "decode", "decode_steps"]

T = TypeVar("T")

_LONG: Final = 16 * 2**10  # bytes of JSON, from which on it is read in a thread
# What is read at once, and nobody is served meanwhile, thread or not: bytes, and objects, arrays,
# fields and items, weighed by the time they take (500,000 take some 40 ms).
_MOST_BYTES: Final = 4 * 2**20
_MOST_WEIGHT: Final = 500_000


def decode_steps(kind: type[T], request: Request, refusal: str) -> Steps[T]:
    """The bean in a body. Raises ResponseError; `refusal` is how its remark begins."""
    body = request.body
    if len(body) < _LONG:
        return decode(kind, request, refusal)
    _check_weight(body, refusal)
    try:
        bean: T = yield partial(beans.decode, kind, body)
    except ValueError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{refusal}: {error}") from None
    return bean


def decode(kind: type[T], request: Request, refusal: str) -> T:
    """As `decode_steps`, for what is never long; if it is, that is refused."""
    if len(request.body) >= _LONG:
        why = f"{refusal}: a body of {len(request.body)} bytes, it takes up to {_LONG}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    try:
        return beans.decode(kind, request.body)
    except ValueError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{refusal}: {error}") from None


def _check_weight(body: bytes, refusal: str) -> None:
    why = ""
    if len(body) > _MOST_BYTES:
        why = f"a body of {len(body)} bytes, it takes up to {_MOST_BYTES}"
    else:
        containers = body.count(b"[") + body.count(b"{")
        if 5 * containers + 3 * body.count(b":") + body.count(b",") > _MOST_WEIGHT:
            why = "too many entries in one body; name fewer in each request"
    if why:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{refusal}: {why}")


def answer_steps(bean: Any) -> Generator[None, None, Answer]:
    """An answer with a bean as its body."""
    return Answer(body=(yield from beans.encode_steps(bean)))
