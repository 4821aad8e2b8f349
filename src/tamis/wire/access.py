"""Requests about accounts, as RocketMQ's `mqadmin` makes them: fields and bodies (4.9.4)."""

from dataclasses import dataclass
from typing import ClassVar

from .codes import RequestCode
from .fields import Header

__all__ = [
    "AclConfig",
    "AclVersionResponse",
    "CreateAccessConfig",
    "DeleteAccessConfig",
    "PlainAccessConfig",
    "UpdateWhiteAddresses",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateAccessConfig(Header):
    """Its text shows no secret. Permissions are written as `a=PUB,b=SUB`."""

    CODE: ClassVar = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        return f"CreateAccessConfig({self.access_key!r}, ...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAccessConfig(Header):
    CODE: ClassVar = RequestCode.DELETE_ACL_CONFIG
    access_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateWhiteAddresses(Header):
    CODE: ClassVar = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    global_white_addrs: str
    acl_file_full_path: str | None = None  # empty: the default file


@dataclass(frozen=True, slots=True, kw_only=True)
class AclVersionResponse(Header):
    """Both versions are JSON."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_addr: str
    cluster_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAccessConfig:
    """An account. Its text shows no secret."""

    access_key: str
    secret_key: str
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None

    def __repr__(self) -> str:
        return f"PlainAccessConfig({self.access_key!r}, ...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclConfig:
    global_white_addrs: list[str]
    plain_access_configs: list[PlainAccessConfig]
