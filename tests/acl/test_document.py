"""Files of accounts that are wrong: each refused in one line with the file and the line."""

import time

import pytest

from tamis.acl import document
from tamis.acl.accounts import AclFile, read_file
from tamis.errors import ConfigError

ACCOUNT = "- accessKey: RocketMQ\n  secretKey: 12345678\n"


def read(text: str | bytes) -> AclFile:
    data = text if isinstance(text, bytes) else text.encode()
    return read_file("a.yml", document.parse(data, "a.yml"))


def test_the_file_that_comes_with_rocketmq_is_read() -> None:
    found = read(
        """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
dataVersion:
- counter: 3
  timestamp: 1794726821374
"""
    )
    first, second = found.accounts
    assert (first.access_key, first.secret_key, first.is_admin) == ("RocketMQ", "12345678", False)
    assert first.group_perms == ("groupA=DENY", "groupB=PUB|SUB", "groupC=SUB")
    assert second.is_admin
    assert second.is_white("192.168.1.7")
    assert found.white_addresses == ("10.10.103.*", "192.168.0.*")
    assert (found.version.counter, found.version.timestamp) == (3, 1794726821374)
    assert found.warnings == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "accounts:\n", "null"])
def test_a_file_that_says_nothing_has_no_accounts(text: str) -> None:
    assert read(text).accounts == ()


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("- a\n", 1, "name: value"),
        ("accounts: x\n", 1, "takes a list"),
        ("accounts:\n- x\n", 2, "name: value"),
        ("accounts:\n- secretKey: 12345678\n", 2, "without accessKey"),
        ("accounts:\n- accessKey: RocketMQ\n", 2, "without secretKey"),
        ("accounts:\n- accessKey: short\n  secretKey: 12345678\n", 2, "accessKey is too short"),
        ("accounts:\n- accessKey: RocketMQ\n  secretKey: s3cr3t\n", 3, "secretKey is too short"),
        ("accounts:\n- accessKey: RocketMQ\n  secretKey: 0123456\n", 3, "put it in quotes"),
        ("accounts:\n- accessKey: RocketMQ\n  secretKey: 1234567.5\n", 3, "put it in quotes"),
        ("accounts:\n- accessKey: 2020-10-10\n  secretKey: 12345678\n", 2, "put it in quotes"),
        ("accounts:\n- accessKey: [RocketMQ]\n", 2, "takes text, not a list"),
        (f"accounts:\n{ACCOUNT}  admin: maybe\n", 4, "true or false"),
        (f"accounts:\n{ACCOUNT}  topicPerms: a=PUB\n", 4, "takes a list"),
        (f"accounts:\n{ACCOUNT}  topicPerms:\n  - a\n", 5, "name=PUB|SUB"),
        (f"accounts:\n{ACCOUNT}  topicPerms:\n  - a=b=SUB\n", 5, "name=PUB|SUB"),
        (f"accounts:\n{ACCOUNT}  whiteRemoteAddress: nowhere\n", 4, "white address"),
        ("globalWhiteRemoteAddresses:\n- 10.1.2.3\n- 10.1\n", 3, "white address"),
        (f"accounts:\n{ACCOUNT}{ACCOUNT}", 4, "there twice; the first is in line 2"),
        (f"accounts:\n{ACCOUNT}  admin: true\n  admin: false\n", 5, "there twice"),
        ("accounts: []\naccounts: []\n", 2, "there twice"),
        ("a: [\n", 2, "not valid YAML"),
        ("a: b: c\n", 1, "not valid YAML"),
        ("accounts:\n\t- x\n", 2, "not valid YAML"),
        ("a: *b\n", 1, "stands for nothing"),
        ("a: &a [*a]\n", 1, "stands for nothing"),  # recursive
        ("a: !!python/object/apply:os.system ['true']\n", 1, "the tag"),
        ("a: !own b\n", 1, "the tag"),
        ("--- a\n--- b\n", 2, "a second document"),
        ("dataVersion:\n- counter: many\n", 2, "whole number"),
        ("x: " + "[" * 17 + "]" * 17 + "\n", 1, "nested"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(text)
    told = str(raised.value)
    assert told.startswith(f"a.yml, line {line}: "), told
    assert why in told
    assert "\n" not in told


@pytest.mark.parametrize("data", [b"\xff\xfe\xff", b"accounts: \xff", b"a: \x00"])
def test_bytes_that_are_no_text_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"a\.yml.*not valid YAML"):
        read(data)


def test_no_error_shows_a_secret() -> None:
    for text in (
        "accounts:\n- accessKey: RocketMQ\n  secretKey: h1dden\n",
        "accounts:\n- accessKey: RocketMQ\n  secretKey: h1dden: x\n",
        'accounts:\n- accessKey: RocketMQ\n  secretKey: "h1dden\n',
        "accounts:\n- accessKey: RocketMQ\n  secretKey: [h1dden]\n",
        "accounts:\n- accessKey: RocketMQ\n  secretKey: h1dden12\n  admin: maybe\n",
    ):
        with pytest.raises(ConfigError) as raised:
            read(text)
        assert "h1dden" not in str(raised.value)
    account = read("accounts:\n- accessKey: RocketMQ\n  secretKey: h1dden12\n").accounts[0]
    assert "h1dden" not in repr(account)


def test_a_bomb_of_aliases_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    for i in range(1, 12):
        lines.append(f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * 10) + "]")
    started = time.process_time()
    with pytest.raises(ConfigError, match="too many aliases"):
        read("\n".join(lines))
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "text",
    [
        "x: " + "[" * 1_000_000,
        "{" * 1_000_000,
        "- " * 500_000,
        "a: [" + "1," * 500_000 + "]",
        "#" * (document.MOST_BYTES + 1),
    ],
    ids=["brackets", "braces", "dashes", "values", "bytes"],
)
def test_a_huge_or_deep_file_is_refused_soon(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ConfigError):
        read(text)
    assert time.process_time() - started < 20


def test_an_alias_that_stands_for_little_is_taken() -> None:
    found = read(
        f"accounts:\n{ACCOUNT}  topicPerms: &perms [a=SUB]\n"
        "- accessKey: another\n  secretKey: '1234567'\n  topicPerms: *perms\n"
    )
    assert [account.topic_perms for account in found.accounts] == [("a=SUB",)] * 2


def test_what_is_passed_over_is_told() -> None:
    found = read(f"accounts:\n{ACCOUNT}  topicPerm: [a=SUB]\n  groupPerms: [g=READ]\nother: 1\n")
    told = "\n".join(found.warnings)
    assert "line 4: topicPerm: not known" in told
    assert "line 5: g=READ: the permission is none of" in told
    assert "line 6: other: not known" in told
