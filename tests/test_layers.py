"""Who may import whom: the table of the house style, and that light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tamis

SRC = Path(tamis.__file__).parent

ALL_BUT_CLI = {
    *("errors", "message", "wire", "filter", "store", "net", "nameserver", "broker", "client"),
    *("code", "fate", "sandbox", "filterserver", "spark", "pipeline", "testing", "doctor"),
    *("security", "acl"),
}
MAY_IMPORT = {
    "errors": set(),
    "java": set(),  # below all: anyone may import it
    "message": {"errors"},
    "wire": {"errors", "message"},
    "filter": {"errors"},
    "fate": {"errors", "filter"},
    "store": {"errors", "message", "wire", "filter"},  # of wire, what lies in files: checked below
    "security": {"errors", "wire"},
    "acl": {"errors", "wire", "security"},
    "net": {"errors", "wire", "security"},
    "nameserver": {"errors", "wire", "net", "security"},
    "broker": {
        *("errors", "message", "wire", "filter", "fate", "store", "net", "security", "acl"),
    },
    "code": {"errors", "message", "wire", "filter"},
    "client": {"errors", "message", "wire", "net", "filter", "fate", "code", "security"},
    "doctor": {"errors", "message", "wire", "filter", "fate", "net", "client", "security"},
    "sandbox": {"errors", "filter", "code"},  # of filter, what an outcome is
    "filterserver": {
        *("errors", "message", "wire", "net", "client", "filter", "code", "sandbox"),
        *("security", "acl"),
    },
    "spark": {
        *("errors", "message", "wire", "net", "filter", "store", "client", "code", "sandbox"),
        *("fate", "security"),
    },
    "pipeline": {"errors", "filter", "fate", "spark", "code", "sandbox", "security"},
    "testing": ALL_BUT_CLI,
    "cli": ALL_BUT_CLI | {"testing"},
    "__main__": {"cli"},
}

COLUMNAR = (
    "filter/engines/columnar",
    "filter/engines/many",
    "filter/engines/shared",
    "filter/engines/_",
    "filter/engines/memory",
    "filter/engines/plain",
    "filter/engines/tiers",
    "filter/engines/warming",
)
HEAVY = {
    "pyspark": ("spark/", "pipeline/", "filter/engines/catalyst"),
    "numpy": (
        "code/",
        "sandbox/",
        "filterserver/",
        "store/",
        "broker/_send",
        "client/columns",
        "client/_column",
        "client/_walk",
        "client/judging",
        "spark/",
        "pipeline/judging",  # no Spark in it: batches as a worker has them
        "pipeline/fates",
        "testing",
        *COLUMNAR,
    ),
    "pyarrow": (
        "code/",
        "sandbox/",
        "filterserver/",
        "store/",
        "client/columns",
        "client/_column",
        "client/compression",
        "client/judging",
        "client/consumer",  # its type only, as the next two
        "client/batching",
        "client/blocking",
        "spark/",
        "pipeline/judging",
        "pipeline/fates",
        *COLUMNAR,
    ),
    "numba": ("store/", "client/_walk", *COLUMNAR),
    "llvmlite": ("store/_crc", "client/_walk", *COLUMNAR),
}

MODULES = sorted(path.relative_to(SRC) for path in SRC.rglob("*.py"))


def _imports(path: Path) -> list[tuple[str, ...]]:
    """Absolute dotted names of what a module imports, `from x import y` as x.y."""
    package = ("tamis", *path.parts[:-1])
    found = []
    for node in ast.walk(ast.parse((SRC / path).read_text())):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = tuple(node.module.split(".")) if node.module else ()
            found += [(*base, *module, alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    layer = path.parts[0].removesuffix(".py")
    if layer == "__init__":
        assert not [name for name in _imports(path) if name[0] == "tamis"]
        return
    assert layer in MAY_IMPORT, f"{layer} is not in the table"
    for name in _imports(path):
        if name[0] == "tamis" and name[1] not in ("__version__", layer):
            assert name[1] in MAY_IMPORT[layer] | {"java"}, f"{path} imports {'.'.join(name)}"
            if layer == "store" and name[1] == "wire":
                assert name[2] in ("record", "properties", "fastjson", "beans", "bodies")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_heavy_libraries_are_imported_only_where_they_are_used(path: Path) -> None:
    for name in _imports(path):
        if name[0] in HEAVY:
            assert path.as_posix().startswith(HEAVY[name[0]]), f"{path} imports {name[0]}"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["filter", "test", "a = 1", "-p", "a=1"], ["filter", "lint", "a = 1"]]
)
def test_a_light_command_loads_no_heavy_library(arguments: list[str]) -> None:
    program = (
        "import sys; from tamis.cli.main import tamis\n"
        f"tamis.main({arguments!r}, standalone_mode=False)\n"
        f"print([m for m in {list(HEAVY)!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_the_client_loads_no_heavy_library_before_it_is_asked_for_batches() -> None:
    program = (
        "import sys, tamis.client, tamis.client.blocking, tamis.client.compat, tamis.doctor\n"
        f"print([m for m in {list(HEAVY)!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
