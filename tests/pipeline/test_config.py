"""Pipeline files: what they mean, and what is said of those that mean nothing."""

import json
from pathlib import Path

import pytest

from tamis.errors import ConfigError
from tamis.pipeline import load
from tamis.pipeline.config import ALL, DEFAULT_COLUMNS, FILE_FORMATS, Sink

ROOT = Path(__file__).parents[2]
SOURCE = '[source]\nnameserver = "127.0.0.1:9876"\ntopic = "orders"\n'
SINK = 'sink = { format = "parquet", path = "out" }'
PAID = f'[[subscription]]\ngroup = "paid"\ntags = "PAID"\n{SINK}\n'
URL = 'options = { url = "jdbc:x" }'


def write(folder: Path, text: str) -> Path:
    file = folder / "orders.toml"
    file.write_text(text)
    return file


def test_a_route_has_its_defaults_and_paths_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "filters.py").write_text("class Odd: ...")
    text = f"""{SOURCE}
        start = 2026-11-15T09:30:00Z
        options = {{ failOnDataLoss = false, retries = 3 }}
        {PAID}
        [[subscription]]
        group = "eu-big"
        sql = "region = 'eu' AND price > 100"
        sink = {{ format = "rocketmq", topic = "eu-big" }}
        [[subscription]]
        group = "odd"
        code = "filters.py:Odd"
        isolation = "required"
        sink = {{ format = "csv", path = "s3://bucket/odd", columns = ["offset", "keys"] }}
        [unmatched]
        sink = {{ format = "console" }}
        """
    config = load(write(tmp_path, text))
    assert config.job == "route"
    assert config.source.name == "nameserver 127.0.0.1:9876, topic orders"
    assert config.source.start == "2026-11-15T09:30:00+00:00"
    assert config.source.options == {"failOnDataLoss": "false", "retries": "3"}
    assert config.checkpoint == str(tmp_path / ".tamis" / "orders")
    assert config.summary == str(tmp_path / ".tamis" / "orders" / "summary.json")
    paid, eu_big, odd = config.subscriptions
    assert paid.sink.path == str(tmp_path / "out")
    assert paid.sink.columns == DEFAULT_COLUMNS
    assert (eu_big.sink.topic, eu_big.sink.nameserver) == ("eu-big", "127.0.0.1:9876")
    assert odd.filter.source == "class Odd: ..."
    assert (odd.filter.isolation, paid.filter.isolation) == ("required", "off")
    assert (odd.sink.path, odd.sink.columns) == ("s3://bucket/odd", ("offset", "keys"))
    assert config.unmatched is not None
    for one in config.subscriptions:
        assert type(one).from_dict(one.to_dict()) == one


def test_formats_are_spark_s_names_in_any_case(tmp_path: Path) -> None:
    sinks = {
        "paid": '{ format = "Parquet", path = "out" }',
        "texts": '{ format = "TEXT", path = "texts", columns = ["keys"] }',
        "shown": '{ format = "console", options = { numRows = 3 } }',
        "table": '{ format = "Delta", table = "orders" }',
        "base": f'{{ format = "jdbc", table = "o", columns = "keys", {URL} }}',
        "own": '{ format = "org.Example", path = "own" }',
    }
    tables = [
        f'[[subscription]]\ngroup = "{g}"\ntags = "*"\nsink = {s}\n' for g, s in sinks.items()
    ]
    found = [one.sink for one in load(write(tmp_path, SOURCE + "".join(tables))).subscriptions]
    formats = ["parquet", "text", "console", "delta", "jdbc", "org.Example"]
    assert [one.format for one in found] == formats
    assert [one.format in FILE_FORMATS for one in found] == [True, True, *[False] * 4]


def sink_of(folder: Path, sink: str) -> Sink:
    text = f'{SOURCE}[[subscription]]\ngroup = "paid"\ntags = "PAID"\n{sink}'
    [one] = load(write(folder, text)).subscriptions
    assert type(one).from_dict(json.loads(json.dumps(one.to_dict()))) == one
    return one.sink


