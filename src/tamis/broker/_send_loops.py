"""The compiled loops of `_sends`: reading plain SENDs, and writing their answers.

Nothing here trusts its input: a byte is read only where the piece has one, and what is not certain
to be a plain SEND is left alone.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..filter.engines.memory import Address, Int, compiled, inlined, load1
from ..store._batch import Part, Share
from ..store._walk import Rows, int4
from ..wire.codes import RequestCode
from ..wire.frame import MAX_FRAME as _MAX_FRAME
from ..wire.record import MAX_PROPERTIES as _MAX_PROPERTIES
from ._send_signatures import is_signed, note_span

__all__ = ["scan_sends", "write_answers"]

Bytes = npt.NDArray[np.uint8]
Truth = Any  # of compiled code

_COUNT, _BYTES = int(Share.COUNT), int(Share.BYTES)
_TOPIC_AT, _TOPIC_SIZE, _QUEUE = map(int, list(Share)[:3])
_SHARE, _SYS_FLAG, _FLAG, _BORN, _RECONSUMES = map(int, list(Part)[:5])
_PROPERTIES_AT, _PROPERTIES_SIZE, _BODY_AT, _BODY_SIZE = map(int, list(Part)[5:9])
_QUEUE_OFFSET, _OPAQUE, _IS_ONEWAY = map(int, list(Part)[9:])

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_MOST_NAMES = 64  # properties of a message; of one that has more, each name is not compared
_QUOTE, _COMMA, _COLON, _BACKSLASH, _MINUS, _ZERO = map(ord, '",:\\-0')
_OPEN, _CLOSE = map(ord, "{}")
# The numbers of a header's fields: its letters, then those outside of `extFields`.
_A, _B, _C, _D, _E, _F, _G, _H, _I, _J, _K, _L, _M, _N = range(14)
_CODE, _HEADER_OPAQUE, _HEADER_FLAG, _VERSION, _FIELDS, _OTHER = range(14, 20)
_NUMBERS = sum(1 << i for i in (_D, _E, _F, _G, _H, _J, _L, _CODE, _HEADER_OPAQUE))
_NUMBERS |= 1 << _HEADER_FLAG | 1 << _VERSION
_TEXTS = 1 << _A | 1 << _B | 1 << _C | 1 << _I
_NEEDED = sum(1 << i for i in (_A, _B, _C, _D, _E, _F, _G, _H, _CODE, _FIELDS))
_TEXT, _NUMBER, _WORD = range(3)  # kinds of values
_SIZE = 20  # of the text of field i: its size is at _SIZE + i
_SPANS = 40  # how many fields were noted
_FOUND = 41


@compiled
def scan_sends(
    source: Bytes,
    at: Int,
    cluster: Bytes,
    most_body: Int,
    fixed: Int,
    out: Bytes,
    rows: Rows,
    shares: Rows,
    key: Bytes,
    secret: Rows,
    spans: Rows,
    content: Bytes,
) -> tuple[Int, Int, Int, Int, Int]:
    """Plain SENDs from `at` on, into `rows` and `shares`, their properties into `out`.

    Gives how many, where they end, how many shares, the size of all records and of the largest
    body. `cluster` is the property each gets; `fixed` the size of a record without its texts.
    With `spans` only those that have the access key `key` and are signed by `secret`, or only the
    former if there is none; `content` is room for what is signed (`_send_signatures`).
    """
    base, size = source.ctypes.data, len(source)
    found = np.empty(_FOUND, dtype=np.int64)
    names = np.empty((_MOST_NAMES, 2), dtype=np.int64)
    count = share_count = used = total = largest = np.int64(0)
    share = np.int64(-1)
    while count < len(rows) and size - at >= 8:
        length, header = int4(base + at), int4(base + at + 4)  # of encoding 0: the highest byte
        if header < 0 or header > 0xFFFFFF or length < 4 + header or length > _MAX_FRAME - 4:
            break
        if length > size - at - 4:
            break
        body, header_at = length - 4 - header, base + at + 8
        if body > most_body or not _read_header(header_at, header_at + header, found, spans):
            break
        raw = found[_SIZE + _I]
        if len(out) - used < raw + 1 + len(cluster):
            break
        text = _unescape(found[_I], found[_I] + raw, out, used)
        if text < 0:
            break
        if len(spans) and not is_signed(
            spans, found[_SPANS], out, used, text, header_at + header, body, key, secret, content
        ):
            break
        text = _normalise(out, used, text, names)
        if text < 0:
            break
        to = used + text
        if text:
            out[to] = 2
            to += 1
        for k in range(len(cluster)):
            out[to + k] = cluster[k]
        text = to + len(cluster) - used
        if text > _MAX_PROPERTIES:
            break
        topic, topic_size, queue = found[_B], found[_SIZE + _B], found[_E]
        share = _share_of(base, topic, topic_size, queue, shares, share_count, share)
        if share < 0:
            break
        if share == share_count:
            share_count += 1
            shares[share, _TOPIC_AT], shares[share, _TOPIC_SIZE] = topic - base, topic_size
            shares[share, _QUEUE] = queue
            shares[share, _COUNT] = shares[share, _BYTES] = 0
        record = fixed + body + topic_size + text
        shares[share, _COUNT] += 1
        shares[share, _BYTES] += record
        rows[count, _SHARE] = share
        rows[count, _SYS_FLAG] = found[_F]
        rows[count, _FLAG] = found[_H]
        rows[count, _BORN] = found[_G]
        rows[count, _RECONSUMES] = found[_J]
        rows[count, _PROPERTIES_AT], rows[count, _PROPERTIES_SIZE] = used, text
        rows[count, _BODY_AT], rows[count, _BODY_SIZE] = at + 8 + header, body
        rows[count, _OPAQUE] = found[_HEADER_OPAQUE]
        rows[count, _IS_ONEWAY] = found[_HEADER_FLAG] & 2
        total += record
        largest = max(largest, body)
        used += text
        at += 4 + length
        count += 1
    return count, at, share_count, total, largest


@compiled
def _share_of(
    base: Address, topic: Address, size: Int, queue: Int, shares: Rows, count: Int, last: Int
) -> Int:
    """The share of a queue, or a new one's number; -1 if there are too many.

    Producers go round their queues: the search begins after the last one found.
    """
    at = last
    for _ in range(count):
        at = at + 1 if at + 1 < count else 0
        if shares[at, _QUEUE] == queue and shares[at, _TOPIC_SIZE] == size:
            other = base + shares[at, _TOPIC_AT]
            k = 0
            while k < size and load1(topic + k) == load1(other + k):
                k += 1
            if k == size:
                return at
    return count if count < len(shares) else -1


@inlined
def _skip(at: Address, end: Address) -> Address:
    """Past blanks."""
    while at < end:
        byte = load1(at)
        if byte > 0x20 or (byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09):
            break
        at += 1
    return at


@inlined
def _plain_end(at: Address, end: Address) -> Address:
    """The quote that ends a text of ASCII without escapes; 0 if it is none."""
    while at < end:
        byte = load1(at)
        if byte == _QUOTE:
            return at
        if byte < 0x20 or byte >= 0x80 or byte == _BACKSLASH:
            return 0
        at += 1
    return 0


@compiled
def _value_of(at: Address, end: Address) -> tuple[Int, bool]:
    """A number of up to 18 digits, and whether it is one."""
    sign = 1
    if at < end and load1(at) == _MINUS:
        sign = -1
        at += 1
    if at == end or end - at > 18:
        return 0, False
    value = 0
    while at < end:
        digit = load1(at) - _ZERO
        if digit < 0 or digit > 9:
            return 0, False
        value = 10 * value + digit
        at += 1
    return sign * value, True


@compiled
def _field_of(at: Address, size: Int) -> Int:
    """Which field a name outside of `extFields` is."""
    if size == 4:
        word = int4(at)
        if word == 0x636F6465:  # code
            return _CODE
        if word == 0x666C6167:  # flag
            return _HEADER_FLAG
    elif size == 6:
        if int4(at) == 0x6F706171 and int4(at + 2) == 0x61717565:  # opaque
            return _HEADER_OPAQUE
    elif size == 7:
        if int4(at) == 0x76657273 and int4(at + 3) == 0x73696F6E:  # version
            return _VERSION
    elif size == 9 and int4(at) == 0x65787446 and int4(at + 4) == 0x69656C64:
        return _FIELDS if load1(at + 8) == 0x73 else _OTHER  # extFields
    return _OTHER


@compiled
def _read_header(at: Address, end: Address, found: Rows, spans: Rows) -> Truth:
    """The JSON header of a plain SEND: numbers at their fields' places in `found`; of texts where
    they begin, and their sizes from `_SIZE` on. False if it is not, or not certainly, one.

    A field that is not known is of no use to the usual way either, and passed over; but all of
    `extFields` are noted in `spans`, if there is room for any.
    """
    found[_SPANS] = 0
    found[_J] = found[_HEADER_OPAQUE] = found[_HEADER_FLAG] = 0  # they may be missing
    found[_I] = at
    found[_SIZE + _I] = 0
    seen = 0
    inside = False
    at = _skip(at, end)
    if at == end or load1(at) != _OPEN:
        return False
    at += 1
    while True:
        # A name.
        at = _skip(at, end)
        if at == end or load1(at) != _QUOTE:
            return False
        name = at + 1
        to = _plain_end(name, end)
        if to == 0:
            return False
        name_size = to - name
        at = _skip(to + 1, end)
        if at == end or load1(at) != _COLON:
            return False
        at = _skip(at + 1, end)
        if at == end:
            return False
        if not inside:
            field = _field_of(name, to - name)
        elif to - name == 1 and 0x61 <= load1(name) <= 0x6E:
            field = load1(name) - 0x61
        else:
            field = _OTHER
        if field != _OTHER:
            if seen >> field & 1:
                return False
            seen |= 1 << field
        # Its value: from `start` to `to`.
        first = load1(at)
        if field == _FIELDS:
            if first != _OPEN:
                return False
            inside = True
            at += 1
            continue
        start = at
        if first == _QUOTE:
            kind = _TEXT
            start += 1
            to = start
            if field == _I:  # escapes are looked at later
                while to < end and load1(to) != _QUOTE:
                    to += 2 if load1(to) == _BACKSLASH else 1
                if to >= end:
                    return False
            else:
                to = _plain_end(start, end)
                if to == 0:
                    return False
            at = to + 1
        else:
            kind = _NUMBER if first == _MINUS or _ZERO <= first <= _ZERO + 9 else _WORD
            while at < end and _is_of_word(load1(at)):
                at += 1
            to = at
            if kind == _NUMBER:
                digits = start + 1 if first == _MINUS else start
                if to == digits or not _value_of(start, to)[1]:
                    return False
                if load1(digits) == _ZERO and to - start > 1:  # 00, -0
                    return False
            elif not _is_word(start, to - start):
                return False
        if inside and len(spans):
            if found[_SPANS] == len(spans) or (kind == _WORD and first == 0x6E):  # null: no field
                return False
            note_span(spans, found[_SPANS], name, name_size, start, to - start, field == _I)
            found[_SPANS] += 1
        if _NUMBERS >> field & 1:
            if kind == _WORD or (kind == _TEXT and field >= _CODE):
                return False
            value, is_number = _value_of(start, to)
            if not is_number:
                return False
            found[field] = value
        elif _TEXTS >> field & 1:
            if kind != _TEXT:
                return False
            found[field], found[_SIZE + field] = start, to - start
        elif field == _M and not _is_false(start, to - start):  # a batch has a way of its own
            return False
        # What follows.
        at = _skip(at, end)
        if at < end and load1(at) == _CLOSE and inside:
            inside = False
            at = _skip(at + 1, end)
        if at == end:
            return False
        if load1(at) == _CLOSE and not inside:
            break
        if load1(at) != _COMMA:
            return False
        at += 1
    if _skip(at + 1, end) != end:
        return False
    topic, size = found[_B], found[_SIZE + _B]
    return (
        seen & _NEEDED == _NEEDED
        and found[_CODE] == _SEND
        and _is_32_bits(found[_HEADER_OPAQUE])
        and _is_32_bits(found[_HEADER_FLAG])
        and found[_HEADER_FLAG] & 1 == 0
        and (seen >> _VERSION & 1 == 0 or _is_32_bits(found[_VERSION]))
        and 0 < size <= 127
        and load1(topic) != 0x25  # %: retries and dead letters
        and 0 <= found[_E] < 2**31
        and _is_32_bits(found[_F])
        and found[_F] & 0xC == 0  # not in a transaction
        and _is_32_bits(found[_H])
        and _is_32_bits(found[_J])
    )


@inlined
def _is_32_bits(value: Int) -> Truth:
    return -(2**31) <= value < 2**31


@inlined
def _is_of_word(byte: Int) -> Truth:
    return 0x61 <= byte <= 0x7A or _ZERO <= byte <= _ZERO + 9 or byte == _MINUS


@compiled
def _is_word(at: Address, size: Int) -> Truth:
    """One of JSON's: null, true, false."""
    if size == 4:
        return int4(at) == 0x6E756C6C or int4(at) == 0x74727565
    return _is_false(at, size)


