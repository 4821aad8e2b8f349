"""The compiled loops that check signatures of plain SENDs: what was signed, and HMAC-SHA1 of it.

What is signed are the values of a header's fields in the order of their names, then the body
(`security.credentials`). A message of 100 bytes takes 1.5 to 2 µs (bench_acl.py); taken out of the
piece by Python and hashed by OpenSSL it would take 6 more, and the lane would be none.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..filter.engines.memory import Address, Int, compiled, inlined, load1
from ..store._walk import Rows, int4

__all__ = ["MOST_CONTENT", "MOST_SPANS", "is_signed", "note_span", "prepare_secret"]

Bytes = npt.NDArray[np.uint8]
Truth = Any  # of compiled code

MOST_SPANS: Final = 32  # fields of a header; one with more is checked the usual way
MOST_CONTENT: Final = 16 * 2**10  # bytes; of longer ones OpenSSL's hash is the faster
_NAME, _NAME_SIZE, _VALUE, _VALUE_SIZE, _IS_PROPERTIES = range(5)
_MASK = 0xFFFFFFFF
_PAD = 72  # bytes that a hash may add to what is hashed
_DIGEST = 20
_SIGNATURE = 28  # characters: base64 of a digest
_LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
_START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
_K1, _K2, _K3, _K4 = 0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6
_EQUALS = ord("=")


@inlined
def note_span(
    spans: Rows, i: Int, name: Address, name_size: Int, value: Address, size: Int, escaped: Truth
) -> None:
    """A field of a header: where its name and its value are. That of properties is read from where
    it is without escapes."""
    spans[i, _NAME], spans[i, _NAME_SIZE] = name, name_size
    spans[i, _VALUE], spans[i, _VALUE_SIZE] = value, size
    spans[i, _IS_PROPERTIES] = 1 if escaped else 0


@compiled
def is_signed(
    spans: Rows,
    count: Int,
    properties: Bytes,
    properties_at: Int,
    properties_size: Int,
    body: Address,
    body_size: Int,
    key: Bytes,
    secret: Rows,
    content: Bytes,
) -> Truth:
    """Whether a request with these fields and this body has the access key and is signed with the
    secret; without a secret, whether it has the key. False also if that is not certain."""
    _sort(spans, count)
    used = 0
    signature = np.int64(-1)
    has_key = False
    for i in range(count):
        name, name_size = spans[i, _NAME], spans[i, _NAME_SIZE]
        if i and _compare(spans, i - 1, i) == 0:  # the last one counts: the usual way knows
            return False
        if name_size == 17:  # as _UNIQUE_KEY_QUERY, which is not signed
            return False
        value, size = spans[i, _VALUE], spans[i, _VALUE_SIZE]
        if name_size == 9 and int4(name) == 0x5369676E and int4(name + 5) == 0x74757265:
            if load1(name + 4) == 0x61:  # Signature
                if size != _SIGNATURE:
                    return False
                signature = value
                continue
        elif name_size == 9 and int4(name) == 0x41636365 and int4(name + 5) == 0x734B6579:
            if load1(name + 4) != 0x73 or size != len(key):  # AccessKey, and whose
                return False
            for k in range(size):
                if load1(value + k) != key[k]:
                    return False
            has_key = True
        if spans[i, _IS_PROPERTIES]:
            size = properties_size
        if used + size > len(content) - _PAD:
            return False
        if spans[i, _IS_PROPERTIES]:
            for k in range(size):
                content[used + k] = properties[properties_at + k]
        else:
            for k in range(size):
                content[used + k] = load1(value + k)
        used += size
    if not has_key or used + body_size > len(content) - _PAD:
        return False
    if not len(secret):
        return True
    if signature < 0:
        return False
    for k in range(body_size):
        content[used + k] = load1(body + k)
    return _matches(content, used + body_size, secret, signature)


@compiled
def _compare(spans: Rows, i: Int, j: Int) -> Int:
    """Compare two names by their bytes: below 0, above 0, or 0 if they are equal."""
    one, other = spans[i, _NAME], spans[j, _NAME]
    size, other_size = spans[i, _NAME_SIZE], spans[j, _NAME_SIZE]
    for k in range(min(size, other_size)):
        difference = load1(one + k) - load1(other + k)
        if difference:
            return difference
    return size - other_size


@compiled
def _sort(spans: Rows, count: Int) -> None:
    """By insertion: there are a dozen, and most clients send them nearly in order."""
    for i in range(1, count):
        j = i
        while j > 0 and _compare(spans, j - 1, j) > 0:
            for k in range(5):
                spans[j - 1, k], spans[j, k] = spans[j, k], spans[j - 1, k]
            j -= 1


@compiled
def _matches(content: Bytes, size: Int, secret: Rows, signature: Address) -> Truth:
    """Whether the 28 characters are the HMAC of the content; takes as long for any of them."""
    state = np.empty(5, dtype=np.int64)
    words = np.empty(80, dtype=np.int64)
    for k in range(5):
        state[k] = secret[k]
    _finish(state, words, content, size)
    digest = np.empty(64 + _PAD, dtype=np.uint8)
    for k in range(_DIGEST):
        digest[k] = state[k // 4] >> (24 - 8 * (k % 4)) & 0xFF
    for k in range(5):
        state[k] = secret[5 + k]
    _finish(state, words, digest, _DIGEST)
    for k in range(_DIGEST):
        digest[k] = state[k // 4] >> (24 - 8 * (k % 4)) & 0xFF
    digest[_DIGEST] = 0
    wrong = 0
    for k in range(7):
        three = np.int64(digest[3 * k]) << 16 | np.int64(digest[3 * k + 1]) << 8
        three |= np.int64(digest[3 * k + 2])
        for i in range(4):
            wanted = np.int64(_LETTERS[three >> (18 - 6 * i) & 63])
            if k == 6 and i == 3:
                wanted = np.int64(_EQUALS)
            wrong |= wanted ^ load1(signature + 4 * k + i)
    return wrong == 0


@compiled
def _finish(state: Rows, words: Rows, data: Bytes, size: Int) -> None:
    """SHA-1 of a block that is in the state already and of these bytes; room for padding follows
    them."""
    end = (size + 9 + 63) // 64 * 64
    data[size] = 0x80
    for k in range(size + 1, end - 8):
        data[k] = 0
    bits = (size + 64) * 8
    for k in range(8):
        data[end - 1 - k] = bits >> (8 * k) & 0xFF
    for at in range(0, end, 64):
        _compress(state, words, data, at)


@inlined
def _rotate(value: Int, count: Int) -> Int:
    return (value << count | value >> (32 - count)) & _MASK


@compiled
def _compress(state: Rows, words: Rows, data: Bytes, at: Int) -> None:
    """One block (FIPS 180-4)."""
    for i in range(16):
        words[i] = (
            np.int64(data[at + 4 * i]) << 24
            | np.int64(data[at + 4 * i + 1]) << 16
            | np.int64(data[at + 4 * i + 2]) << 8
            | np.int64(data[at + 4 * i + 3])
        )
    for i in range(16, 80):
        words[i] = _rotate(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1)
    a, b, c, d, e = state[0], state[1], state[2], state[3], state[4]
    for i in range(20):
        new = (_rotate(a, 5) + (d ^ (b & (c ^ d))) + e + _K1 + words[i]) & _MASK
        a, b, c, d, e = new, a, _rotate(b, 30), c, d
    for i in range(20, 40):
        new = (_rotate(a, 5) + (b ^ c ^ d) + e + _K2 + words[i]) & _MASK
        a, b, c, d, e = new, a, _rotate(b, 30), c, d
    for i in range(40, 60):
        new = (_rotate(a, 5) + ((b & c) | (d & (b | c))) + e + _K3 + words[i]) & _MASK
        a, b, c, d, e = new, a, _rotate(b, 30), c, d
    for i in range(60, 80):
        new = (_rotate(a, 5) + (b ^ c ^ d) + e + _K4 + words[i]) & _MASK
        a, b, c, d, e = new, a, _rotate(b, 30), c, d
    state[0] = (state[0] + a) & _MASK
    state[1] = (state[1] + b) & _MASK
    state[2] = (state[2] + c) & _MASK
    state[3] = (state[3] + d) & _MASK
    state[4] = (state[4] + e) & _MASK


def prepare_secret(secret: bytes) -> Rows:
    """The inner and the outer state of HMAC after the secret's own block."""
    import hashlib

    if len(secret) > 64:
        secret = hashlib.sha1(secret).digest()
    block = np.zeros(64, dtype=np.uint8)
    block[: len(secret)] = np.frombuffer(secret, dtype=np.uint8)
    made = np.array(_START * 2, dtype=np.int64)
    words = np.empty(80, dtype=np.int64)
    _compress(made[:5], words, block ^ np.uint8(0x36), 0)
    _compress(made[5:], words, block ^ np.uint8(0x5C), 0)
    return made
