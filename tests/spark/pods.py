"""As much of Kubernetes as Spark needs, on loopback: an API server that keeps pods in memory, and
runs each that is created as a process of this machine.

It is no cluster: there are no images, volumes, limits or networks. The entry point, arguments and
variables of a container are those that Spark asks for.
"""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PATTERN = re.compile(r"/apis?(?:/[\w.]+)?/v1/namespaces/default/(\w+)(?:/([^/]+))?")
WHOLE = re.compile(r"/var/data/\S+|/opt/spark/conf")  # where containers have volumes of Spark's


class Machine:
    """Runs containers. `image` is a directory as `deploy/spark/install.sh` fills it, `path` has the
    image's Python first; if it does not start pods, they stay pending."""

    def __init__(
        self, directory: Path, image: Path, path: str, java: Path, *, starts: bool = True
    ) -> None:
        self.directory, self.image, self.path, self.java = directory, image, path, java
        self.starts = starts
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.refused: list[str] = []  # requests for which there is no answer
        self.lock = threading.Lock()

    def create(self, kind: str, made: dict[str, Any]) -> dict[str, Any]:
        name = made["metadata"]["name"]
        made["metadata"] |= {
            "namespace": "default",
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        with self.lock:
            self.objects.setdefault(kind, {})[name] = made
            if kind == "pods" and self.starts:
                self.start(name, made)
        return made

    def start(self, name: str, pod: dict[str, Any]) -> None:
        [container] = pod["spec"]["containers"]
        home = self.directory / name
        home.mkdir()
        fields = {"status.podIP": "127.0.0.1", "metadata.name": name}
        variables = {"PATH": self.path, "HOME": str(home), "SPARK_HOME": str(self.image / "spark")}
        for variable in container["env"]:
            value = variable.get("value")
            if value is None:
                value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            variables[variable["name"]] = WHOLE.sub(str(home), value)
        with (self.directory / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [self.image / "entrypoint.sh", *container["args"]],
                env={**variables, "JAVA_HOME": str(self.java)},
                cwd=home,
                stdout=log,
                stderr=log,
            )

    def seen(self, kind: str, name: str) -> dict[str, Any]:
        """An object as it is now."""
        found = self.objects[kind][name]
        if kind == "pods" and not self.starts:
            found["status"] = {"phase": "Pending"}
        elif kind == "pods":
            code = self.processes[name].poll()
            phase = "Running" if code is None else "Failed" if code else "Succeeded"
            state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
            status = {"name": found["spec"]["containers"][0]["name"], "state": state}
            found["status"] = {"phase": phase, "containerStatuses": [status]}
        return found

    def found(self, kind: str, selector: str) -> list[dict[str, Any]]:
        wanted = [pair.split("=", 1) for pair in selector.split(",") if "!=" not in pair and pair]
        with self.lock:
            return [
                self.seen(kind, name)
                for name, one in self.objects.get(kind, {}).items()
                if all(one["metadata"].get("labels", {}).get(k) == v for k, v in wanted)
            ]

    def delete(self, kind: str, name: str) -> dict[str, Any]:
        with self.lock:
            if name in self.processes:
                self.processes[name].terminate()
            return self.objects[kind].pop(name)

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def kubernetes(machine: Machine) -> Iterator[str]:
    """Gives the master's URL for Spark."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.act()

        do_GET = do_DELETE = do_PATCH = do_PUT = do_POST

        def act(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            address = urlsplit(self.path)
            selector = parse_qs(address.query).get("labelSelector", [""])[0]
            match PATTERN.fullmatch(unquote(address.path)), self.command:
                case re.Match() as seen, "POST" if seen[2] is None:
                    self.answer(machine.create(seen[1], json.loads(body)), 201)
                case re.Match() as seen, "GET" if seen[2] is None:
                    listed = machine.found(seen[1], selector)
                    kind = "PodList" if seen[1] == "pods" else "List"
                    self.answer({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": listed})
                case re.Match() as seen, "GET" | "PATCH" if seen[2] in machine.objects.get(
                    seen[1], {}
                ):
                    self.answer(machine.seen(seen[1], seen[2]))
                case re.Match() as seen, "PATCH":  # "apply", which creates what is not there
                    self.answer(machine.create(seen[1], json.loads(body)), 201)
                case re.Match() as seen, "DELETE":
                    names = [one["metadata"]["name"] for one in machine.found(seen[1], selector)]
                    for name in names if seen[2] is None else {seen[2]} & {*names}:
                        machine.delete(seen[1], name)
                    self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})
                case _:
                    machine.refused.append(f"{self.command} {self.path}")
                    missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
                    self.answer({**missing, "reason": "NotFound", "code": 404}, 404)

        def answer(self, value: dict[str, Any], code: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"k8s://http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
        machine.close()
