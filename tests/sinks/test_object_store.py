"""Sinks, checkpoints and archives in an object store, where a rename is a copy of each file and may
be cut off: a server that speaks S3, through Hadoop's s3a."""

from collections.abc import Iterator

import pytest
from sinks.driving import Driver, Pipeline, keys, wanted
from sinks.servers import object_store

ALL = range(50)


@pytest.fixture(scope="module")
def bucket(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with object_store(tmp_path_factory.mktemp("s3")) as address:
        settings = {
            "fs.s3a.endpoint": address,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.access.key": "any",
            "fs.s3a.secret.key": "any",
            "fs.s3a.aws.credentials.provider": (
                "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
            ),
            "fs.s3a.input.stream.type": "classic",
        }
        driver.ask("configure", settings=settings)
        yield "s3a://tamis"


def lose_a_commit(pipeline: Pipeline, checkpoint: str) -> int:
    """As after a crash between the sink's commit and Spark's record of the last batch."""
    commits = pipeline.driver.ask("names", path=f"{checkpoint}/spark/commits")
    last = max(int(name) for one in commits if (name := one.rpartition("/")[2]).isdigit())
    pipeline.driver.ask("remove", path=f"{checkpoint}/spark/commits/{last}")
    return last


def test_files_in_an_object_store_have_each_message_once(pipeline: Pipeline, bucket: str) -> None:
    out, checkpoint = f"{bucket}/{pipeline.topic}/out", f"{bucket}/{pipeline.topic}/checkpoint"
    pipeline.describe(f'format = "parquet", path = "{out}"', checkpoint)
    pipeline.send(ALL)
    pipeline.run()
    assert keys(pipeline.driver.read("parquet", out)) == wanted(ALL)
    lose_a_commit(pipeline, checkpoint)
    pipeline.run()
    assert keys(pipeline.driver.read("parquet", out)) == wanted(ALL)
    pipeline.send(range(50, 60))
    pipeline.run()
    assert keys(pipeline.driver.read("parquet", out)) == wanted(range(60))


def test_a_rename_that_was_cut_off_is_done_again(pipeline: Pipeline, bucket: str) -> None:
    out, checkpoint = f"{bucket}/{pipeline.topic}/out", f"{bucket}/{pipeline.topic}/checkpoint"
    pipeline.describe(f'format = "parquet", path = "{out}"', checkpoint)
    pipeline.send(ALL)
    pipeline.run()
    last = lose_a_commit(pipeline, checkpoint)
    for name in pipeline.driver.ask("names", path=f"{out}/batch={last}"):
        if name.endswith(("_whole", ".parquet")):  # what it had not come to
            pipeline.driver.ask("remove", path=name)
    assert keys(pipeline.driver.read("parquet", out)) != wanted(ALL)
    pipeline.run()
    assert keys(pipeline.driver.read("parquet", out)) == wanted(ALL)


def test_an_archive_in_an_object_store_has_each_message_once(
    pipeline: Pipeline, bucket: str
) -> None:
    path, checkpoint = f"{bucket}/{pipeline.topic}/archive", f"{bucket}/{pipeline.topic}/checkpoint"
    pipeline.file.write_text(
        f'job = "archive"\n[source]\nnameserver = "{pipeline.cluster.nameserver}"\n'
        f'topic = "{pipeline.topic}"\n[run]\ncheckpoint = "{checkpoint}"\n'
        f'max_offsets_per_batch = 20\n[archive]\npath = "{path}"\n'
    )
    pipeline.send(ALL)
    pipeline.run()
    assert keys(pipeline.driver.read("parquet", path)) == list(ALL)
    lose_a_commit(pipeline, checkpoint)
    pipeline.run()
    assert keys(pipeline.driver.read("parquet", path)) == list(ALL)