def test_columns_of_a_sink_are_names_and_expressions(tmp_path: Path) -> None:
    sink = sink_of(
        tmp_path,
        """
        [subscription.sink]
        format = "kafka"
        topic = "paid"
        options = { "kafka.bootstrap.servers" = "h:1" }
        [subscription.sink.columns]
        key = "keys"
        value = "get_json_object(body, '$.id')"
        headers = "array(named_struct('key', 'queue', 'value', binary(queue_id)))"
        """,
    )
    assert sink.columns == ("key", "value", "headers")
    assert sink.expressions["key"] == "keys"
    # A body is bytes, of which Spark makes no text by itself.
    assert sink.expressions["value"] == "get_json_object(string(body), '$.id')"
    assert set(sink.needs) == {"keys", "body", "queue_id"}
    assert (sink.name, sink.topic) == ("kafka paid", "paid")


def test_names_and_expressions_may_stand_in_one_list(tmp_path: Path) -> None:
    columns = """["keys", { price = "double(properties['price'])", tags = "tags" }, "offset"]"""
    sink = sink_of(tmp_path, f'sink = {{ format = "parquet", path = "a", columns = {columns} }}')
    assert sink.columns == ("keys", "price", "tags", "offset")
    assert dict(sink.expressions) == {"price": "double(properties['price'])"}
    assert set(sink.needs) == {"keys", "tags", "offset", "properties"}


def test_a_checkpoint_from_before_there_were_expressions_is_still_the_same(tmp_path: Path) -> None:
    sink = sink_of(tmp_path, 'sink = { format = "json", path = "a", columns = ["keys"] }')
    fields = {"format", "path", "topic", "nameserver", "table", "columns", "options"}
    assert sink.to_dict().keys() == fields


def test_a_table_of_a_database_is_named_like_any_other(tmp_path: Path) -> None:
    options = 'options = { URL = "jdbc:postgresql://h/d" }'
    sink = sink_of(
        tmp_path, f'sink = {{ format = "jdbc", table = "orders", columns = "keys", {options} }}'
    )
    assert (sink.name, sink.table, sink.option("url")) == (
        "jdbc orders",
        "orders",
        "jdbc:postgresql://h/d",
    )