@inlined
def _is_false(at: Address, size: Int) -> Truth:
    return size == 5 and int4(at) == 0x66616C73 and load1(at + 4) == 0x65


@inlined
def _hex4(at: Address) -> Int:
    """Four hexadecimal digits; -1 if they are none."""
    value = 0
    for k in range(4):
        digit = load1(at + k)
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x41 <= digit <= 0x46:
            digit -= 0x37
        elif 0x61 <= digit <= 0x66:
            digit -= 0x57
        else:
            return -1
        value = value << 4 | digit
    return value


@compiled
def _unescape(at: Address, end: Address, out: Bytes, to: Int) -> Int:
    """A JSON text as UTF-8, at `to` of `out`: its size, which is never more; -1 if it is wrong."""
    begin = to
    while at < end:
        byte = load1(at)
        if byte == _BACKSLASH:
            if end - at < 2:
                return -1
            mark = load1(at + 1)
            at += 2
            if mark == 0x75:  # u
                code = _hex4(at) if end - at >= 4 else -1
                at += 4
                if 0xD800 <= code <= 0xDBFF:  # the first half of a pair
                    if end - at < 6 or load1(at) != _BACKSLASH or load1(at + 1) != 0x75:
                        return -1
                    low = _hex4(at + 2)
                    if low < 0xDC00 or low > 0xDFFF:
                        return -1
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                    at += 6
                elif code < 0 or 0xDC00 <= code <= 0xDFFF:
                    return -1
                if code < 0x80:
                    out[to] = code
                    to += 1
                elif code < 0x800:
                    out[to], out[to + 1] = 0xC0 | code >> 6, 0x80 | (code & 0x3F)
                    to += 2
                elif code < 0x10000:
                    out[to], out[to + 1] = 0xE0 | code >> 12, 0x80 | (code >> 6 & 0x3F)
                    out[to + 2] = 0x80 | (code & 0x3F)
                    to += 3
                else:
                    out[to], out[to + 1] = 0xF0 | code >> 18, 0x80 | (code >> 12 & 0x3F)
                    out[to + 2], out[to + 3] = 0x80 | (code >> 6 & 0x3F), 0x80 | (code & 0x3F)
                    to += 4
                continue
            if mark == 0x22 or mark == 0x5C or mark == 0x2F:
                byte = mark
            elif mark == 0x6E:
                byte = 0x0A
            elif mark == 0x74:
                byte = 0x09
            elif mark == 0x72:
                byte = 0x0D
            elif mark == 0x62:
                byte = 0x08
            elif mark == 0x66:
                byte = 0x0C
            else:
                return -1
            out[to] = byte
            to += 1
        elif byte < 0x80:
            if byte < 0x20:
                return -1
            out[to] = byte
            to += 1
            at += 1
        else:
            size = _utf8_size(at, end)
            if size == 0:
                return -1
            for k in range(size):
                out[to + k] = load1(at + k)
            to += size
            at += size
    return to - begin


