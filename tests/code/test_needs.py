"""What a class declares: it is given that, as columns, and nothing else."""

import pyarrow as pa
import pytest

from tamis.client.columns import decode, schema_of
from tamis.code import COLUMNS, CodeFilter, Context, Needs, load
from tamis.errors import CodeError

CONTEXT = Context("group", "orders")
F, T, N, E = range(4)


def code(body: str, method: str = "match") -> CodeFilter:
    text = f"class Mine:\n    {body}\n    def {method}(self, m): return True\n"
    return CodeFilter("mine.py:Mine", text)


NEEDS = {
    "columns = ('body',)": (("body",), ()),
    "columns = ['tags', 'body']": (("tags", "body"), ()),
    "properties = ('region', 'price:double')": ((), (("region", "string"), ("price", "double"))),
    "columns = ('offset',); properties = ('TAGS', 'n:int', 'm:long', 'b:boolean', 's:string')": (
        ("offset",),
        (("TAGS", "string"), ("n", "int"), ("m", "long"), ("b", "boolean"), ("s", "string")),
    ),
    "columns = (); properties = ('Body', 'a b')": ((), (("Body", "string"), ("a b", "string"))),
}


@pytest.mark.parametrize("body", NEEDS)
@pytest.mark.parametrize("method", ["match", "match_batch"])
def test_needs_are_what_is_declared_in_that_order(body: str, method: str) -> None:
    needs = load(code(body, method), CONTEXT).needs
    columns, properties = NEEDS[body]
    assert needs == Needs(method == "match_batch", columns, properties, is_declared=True)
    assert schema_of(needs.columns, needs.properties).names == [*needs.names]


def test_a_class_that_declares_nothing_gets_what_a_message_is_made_of() -> None:
    whole = COLUMNS[:11]
    assert load(code("", "match_batch"), CONTEXT).needs == Needs(True, whole)
    needs = load(code(""), CONTEXT).needs
    assert not needs.is_declared
    assert {*needs.columns} == {*whole, "property_string", "reconsume_times"} - {"properties"}


def test_what_a_base_class_declares_counts() -> None:
    text = "class Base:\n  columns = ('body',)\nclass Mine(Base):\n  def match(self, m): ...\n"
    assert load(CodeFilter("mine.py:Mine", text), CONTEXT).needs.columns == ("body",)


REFUSED = {
    "columns = 'body'": "columns = 'body': write ('body',)",
    "columns = None": "columns = None: it takes a tuple of strings",
    "columns = ('body', 3)": "columns = ('body', 3): it takes a tuple of strings",
    "properties = {'a': 'int'}": "properties = {'a': 'int'}: it takes a tuple of strings",
    "columns = ('boddy',)": "columns: no column 'boddy': there are topic, broker, queue_id,",
    "columns = ('body', 'tags', 'body')": "columns: 'body' is declared twice",
    "properties = ('a', 'a:int')": "properties: 'a' is declared twice",
    "properties = ('a:number',)": "properties: 'a:number': the types are string, int, long, double",
    "properties = ('a:',)": "properties: 'a:': the types are",
    "properties = (':int',)": "properties: ':int': no property can have such a name",
    "properties = [f'p{n}' for n in range(101)]": "properties: 101 are declared, and 100 can be",
    "properties = ('',)": "properties: '': no property can have such a name",
    "properties = ('a\\x01b',)": "no property can have such a name",
    "properties = ('body',)": "properties: 'body' is the name of a column: declare the column prop",
    "columns = ()": "columns: declare at least one, or leave it out",
    "columns = (); properties = ()": "columns and properties: declare at least one, or leave it",
    "columns = ('properties',); properties = ('a',)": "columns has all properties already",
}


@pytest.mark.parametrize("body", REFUSED)
def test_a_declaration_that_can_t_be_met_is_refused_in_one_line(body: str) -> None:
    with pytest.raises(CodeError) as caught:
        load(code(body), CONTEXT)
    assert REFUSED[body] in str(caught.value)
    assert str(caught.value).startswith("code mine.py:Mine: ")
    assert "\n" not in str(caught.value)