def test_the_sinks_of_the_documentation_are_understood(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text("utf-8")
    [block] = [part for part in text.split("```") if "to-kafka" in part]
    kafka, base = load(write(tmp_path, SOURCE + block.removeprefix("toml"))).subscriptions
    assert (kafka.sink.name, base.sink.name) == ("kafka paid", "jdbc orders")
    assert base.sink.columns == ("key", "stored", "price", "order.*")
    assert base.sink.expressions["order.*"].startswith("from_json(string(body), ")


def test_the_other_jobs_have_tables_of_their_own(tmp_path: Path) -> None:
    archive = load(
        write(
            tmp_path,
            f'{SOURCE}[run]\njob = "archive"\n'
            '[archive]\npath = "history"\nproperties = ["region", "price:double"]',
        )
    ).archive
    assert archive is not None
    assert (archive.path, archive.format) == (str(tmp_path / "history"), "parquet")
    assert archive.properties == ("region", "price:double")
    replay = load(
        write(
            tmp_path,
            f'{SOURCE}[run]\njob = "replay"\n[replay]\nsince = 2026-11-01\nrate = 500\n{SINK}',
        )
    ).replay
    assert replay is not None
    assert (replay.filter, replay.since, replay.rate) == (ALL, "2026-11-01", 500.0)


AUDITED = f'{SOURCE}[run]\njob = "audit"\n[audit]\n'
WRONG = {
    "[source": "orders.toml: Expected ']'",
    "": "orders.toml: has no source",
    "[sorce]": "sorce: there is no such table; did you mean source?",
    PAID: "has no source",
    '[source]\ntopic = "orders"': "[source] does not say where messages are: give it one of",
    '[source]\nstore = "a"\narchive = "b"': "[source] has store and archive: give it one of",
    f'[source]\nstore = "hdfs://h:1/s"\n{PAID}': "a store's files are read by their path on all",
    '[source]\nnameserver = "h:1"\n' + PAID: "[source] has no topic",
    '[source]\nnameserver = "h:1"\ntopci = "t"\n'
    + PAID: "topci: there is no such setting; did you",
    f'{SOURCE}strat = "latest"\n{PAID}': "[source] strat: there is no such setting; did you mean",
    f'{SOURCE}start = "soon"\n{PAID}': "start = 'soon': it takes earliest, latest, a time in ISO",
    f'{SOURCE}dialect = "5.0"\n{PAID}': "dialect = '5.0': it takes one of 4.9, 5.1.3",
    f"{SOURCE}options = {{ a = [1] }}\n{PAID}": "options: a = [1]: it takes one value",
    SOURCE: "has no [[subscription]]: nothing would be routed",
    f'{SOURCE}[run]\njob = "rout"\n{PAID}': "[run] job = 'rout': it takes one of route, archive, "
    "replay, audit; did you mean route?",
    f'job = "route"\n{SOURCE}[run]\njob = "audit"': "job is said twice: leave out that of [run]",
    f'{AUDITED}report = "a.pdf"': "it is an HTML file, name it so",
    f'{AUDITED}table = {{ format = "csv", path = "a" }}': "[audit] table: format = 'csv': it takes "
    "one of parquet, json, orc",
    f'{AUDITED}table.path = "a"\nlost.path = "a/b"': "lie in each other",
    f'{SOURCE}lost = "l"\n[run]\njob = "replay"': "[source] lost says which messages: leave out",
    f'{SOURCE}lost = "l"\n[run]\njob = "replay"\n[replay]\n{SINK}': "sink is not for [source] lost",
    '[source]\nstore = "s"\nlost = "l"\n[run]\njob = "replay"': "[source] lost needs a nameserver",
    f"{SOURCE}[run]\nmax_offsets_per_batch = 0\n{PAID}": "takes a whole number above 0",
    f'{SOURCE}[archive]\npath = "a"\n{PAID}': "[archive] is of another job: see [run] job",
    f'{SOURCE}[subscription]\ngroup = "paid"': "it takes tables: write [[subscription]]",
    f"{SOURCE}{PAID}{PAID}": "subscription paid: there are two of that group",
    f"{SOURCE}{PAID}{PAID.replace('paid', 'again')}": "out is the sink of subscription paid too",
    f"{SOURCE}{PAID}{PAID.replace('paid', 'in').replace('out', 'out/in')}": "lie in each other",
    f"{SOURCE}{PAID}[unmatched]\n{SINK}": "[unmatched] sink:",
    f"{SOURCE}{PAID.replace('paid', 'a/b')}": "subscription a/b: a group is named by letters",
    f"{SOURCE}{PAID.replace('group', 'gruop')}": "gruop: there is no such setting; did you",
    SOURCE + PAID.replace('group = "paid"', ""): "[[subscription]] the first has no group",
    f"{SOURCE}{PAID.replace('subscription', 'subscriptions')}": "subscriptions: there is no such "
    "table; did you mean subscription?",
    f"{SOURCE}{PAID.replace('tags', 'tag')}": "subscription paid: tag: there is no such setting; "
    "did you mean tags?",
    SOURCE + PAID.replace('tags = "PAID"', 'SQL = "a = 1"'): "SQL: there is no such setting; did "
    "you mean sql?",
    '[source]\nnameservers = "h:1"': "nameservers: there is no such setting; did you mean names",
    SOURCE + PAID.replace('tags = "PAID"', ""): "paid: has no filter: give it one of tags, sql",
    f'{SOURCE}{PAID}sql = "a = 1"': "subscription paid: has both tags and sql: give it one of them",
    SOURCE + PAID.replace('tags = "PAID"', 'sql = "a >"'): "subscription paid: sql: column 4",
    SOURCE + PAID.replace('"PAID"', '"||"'): "subscription paid: tags: column 1",
    SOURCE + PAID.replace('tags = "PAID"', 'code = "a.py"'): "code = 'a.py': write file.py:Class",
    SOURCE + PAID.replace('tags = "PAID"', 'code = "a.py:A"'): "code: there is no file",
    f'{SOURCE}{PAID}isolation = "off"': "isolation is for code, not for tags: leave it out",
    SOURCE
    + PAID.replace('tags = "PAID"', 'code = "a.py:A"\nisolation = "on"'): "isolation = 'on': it"
    " takes one of off, required",
    f"{SOURCE}{PAID.replace('path', 'paht')}": "sink: paht: there is no such setting; did",
    SOURCE + PAID.replace(', path = "out"', ""): "paid: sink: format parquet needs a path",
    f"{SOURCE}{PAID.replace('parquet', 'csv')}": "csv has no room for properties and body",
    f"{SOURCE}{PAID.replace('parquet', 'rocketmq')}": "path is not for format rocketmq, which",
    SOURCE + PAID.replace(" }", ', columns = ["ofset"] }'): "no ofset; did you mean offset?",
    SOURCE + PAID.replace(" }", ", mode = 1 }"): "sink: mode: there is no such setting",
    f"{SOURCE}{PAID.replace('sink', 'snk')}": "snk: there is no such setting; did you mean sink?",
    SOURCE + PAID.replace(SINK, ""): "subscription paid: has no sink",
}
WRONG_SINKS = {
    'format = "rocketmq"': "format rocketmq needs a topic",
    'format = "rocketmq", topic = "a", columns = ["body"]': "columns is not for format rocketmq",
    'format = "rocketmq", topic = "a", options = { path = "b" }': "path is what the sink says",
    'format = "Text", path = "a"': "text takes one column, of text",
    'format = "text", path = "a", columns = "offset"': "text takes one column, of text",
    'format = "console", path = "a"': "path is not for format console",
    'format = "console", options = { numRows = "x" }': "numRows = x: it takes a whole number",
    'format = "console", options = { rows = 1 }': "console has no rows: it takes numRows",
    'format = "parquet", path = "a", table = "b"': "table is not for format parquet",
    'format = "orc", path = "a", nameserver = "h:1"': "nameserver is not for format orc",
    'format = "delta"': "format delta needs a path or a table",
    'format = "delta", path = "a", table = "b"': "has both path and table: give it one of them",
}
SERVERS = 'options = { "kafka.bootstrap.servers" = "h:1" }'
MADE = {  # what is said of columns of a sink to a parquet file
    '["keys", "Keys"]': "columns: keys and Keys: there are two of that name",
    '["keys", { KEYS = "tags" }]': "columns: keys and KEYS: there are two of that name",
    '["price"]': 'a message has no price; make it of others: { price = "expression" }',
    "[]": "columns: there are none",
    "[1]": "columns: 1: it takes names of columns, or a table of names and expressions",
    "{ price = 1 }": "columns: price = 1: it takes the name of a message's column, or an expr",
    '{ price = " " }': "columns: price = ' ': it takes the name of a message's column",
    '{ order.x = "keys" }': "columns: order: put quotes around a name with dots",
    '{ value = "bdy" }': "columns: value = 'bdy': a message has no bdy; did you mean body?",
    '{ batch = "offset" }': "columns: batch is a name that the pipeline uses itself",
    '{ _to = "offset" }': "columns: _to is a name that the pipeline uses itself",
}
WRONG_SINKS |= {f'format = "parquet", path = "a", columns = {c}': said for c, said in MADE.items()}
WRONG_SINKS |= {
    'format = "kafka", topic = "a"': "format kafka needs the option kafka.bootstrap.servers",
    'format = "kafka", topic = "a", options = { "kafka.bootstrap.server" = "h:1" }': "kafka.boot"
    "strap.server: format kafka has no such option; did you mean kafka.bootstrap.servers?",
    f'format = "kafka", {SERVERS}, columns = {{ value = "body" }}': "format kafka needs a topic",
    f'format = "kafka", topic = "a", {SERVERS}': "columns: kafka needs a column value: columns =",
    f'format = "kafka", topic = "a", {SERVERS}, columns = {{ value = "body", price = "1" }}': "kaf"
    "ka has no room for price: it takes value, key, headers, topic, partition",
    f'format = "kafka", topic = "a", {SERVERS}, columns = {{ value = "body", topic = "tags" }}': ""
    "columns: topic is said by the sink too",
    'format = "kafka", path = "a"': "path is not for format kafka, which takes topic, columns",
    'format = "jdbc", table = "a"': "format jdbc needs the option url: options = { url = ",
    f'format = "jdbc", {URL}': "format jdbc needs a table",
    f'format = "jdbc", tabel = "a", {URL}': "tabel: there is no such setting; did you mean table?",
    'format = "jdbc", table = "a", options = { url = "jdbc:x", dbtable = "b" }': "has both table "
    "and the option dbtable",
    f'format = "jdbc", table = "a", {URL}': "columns: jdbc has no room for the map properties",
}
WRONG |= {
    f'{SOURCE}[[subscription]]\ngroup = "paid"\ntags = "PAID"\nsink = {{ {sink} }}': said
    for sink, said in WRONG_SINKS.items()
}
WRONG |= {
    '[source]\narchive = "a"\n'
    + PAID.replace(" }", ', columns = "property_string" }'): "no property_s",
    f'{SOURCE}[run]\njob = "archive"\n[archive]\npath = "a"\nformat = "text"': "one column only",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text.replace("\n", ";"))
def test_what_is_wrong_is_told_in_a_line_with_the_file(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    first, *picture = str(caught.value).split("\n")
    assert first.startswith(f"{file}: ")
    assert WRONG[text] in first
    assert not picture or picture[-1].strip() == "^"