@compiled
def _utf8_size(at: Address, end: Address) -> Int:
    """Of a character of more than one byte; 0 if it is not well formed (Unicode, table 3-7)."""
    first = load1(at)
    low, high = 0x80, 0xBF  # what the second byte may be
    if 0xC2 <= first <= 0xDF:
        size = 2
    elif 0xE0 <= first <= 0xEF:
        size = 3
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    elif 0xF0 <= first <= 0xF4:
        size = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        return 0
    if end - at < size or load1(at + 1) < low or load1(at + 1) > high:
        return 0
    for k in range(2, size):
        if load1(at + k) & 0xC0 != 0x80:
            return 0
    return size


@compiled
def _normalise(out: Bytes, begin: Int, size: Int, names: Rows) -> Int:
    """Properties as they are stored, in place: their size. -1 if the usual way is to look at them.

    Parts without a name or a value go, and so does WAIT (`properties.decode`, `Sender._draft`).
    """
    at = to = begin
    end = begin + size
    count = 0
    while at < end:
        split, stop = -1, at
        while stop < end and out[stop] != 2:
            if split < 0 and out[stop] == 1:
                split = stop
            stop += 1
        name = split - at
        if split > at and stop > split + 1:
            first = 0  # four letters of the name; of its length, no other begins so, or hardly any
            for k in range(4 if name >= 4 else 0):
                first = first << 8 | out[at + k]
            if name == 4 and first == 0x57414954:  # WAIT
                at = stop + 1
                continue
            if (
                (name == 5 and first == 0x44454C41)  # DELAY
                or (name == 7 and first == 0x434C5553)  # CLUSTER
                or (name == 8 and first == 0x5452414E)  # TRAN_MSG
                or count == len(names)
            ):
                return -1
            for k in range(count):
                if names[k, 1] == name:
                    i = 0
                    while i < name and out[names[k, 0] + i] == out[at + i]:
                        i += 1
                    if i == name:  # the last one would count
                        return -1
            if count:
                out[to] = 2
                to += 1
            names[count, 0], names[count, 1] = to, name
            count += 1
            if to == at:
                to = stop
            else:
                for k in range(stop - at):
                    out[to + k] = out[at + k]
                to += stop - at
        at = stop + 1
    return to - begin


