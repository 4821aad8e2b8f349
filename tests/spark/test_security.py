"""Keys and TLS of source and sink: who may read and write, and that no secret is told: in plans,
schemas, errors, progress, checkpoints or the catalog."""

import contextlib
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Certificate
from client.access_cases import ACCOUNTS, ADMIN, READER, WRITER
from client.targets import IS_REQUIRED
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tamis.client import ClientConfig, Message, ProducerConfig, blocking
from tamis.errors import ConfigError
from tamis.pipeline.config import load
from tamis.security import ClientTls, Credentials, Security
from tamis.spark import reason
from tamis.spark.options import Options
from tamis.spark.write_options import WriteOptions
from tamis.testing import LocalCluster

SECRET = "s3cr3t-of-spark"
TOPIC, COUNT = "Guarded", 20
MODES = ("simple", "extended", "cost", "formatted")


class Guarded:
    """A cluster with access control that takes TLS only."""

    def __init__(self, nameserver: str, ca: str, home: Path) -> None:
        self.nameserver = nameserver
        self.ca = ca
        self._home = home

    def options(self, key: tuple[str, str] | None) -> dict[str, str]:
        made = {"nameserver": self.nameserver, "topic": TOPIC, "tlsCa": self.ca, "retries": "0"}
        if key is not None:
            made |= {"accessKey": key[0], "secretKey": key[1]}
        return made

    def settings(self, key: tuple[str, str]) -> dict[str, Any]:
        return {"access_key": key[0], "secret_key": key[1], "tls_ca": self.ca}

    def secret_file(self, key: tuple[str, str]) -> str:
        file = self._home / f"{key[0]}.secret"
        file.write_text(key[1])
        file.chmod(0o600)
        return str(file)


