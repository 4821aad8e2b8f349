"""The files of accounts: several of them, changes that last, and what fails on the way."""

import asyncio
import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tamis.acl import AclKeeper
from tamis.acl.files import AclFiles
from tamis.errors import ConfigError

TEXT = """\
# a comment
globalWhiteRemoteAddresses:
- 10.1.2.3
accounts:
- accessKey: first-key
  secretKey: first-secret
  defaultTopicPerm: PUB
  owner: somebody
"""
MORE = "accounts:\n- accessKey: {0}-key\n  secretKey: {0}-secret\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


def keys(files: AclFiles) -> set[str]:
    return set(files.load().accounts.by_key)


def test_the_directory_beside_the_file_has_more_files(file: Path) -> None:
    folder = file.parent / "acl" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.yml").write_text(MORE.format("second"))
    (folder.parent / "b.yaml").write_text(MORE.format("third"))
    (folder.parent / "c.txt").write_text("no YAML: [")
    (folder.parent / "tools.yml").write_text("accessKey: x\nsecretKey: y\n")
    assert keys(AclFiles(file)) == {"first-key", "second-key", "third-key"}
    file.unlink()
    assert keys(AclFiles(file)) == {"second-key", "third-key"}


def test_a_key_in_two_files_is_refused_with_both(file: Path) -> None:
    (file.parent / "acl").mkdir()
    (file.parent / "acl" / "a.yml").write_text(MORE.format("first"))
    with pytest.raises(ConfigError) as raised:
        AclFiles(file).load()
    assert f"{file}, line 5: accessKey first-key is in " in str(raised.value)
    assert "acl/a.yml too" in str(raised.value)


def test_no_file_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        AclFiles(tmp_path / "plain_acl.yml").load()


def test_an_account_is_added_changed_and_deleted(file: Path) -> None:
    now = 1_794_726_821.374
    files = AclFiles(file, lambda: now)
    files.put_account({"accessKey": "second-key", "secretKey": "12345678", "admin": True})
    loaded = files.load()
    assert loaded.accounts.by_key["second-key"].is_admin
    assert loaded.accounts.by_key["second-key"].secret_key == "12345678"
    assert [one.version.counter for one in loaded.files] == [1]
    assert loaded.files[0].version.timestamp == 1_794_726_821_374
    files.put_account({"accessKey": "first-key", "secretKey": "another-secret", "admin": False})
    first = files.load().accounts.by_key["first-key"]
    assert (first.secret_key, first.default_topic) == ("another-secret", "PUB")  # it stays
    assert "owner: somebody" in file.read_text()
    assert files.delete_account("second-key") is not None
    assert files.delete_account("second-key") is None
    assert keys(files) == {"first-key"}
    assert files.load().files[0].version.counter == 3
    assert files.load().files[0].white_addresses == ("10.1.2.3",)


def test_an_account_is_changed_in_the_file_that_has_it(file: Path) -> None:
    (file.parent / "acl").mkdir()
    other = file.parent / "acl" / "a.yml"
    other.write_text(MORE.format("second"))
    files = AclFiles(file)
    files.put_account({"accessKey": "second-key", "secretKey": "another-secret"})
    assert "another-secret" in other.read_text()
    assert file.read_text() == TEXT
    assert files.put_white_addresses(["10.9.9.9"], str(other)) is not None
    assert files.put_white_addresses(["10.8.8.8"]) is not None
    assert [one.white_addresses for one in files.load().files] == [("10.9.9.9",), ("10.8.8.8",)]
    assert files.put_white_addresses(["*"], "/etc/passwd") is None


def test_an_account_is_added_to_a_file_that_is_not_there_yet(file: Path) -> None:
    (file.parent / "acl").mkdir()
    os.rename(file, file.parent / "acl" / "a.yml")
    files = AclFiles(file)
    files.put_account({"accessKey": "second-key", "secretKey": "12345678"})
    assert file.exists()
    assert file.stat().st_mode & 0o777 == 0o600
    assert keys(files) == {"first-key", "second-key"}


@pytest.mark.parametrize(
    "values",
    [
        {"accessKey": "new", "secretKey": "12345678"},
        {"accessKey": "new-key", "secretKey": "short"},
        {"accessKey": "new-key", "secretKey": "12345678", "whiteRemoteAddress": "nowhere"},
        {"accessKey": "new-key", "secretKey": "12345678", "topicPerms": ["a"]},
    ],
)
def test_a_change_that_would_be_refused_is_not_written(file: Path, values: Any) -> None:
    with pytest.raises(ConfigError):
        AclFiles(file).put_account(values)
    assert file.read_text() == TEXT


def test_the_mode_of_the_file_is_kept_and_a_link_stays_one(file: Path, tmp_path: Path) -> None:
    file.chmod(0o640)
    link = tmp_path / "link.yml"
    link.symlink_to(file)
    AclFiles(link).put_account({"accessKey": "second-key", "secretKey": "12345678"})
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert "second-key" in file.read_text()


@pytest.mark.parametrize("step", ["open", "fdopen", "fsync", "replace"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_whatever_fails_leaves_the_old_file_and_no_other(
    file: Path, monkeypatch: pytest.MonkeyPatch, step: str, nth: int
) -> None:
    files = AclFiles(file)
    real, calls = getattr(os, step), 0

    def fail(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **named)

    monkeypatch.setattr(os, step, fail)
    try:
        files.put_account({"accessKey": "second-key", "secretKey": "12345678"})
        is_changed = True
    except OSError:
        is_changed = False
    monkeypatch.undo()
    assert is_changed is (calls < nth)
    assert keys(files) == ({"first-key", "second-key"} if is_changed else {"first-key"})
    assert os.listdir(file.parent) == ["plain_acl.yml"]


def test_a_change_of_the_file_holds_soon_and_a_broken_one_is_refused(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        keeper = AclKeeper(file, watch_seconds=0.02)
        task = asyncio.create_task(keeper.run())
        try:
            file.write_text(TEXT.replace("first", "other"))
            await until(lambda: "other-key" in keeper.access.accounts.by_key)
            file.write_text("accounts:\n- accessKey: other-key\n")
            await until(lambda: "stay in force" in caplog.text)
            assert f"{file}, line 2: an account without secretKey; the accounts" in caplog.text
            assert "other-key" in keeper.access.accounts.by_key
            file.unlink()
            await until(lambda: "there is no such file" in caplog.text)
            assert "other-key" in keeper.access.accounts.by_key
            file.write_text(MORE.format("third"))
            await until(lambda: "third-key" in keeper.access.accounts.by_key)
            (file.parent / "acl").mkdir()
            (file.parent / "acl" / "a.yml").write_text(MORE.format("fourth"))
            await until(lambda: "fourth-key" in keeper.access.accounts.by_key)
        finally:
            task.cancel()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "secret" not in caplog.text.replace("secretKey", "")
    assert len([one for one in caplog.records if "stay in force" in one.message]) == 2


def test_a_change_by_request_holds_at_once_and_one_that_fails_changes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        keeper = AclKeeper(file)
        values = {"accessKey": "second-key", "secretKey": "12345678"}
        assert await keeper.change(lambda files: files.put_account(values))
        assert "second-key" in keeper.access.accounts.by_key
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            await keeper.change(lambda files: files.delete_account("second-key"))
        assert "second-key" in keeper.access.accounts.by_key
        await keeper.review()
        assert "second-key" in keeper.access.accounts.by_key

    asyncio.run(run())


async def until(condition: Any, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
