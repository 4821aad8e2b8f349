"""Disks that fail: system calls replaced for the files of one test, and a small file system of its
own for a test that fills it, where this user may mount one."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def replace_call(
    patch: pytest.MonkeyPatch, under: Path, name: str, fake: Callable[..., Any]
) -> None:
    """Call `fake` in place of the function of `os` of that name, for files under a folder. Others
    are left alone: the brokers that other tests share run in this process too, and save."""
    real = getattr(os, name)

    def call(target: int | str | Path, *rest: Any, **named: Any) -> Any:
        path = Path(os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target)
        is_ours = path == under or under in path.parents
        return (fake if is_ours else real)(target, *rest, **named)

    patch.setattr(os, name, call)


@contextmanager
def small_disk(folder: Path, *, megabytes: int = 16, inodes: int = 128) -> Iterator[Path]:
    """Mount an ext4 file system of that size from a file in `folder`."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4", path=_PATH) is None:
        pytest.skip("mounting a small file system takes root and mkfs.ext4")
    image, mounted = folder / "disk.img", folder / "disk"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes * 2**20)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-N", str(inodes), str(image))
    try:
        _run("mount", "-o", "loop", str(image), str(mounted))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"can't mount a file system here: {error.stderr.decode().strip()}")
    try:
        yield mounted
    finally:
        _run("umount", str(mounted))


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": _PATH})


def free_inodes(path: Path) -> int:
    return os.statvfs(path).f_ffree


def take_inodes(path: Path, *, leave: int) -> list[Path]:
    """Make empty files until there is room for `leave` more; removing them gives it back."""
    path.mkdir(exist_ok=True)
    made = []
    while free_inodes(path) > leave:
        made.append(path / str(len(made)))
        made[-1].touch()
    return made
