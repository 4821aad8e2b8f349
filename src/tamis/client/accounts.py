"""Accounts of brokers with access control: RocketMQ's requests for them, to all masters.

Whoever asks needs an administrator's key. Answers have secrets in them.
"""

from typing import TYPE_CHECKING

from ..wire import beans
from ..wire.access import AclConfig, CreateAccessConfig, DeleteAccessConfig, UpdateWhiteAddresses
from ..wire.codes import RequestCode
from .cluster import each, masters

if TYPE_CHECKING:
    from .admin import Admin

__all__ = ["delete_account", "get_accounts", "put_account", "put_white_addresses"]


async def get_accounts(admin: "Admin") -> dict[str, AclConfig]:
    """By broker. Raises ResponseError."""
    session = admin._session

    async def ask(_: str, address: str) -> AclConfig:
        answer = await session.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        return beans.decode(AclConfig, answer.body)

    return await each(await masters(session), ask)


async def put_account(admin: "Admin", account: CreateAccessConfig) -> list[str]:
    """Makes or changes it; returns the brokers that have it then. Raises ResponseError."""
    return await _tell(admin, account)


async def delete_account(admin: "Admin", access_key: str) -> list[str]:
    """Raises ResponseError if a broker has no such account."""
    return await _tell(admin, DeleteAccessConfig(access_key=access_key))


async def put_white_addresses(admin: "Admin", addresses: list[str]) -> list[str]:
    """Those of the default file, instead of those it has. Raises ResponseError."""
    joined = ",".join(addresses)
    header = UpdateWhiteAddresses(global_white_addrs=joined, acl_file_full_path="")
    return await _tell(admin, header)


async def _tell(
    admin: "Admin", header: CreateAccessConfig | DeleteAccessConfig | UpdateWhiteAddresses
) -> list[str]:
    session = admin._session
    asked = await masters(session)
    await each(asked, lambda _, address: session.ask(address, header))
    return sorted(asked)