PAIR = pa.RecordBatch.from_arrays(
    [
        pa.array(["PAID", None]),
        pa.array(["eu", None]),
        pa.array([12.5, None], pa.float64()),
        pa.array([3, None], pa.int32()),
        pa.array([None, True]),
    ],
    names=["tags", "region", "price", "n", "b"],
)
DECLARED = "columns = ('tags',)\n    properties = ('region', 'price:double', 'n:int', 'b:boolean')"


def test_declared_properties_have_their_types_and_missing_ones_are_missing() -> None:
    text = f"class Mine:\n    {DECLARED}\n    seen = []\n"
    text += "    def match(self, m): self.seen.append(m.properties); return m.tags == 'PAID'\n"
    loaded = load(CodeFilter("mine.py:Mine", text), CONTEXT)
    assert loaded.judge(PAIR).outcomes.tolist() == [T, F]
    assert loaded._user.seen == [{"region": "eu", "price": 12.5, "n": 3}, {"b": True}]
    assert type(loaded._user.seen[0]["n"]) is int


def test_what_was_not_declared_says_so() -> None:
    for columns, expression, reason in (
        ("'tags',", "m.body", "body was not declared: add it to columns"),
        ("'tags',", "m.text", "body was not declared: add it to columns"),
        ("'tags',", "m.queue", "topic was not declared: add it to columns"),
        ("'tags',", "m.keys", "keys was not declared: add it to columns"),
        ("'tags',", "m.properties", "properties were not declared: name some in properties, or"),
        ("'tags',", "m.property_string", "property_string was not declared: add it to columns"),
        ("'tags',", "m.delay", "'MessageView' object has no attribute 'delay'"),
    ):
        text = f"class Mine:\n  columns = ({columns})\n  def match(self, m): return {expression}\n"
        verdicts = load(CodeFilter("mine.py:Mine", text), CONTEXT).judge(PAIR.select(["tags"]))
        assert verdicts.outcomes.tolist() == [E, E]
        assert verdicts.reason(1).startswith(f"AttributeError: {reason}")


def test_properties_are_parsed_from_the_property_string() -> None:
    for columns in ("property_string",), ("property_string", "offset"):
        text = f"class Mine:\n  columns = {columns}\n"
        text += "  def match(self, m): return m.properties == {'a': '2', 'b': 'x\\x01y'}\n"
        strings = pa.array(["a\x011\x02\x01z\x02b\x01x\x01y\x02c\x01\x02a\x012", "", None])
        arrays = [strings, pa.array([1, 2, 3])][: len(columns)]
        batch = pa.RecordBatch.from_arrays(arrays, names=[*columns])
        verdicts = load(CodeFilter("mine.py:Mine", text), CONTEXT).judge(batch)
        assert verdicts.outcomes.tolist() == [T, F, F]


def test_a_map_is_read_row_by_row_also_of_a_slice_and_of_nulls() -> None:
    maps = pa.array(
        [[("x", "0")], [("a", "1"), ("b", "2")], None, []], pa.map_(pa.string(), pa.string())
    )
    batch = pa.RecordBatch.from_arrays([maps], names=["properties"]).slice(1)
    text = "class Mine:\n  columns = ('properties',)\n  seen = []\n"
    text += "  def match(self, m): self.seen.append(m.properties); return True\n"
    loaded = load(CodeFilter("mine.py:Mine", text), CONTEXT)
    loaded.judge(batch)
    assert loaded._user.seen == [{"a": "1", "b": "2"}, {}, {}]


def test_a_batch_with_other_columns_is_our_mistake_not_the_filter_s() -> None:
    loaded = load(code("columns = ('body',)"), CONTEXT)
    with pytest.raises(ValueError, match=r"a batch of \['tags'\], not \['body'\]"):
        loaded.judge(PAIR.select(["tags"]))


def test_every_column_can_be_declared_and_looked_at() -> None:
    batch = decode([], columns=COLUMNS)
    for name in COLUMNS:
        text = f"class Mine:\n  columns = ('{name}',)\n  def match(self, m): return m.{name} == 0\n"
        loaded = load(CodeFilter("mine.py:Mine", text), CONTEXT)
        nulls = pa.RecordBatch.from_arrays([pa.nulls(2, batch.schema.field(name).type)], [name])
        assert E not in loaded.judge(nulls).outcomes.tolist()