@pytest.fixture(scope="module", params=["tamis", "4.9"] if IS_REQUIRED else ["tamis"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("guarded")
    authority = Authority(home / "ca")
    with running(request.param, home, authority.issue(rsa=True)) as nameserver:
        made = Guarded(nameserver, authority.ca, home)
        settings = made.settings(ADMIN)
        with blocking.Admin(nameserver, config=ClientConfig(**settings)) as admin:
            admin.create_topic(TOPIC, queues=2)
            admin.create_topic("Copied", queues=2)
            admin.create_topic("Routed", queues=2)
        config = ProducerConfig(**settings)
        with blocking.Producer(nameserver, config=config) as producer:
            for n in range(COUNT):
                producer.send(Message(TOPIC, f"body {n}"))
        yield made


@contextlib.contextmanager
def running(target: str, home: Path, issued: Certificate) -> Iterator[str]:
    """The address of its name server."""
    if target == "4.9":
        from interop.secured import secured_cluster

        with secured_cluster(
            home / "store", tls=True, certificate=(issued.cert, issued.key)
        ) as theirs:
            yield theirs.nameserver
        return
    (home / "plain_acl.yml").write_text(ACCOUNTS)
    with LocalCluster(
        log_file_size=2**24,
        acl_file=home / "plain_acl.yml",
        tls="enforcing",
        tls_cert=issued.cert,
        tls_key=issued.key,
    ) as ours:
        yield ours.nameserver


def check_silent(text: str, *secrets: str) -> None:
    for secret in (*secrets, READER[1], WRITER[1], ADMIN[1]):
        assert secret not in text


# Against a broker.


def test_a_batch_is_read_with_a_key_over_tls_and_its_plan_has_no_secret(
    spark: SparkSession, guarded: Guarded
) -> None:
    rows = spark.read.format("rocketmq").options(**guarded.options(READER)).load()
    assert rows.count() == COUNT
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in MODES:
            rows.explain(mode=mode)
    assert "rocketmq" in shown.getvalue()
    check_silent(shown.getvalue() + rows.schema.json() + repr(rows))


def test_the_secret_may_be_in_a_file(spark: SparkSession, guarded: Guarded) -> None:
    options = guarded.options(READER)
    del options["secretKey"]
    options["secretKeyFile"] = guarded.secret_file(READER)
    assert spark.read.format("rocketmq").options(**options).load().count() == COUNT


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, "no access key was used"),
        ((READER[0], SECRET), "the secret key is not the one"),
        (WRITER, "No default permission for topic:Guarded"),
    ],
)
def test_a_read_that_is_refused_says_which_key_and_no_secret(
    spark: SparkSession, guarded: Guarded, key: tuple[str, str] | None, said: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        spark.read.format("rocketmq").options(**guarded.options(key)).load().collect()
    assert said in reason(refused.value)
    if key is not None:
        assert f"key {key[0]}" in reason(refused.value)
    check_silent(str(refused.value), SECRET)


def test_rows_are_written_with_a_key_that_may(spark: SparkSession, guarded: Guarded) -> None:
    rows = spark.createDataFrame([("one",), ("two",)], "body string")
    rows.write.format("rocketmq").options(**guarded.options(WRITER)).mode("append").save()
    with pytest.raises(PySparkException) as refused:
        rows.write.format("rocketmq").options(**guarded.options(READER)).mode("append").save()
    assert "No default permission for topic:Guarded (key readerkey)" in reason(refused.value)
    check_silent(str(refused.value))


def test_a_stream_leaves_no_secret_in_checkpoint_progress_or_plan(
    spark: SparkSession, guarded: Guarded, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rocketmq").options(
        **guarded.options(READER), startingOffsets="earliest"
    )
    sink = rows.load().select("body").writeStream.format("rocketmq")
    sink = sink.options(**{**guarded.options(ADMIN), "topic": "Copied"})
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        query.explain(True)
    check_silent(shown.getvalue() + json.dumps([str(one) for one in query.recentProgress]))
    files = [one for one in (tmp_path / "checkpoint").rglob("*") if one.is_file()]
    assert files
    for file in files:
        check_silent(file.read_bytes().decode("utf-8", "replace"))


def test_a_table_does_not_keep_secrets(spark: SparkSession, guarded: Guarded) -> None:
    keys = f"nameserver '{guarded.nameserver}', topic '{TOPIC}', tlsCa '{guarded.ca}'"
    keys += f", accessKey '{READER[0]}'"
    with pytest.raises(PySparkException) as refused:
        spark.sql(f"CREATE TABLE guarded USING rocketmq OPTIONS ({keys}, secretKey '{READER[1]}')")
    assert "option secretKey: the catalog would keep it" in reason(refused.value)
    check_silent(str(refused.value))
    file = guarded.secret_file(READER)
    spark.sql(f"CREATE TABLE guarded USING rocketmq OPTIONS ({keys}, secretKeyFile '{file}')")
    try:
        assert spark.table("guarded").count() >= COUNT
        told = "".join(str(spark.sql(f"{one} guarded").collect())
                       for one in ("SHOW CREATE TABLE", "DESCRIBE EXTENDED"))  # fmt: skip
        check_silent(told + spark.table("guarded").schema.json())
    finally:
        spark.sql("DROP TABLE guarded")


def test_a_view_reads_with_its_key(spark: SparkSession, guarded: Guarded) -> None:
    said = ", ".join(f"{name} '{value}'" for name, value in guarded.options(READER).items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW guarded_view USING rocketmq OPTIONS ({said})")
    assert spark.sql("SELECT count(*) FROM guarded_view").collect()[0][0] >= COUNT
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        spark.sql("SELECT * FROM guarded_view").explain(True)
    check_silent(shown.getvalue())


PIPELINE = """
[source]
{place}
topic = "Guarded"
[[subscription]]
group = "all"
tags = "*"
sink = {{ format = "rocketmq", topic = "Routed" }}
"""


@pytest.mark.parametrize("way", ["--profile", "environment"])
def test_a_pipeline_has_its_keys_from_a_profile_or_the_environment(
    guarded: Guarded, tmp_path: Path, way: str
) -> None:
    config = tmp_path / "config.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in guarded.settings(ADMIN).items()]
    server = f'nameserver = "{guarded.nameserver}"'
    config.write_text("\n".join(["[profiles.prod]", server, *lines]))
    config.chmod(0o600)
    environ = {**os.environ, "TAMIS_CONFIG": str(config)}
    place, options = "", list[str]()
    if way == "--profile":
        options = ["--profile", "prod"]
    else:
        place = server
        keys = {"TAMIS_ACCESS_KEY": ADMIN[0], "TAMIS_SECRET_KEY": ADMIN[1]}
        environ |= {**keys, "TAMIS_TLS_CA": guarded.ca}
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.format(place=place))
    done = subprocess.run(
        [sys.executable, "-m", "tamis", *options, "pipeline", "run", str(file), "--json"],
        capture_output=True,
        text=True,
        env=environ,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] >= COUNT
    check_silent(done.stdout + done.stderr)
    written = [one for one in (tmp_path / ".tamis").rglob("*") if one.is_file()]
    assert written
    for one in written:
        check_silent(one.read_bytes().decode("utf-8", "replace"))


# Without one.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if (name.startswith("TAMIS_") and name != "TAMIS_LOOPS") or name == "NAMESRV_ADDR":
            monkeypatch.delenv(name)
    file = tmp_path / "config.toml"
    file.write_text(
        f'[profiles.prod]\nnameserver = "mq.example.com:9876"\naccess_key = "k"\n'
        f'secret_key = "{SECRET}"\ntls_ca = "ca.pem"\n[profiles.bare]\naccess_key = "k"\n'
        f'secret_key = "{SECRET}"\n'
    )
    file.chmod(0o600)
    monkeypatch.setenv("TAMIS_CONFIG", str(file))
    return tmp_path


def test_a_profile_says_name_server_keys_and_tls_of_source_and_sink(home: Path) -> None:
    wanted = Security(Credentials("k", SECRET), ClientTls(ca=str(home / "ca.pem")))
    read = Options.parse({"profile": "prod", "topic": "T"}, of_log=False)
    assert (read.nameserver, read.security) == ("mq.example.com:9876", wanted)
    written = WriteOptions.parse({"profile": "prod", "topic": "T"})
    assert (written.nameserver, written.security) == ("mq.example.com:9876", wanted)
    assert written.producer().security == wanted
    for made in (read, written):
        check_silent(repr(made), SECRET)
        assert pickle.loads(pickle.dumps(made)) == made  # executors get it so
    other = Options.parse({"profile": "prod", "topic": "T", "tls": "false"}, of_log=False)
    assert other.security.tls is None


def test_the_environment_says_keys_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_ACCESS_KEY", "k2")
    monkeypatch.setenv("TAMIS_SECRET_KEY", SECRET)
    parsed = Options.parse({"nameserver": "h:1", "topic": "T"}, of_log=False)
    assert parsed.security == Security(Credentials("k2", SECRET))
    monkeypatch.setenv("OTHER", "other-secret")
    said = {"nameserver": "h:1", "topic": "T", "accessKey": "k3", "secretKeyEnv": "OTHER"}
    assert Options.parse(said, of_log=False).security == Security(Credentials("k3", "other-secret"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accessKey": "k"}, "access key k (option accessKey) has no secret key"),
        ({"secretKey": SECRET}, "a secret key (option secretKey) without an access key"),
        ({"accessKey": "k", "secretKey": SECRET, "secretKeyEnv": "X"}, "says that already"),
        ({"accesKey": "k"}, "did you mean accessKey?"),
        ({"tls": "maybe"}, "option tls: 'maybe' is neither true nor false"),
        ({"profile": "prd"}, "there is no profile prd; did you mean prod?"),
        ({"tlsKey": "x.pem"}, "tls_key without tls_cert"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    home: Path, options: dict[str, str], said: str
) -> None:
    for parse in (WriteOptions.parse, lambda given: Options.parse(given, of_log=False)):
        with pytest.raises(ConfigError) as refused:
            parse({"nameserver": "h:1", "topic": "T", **options})
        assert said in str(refused.value)
        check_silent(str(refused.value), SECRET)


@pytest.mark.parametrize(
    ("source", "sink", "said"),
    [
        ('nameserver = "h:1"\noptions = { secretKey = "x" }', "", "secretKey is a secret: name a"),
        ('nameserver = "h:1"', ', options = { SecretKey = "x" }', "set TAMIS_SECRET_KEY in the"),
        ('store = "s"\nprofile = "prod"', "", "profile is for a nameserver, not for store"),
        ('profile = "bare"', "", "profile bare has no nameserver"),
        ('profile = "prd"', "", "did you mean prod?"),
        ("", "", "does not say where messages are"),
    ],
)
def test_a_pipeline_file_has_no_secrets(home: Path, source: str, sink: str, said: str) -> None:
    file = home / "p.toml"
    file.write_text(
        f'[source]\n{source}\ntopic = "T"\n[[subscription]]\ngroup = "g"\ntags = "*"\n'
        f'sink = {{ format = "rocketmq", topic = "U"{sink} }}\n'
    )
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert said in str(refused.value)


def test_a_sink_of_another_cluster_has_a_profile_of_its_own(home: Path) -> None:
    file = home / "p.toml"
    text = '[source]\nprofile = "prod"\ntopic = "T"\n'
    for group, sink in (
        ("same", 'topic = "U"'),
        ("other", 'topic = "U", nameserver = "h:1"'),
        ("named", 'topic = "U", nameserver = "h:1", profile = "bare"'),
    ):
        text += f'[[subscription]]\ngroup = "{group}"\ntags = "*"\n'
        text += f'sink = {{ format = "rocketmq", {sink} }}\n'
    file.write_text(text)
    sinks = [one.sink for one in load(file).subscriptions]
    found = [(one.nameserver, one.profile) for one in sinks]
    assert found == [("mq.example.com:9876", "prod"), ("h:1", None), ("h:1", "bare")]
    for one in sinks:
        assert type(one).from_dict(one.to_dict()).profile == one.profile
        check_silent(json.dumps(one.to_dict()), SECRET)
