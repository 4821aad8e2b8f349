"""Accounts, for tools: making, changing and deleting them, white addresses, and what there is.

RocketMQ's `AdminBrokerProcessor` (4.9.4). A change is on the disk, and holds, when it is answered.
No answer but that to `GET_BROKER_CLUSTER_ACL_CONFIG`, and no line of the log, has a secret in it.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ...acl import AclKeeper
from ...acl.files import AclFiles, Loaded
from ...errors import ConfigError, ResponseError
from ...net.server import Answer, Request
from ...wire import beans
from ...wire.access import (
    AclConfig,
    AclVersionResponse,
    CreateAccessConfig,
    DeleteAccessConfig,
    PlainAccessConfig,
    UpdateWhiteAddresses,
)
from ...wire.bodies import DataVersion
from ...wire.codes import ResponseCode
from ...wire.headers import Nothing
from ..config import Settings

__all__ = ["all_accounts", "delete_account", "put_account", "put_white_addresses", "versions"]

log = logging.getLogger(__name__)

_OFF = "the broker has no access control: start it with --acl FILE, or aclEnable=true"


async def put_account(
    keeper: AclKeeper | None, header: CreateAccessConfig, request: Request
) -> Answer:
    code = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    key, secret = header.access_key, header.secret_key
    if len(key) <= 6 or secret is None or len(secret) <= 6:
        # RocketMQ's text has the secret in it
        why = f"The accessKey={key} and secretKey cannot be null and length should longer than 6"
        raise ResponseError(code, why)
    values: dict[str, Any] = {"accessKey": key, "secretKey": secret}
    if header.white_remote_address is not None:
        values["whiteRemoteAddress"] = header.white_remote_address
    values["admin"] = header.admin
    for name, text in (
        ("defaultTopicPerm", header.default_topic_perm),
        ("defaultGroupPerm", header.default_group_perm),
    ):
        if text:
            values[name] = text
    for name, perms in ("topicPerms", header.topic_perms), ("groupPerms", header.group_perms):
        if perms is not None:
            values[name] = _resources(code, perms)
    await _change(keeper, code, lambda files: files.put_account(values))
    log.info("%s: account %s was set", request.peer, key)
    return Answer()


def _resources(code: int, text: str) -> list[str]:
    """Raises ResponseError, as `Permission.checkResourcePerms`."""
    found = _split(text)
    for resource in found:
        parts = [part for part in resource.split("=") if part]
        if len(parts) != 2:
            why = (
                f"Parse Resource format error for {resource}.\n"
                "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
            )
            raise ResponseError(code, why)
        if parts[1].strip() not in ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"):
            why = (
                f"Parse resource permission error for {resource}.\n"
                "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
            )
            raise ResponseError(code, why)
    return found


def _split(text: str) -> list[str]:
    """As Java's `String.split`: empty parts at the end go."""
    parts = text.split(",")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


async def delete_account(
    keeper: AclKeeper | None, header: DeleteAccessConfig, request: Request
) -> Answer:
    code, key = ResponseCode.DELETE_ACL_CONFIG_FAILED, header.access_key
    if not await _change(keeper, code, lambda files: files.delete_account(key)):
        why = f"The accesskey[{key}] corresponding to accessConfig has been deleted failed."
        raise ResponseError(code, why)
    log.info("%s: account %s was deleted", request.peer, key)
    return Answer()


async def put_white_addresses(
    keeper: AclKeeper | None, header: UpdateWhiteAddresses, request: Request
) -> Answer:
    code = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    given = header.global_white_addrs
    change = partial(
        AclFiles.put_white_addresses,
        addresses=[one for one in _split(given) if one.strip()],
        path=header.acl_file_full_path or "",
    )
    if not await _change(keeper, code, change):
        why = f"The globalWhiteAddresses[{given}] has been updated failed."
        raise ResponseError(code, why)
    log.info("%s: global white addresses are now %s", request.peer, given)
    return Answer()


async def _change(
    keeper: AclKeeper | None, code: int, work: Callable[[AclFiles], Loaded | None]
) -> bool:
    """Raises ResponseError."""
    if keeper is None:
        raise ResponseError(code, _OFF)
    try:
        return await keeper.change(work)
    except ConfigError as error:
        raise ResponseError(code, str(error)) from None
    except OSError as error:
        log.error("accounts can't be written: %s", error)
        raise ResponseError(code, f"not changed: {error}") from None


def versions(
    settings: Settings,
    keeper: AclKeeper | None,
    address: Callable[[], str],
    header: None,
    request: Request,
) -> Answer:
    if keeper is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, _OFF)
    found = {
        file.path: DataVersion(timestamp=file.version.timestamp, counter=file.version.counter)
        for file in keeper.loaded.files
    }
    config = settings.config
    return Answer(
        AclVersionResponse(
            version=beans.encode(found.get(str(keeper.files.file), DataVersion())).decode(),
            all_acl_file_version=beans.encode(found).decode(),
            broker_name=config.name,
            broker_addr=address(),
            cluster_name=config.cluster,
        )
    )


def all_accounts(keeper: AclKeeper | None, header: None, request: Request) -> Answer:
    """With their secrets, as RocketMQ gives them: its console wants them to change an account."""
    if keeper is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, _OFF)
    files = keeper.loaded.files
    body = AclConfig(
        global_white_addrs=[text for file in files for text in file.white_addresses],
        plain_access_configs=[
            PlainAccessConfig(
                access_key=one.access_key,
                secret_key=one.secret_key,
                white_remote_address=one.white_address,
                admin=one.is_admin,
                default_topic_perm=one.default_topic,
                default_group_perm=one.default_group,
                topic_perms=_listed(one.topic_perms),
                group_perms=_listed(one.group_perms),
            )
            for file in files
            for one in file.accounts
        ],
    )
    log.info("%s: was given all accounts", request.peer)
    return Answer(Nothing(), body=beans.encode(body))


def _listed(given: tuple[str, ...] | None) -> list[str] | None:
    return None if given is None else list(given)
