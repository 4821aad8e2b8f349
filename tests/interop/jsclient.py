"""A client of RocketMQ's protocol in JavaScript, in a process of its own."""

import base64
import shutil
from pathlib import Path

from interop.build import Unavailable
from interop.cppclient import HERE, ForeignClient, Row, available, install

SOURCE = HERE / "jsclient"


class JsClient(ForeignClient):
    """One producer or one consumer."""

    def __init__(self, home: Path) -> None:
        modules = available(_modules)
        super().__init__(["node", str(SOURCE / "driver.js")], home, {"NODE_PATH": str(modules)})


def body(row: Row) -> bytes:
    return base64.b64decode(row["body"])


def _modules() -> Path:
    missing = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"the JavaScript client needs {' and '.join(missing)} on the PATH")
    place = HERE / "target" / "js"
    files = [SOURCE / "package.json", SOURCE / "package-lock.json"]
    what = "".join(file.read_text() for file in files)
    npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    install(place, what, npm, files=files)
    return place / "node_modules"