@compiled
def _put_part(out: Bytes, to: Int, parts: Bytes, begin: Int, end: Int) -> Int:
    for k in range(end - begin):
        out[to + k] = parts[begin + k]
    return to + end - begin


@compiled
def _put_number(out: Bytes, to: Int, value: Int) -> Int:
    """In decimal; gives where it ends."""
    if value < 0:
        out[to] = _MINUS
        to += 1
        value = -value
    digits, rest = 1, value // 10
    while rest:
        digits += 1
        rest //= 10
    for k in range(digits - 1, -1, -1):
        out[to + k] = _ZERO + value % 10
        value //= 10
    return to + digits


@compiled
def write_answers(
    rows: Rows, shares: Rows, edges: Rows, parts: Bytes, bounds: Rows, out: Bytes
) -> Int:
    """Frames that tell of messages stored, as `Sender._fast_answer` makes them; gives their size.

    Between the parts go queue id, place in the log, queue offset and opaque.
    """
    to = np.int64(0)
    for i in range(len(rows)):
        if rows[i, _IS_ONEWAY]:
            continue
        begin = to
        to = _put_part(out, begin + 8, parts, bounds[0], bounds[1])
        to = _put_number(out, to, shares[rows[i, _SHARE], _QUEUE])
        to = _put_part(out, to, parts, bounds[1], bounds[2])
        for k in range(16):
            digit = edges[i] >> (60 - 4 * k) & 15
            out[to + k] = digit + (_ZERO if digit < 10 else 0x37)
        to = _put_part(out, to + 16, parts, bounds[2], bounds[3])
        to = _put_number(out, to, rows[i, _QUEUE_OFFSET])
        to = _put_part(out, to, parts, bounds[3], bounds[4])
        to = _put_number(out, to, rows[i, _OPAQUE])
        to = _put_part(out, to, parts, bounds[4], bounds[5])
        header = to - begin - 8
        for k in range(4):
            out[begin + k] = (header + 4) >> (24 - 8 * k) & 0xFF
            out[begin + 4 + k] = header >> (24 - 8 * k) & 0xFF
    return to
