"""Whether a request is allowed: who signed it, and what they may do.

RocketMQ's `PlainAccessValidator` and `PlainPermissionManager.validate` (4.9.4), in their order:
global white addresses, the key, its own white addresses, the signature, the permissions. What was
found out about a connection and its key is remembered until the accounts change; the signature is
checked for every request.
"""

import base64
import hmac
import logging
import time
from collections.abc import Mapping
from typing import Final, Protocol

from ..java import encode_utf8
from ..security.credentials import ACCESS_KEY, SIGNATURE
from ..wire.bodies import Heartbeat
from ..wire.command import Command
from . import needs
from .accounts import Account
from .addresses import Pattern, canonical
from .needs import Needs
from .permissions import RETRY, TRACE_TOPIC, Perm

__all__ = ["ACL_EXCEPTION", "Access", "Accounts", "Known"]

log = logging.getLogger(__name__)

ACL_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "  # clients look for it
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"  # Java's client adds it after it has signed
_NOT_SIGNED: Final = (SIGNATURE, _UNIQUE_KEY_QUERY)
_MOST_VERDICTS: Final = 4096  # remembered for a connection
_MOST_ORDERS: Final = 256
_MOST_NAMES: Final = 32  # fields of a request whose order is remembered
_LOG_SECONDS: Final = 1.0  # between lines in the log about requests refused
_SHOWN: Final = 200  # characters of a refusal in the log


class Peer(Protocol):
    """A connection. Two are the same if they are one object."""

    @property
    def host(self) -> str: ...


class Accounts:
    """All accounts at a time; another one takes its place when they change."""

    def __init__(
        self, accounts: Mapping[str, Account] | None = None, white: tuple[Pattern, ...] = ()
    ) -> None:
        self.by_key: Mapping[str, Account] = accounts if accounts is not None else {}
        self.white = white


class Known:
    """What was found out about a connection. `memo` is for whoever checks signatures elsewhere."""

    __slots__ = ("account", "accounts", "is_account_white", "is_white", "memo", "verdicts")

    def __init__(self, accounts: Accounts, host: str) -> None:
        self.accounts = accounts  # by which the rest was found out
        self.is_white = any(matches(host) for matches in accounts.white)
        self.account: Account | None = None  # of its last request
        self.is_account_white = False
        self.verdicts: dict[object, str | None] = {}
        self.memo: object = None

    def take_on(self, account: Account, host: str) -> None:
        self.account = account
        self.is_account_white = account.is_white(host)
        self.verdicts.clear()
        self.memo = None

    def may_send(self, topic: str) -> bool:
        """For requests whose signature is checked elsewhere."""
        if self.is_white or self.is_account_white:
            return True
        if topic not in self.verdicts:
            assert self.account is not None
            self.remember(topic, _why_not(self.account, 0, {topic: Perm.PUB}))
        return self.verdicts[topic] is None

    def remember(self, what: object, verdict: str | None) -> None:
        if len(self.verdicts) >= _MOST_VERDICTS:
            self.verdicts.clear()
        self.verdicts[what] = verdict


class Access:
    """The accounts in force and what is known of connections. Belongs to one event loop.

    `inner` are accounts of the server's own, which are in no file.
    """

    def __init__(self, accounts: Accounts, inner: tuple[Account, ...] = ()) -> None:
        self._inner = {account.access_key: account for account in inner}
        self._known: dict[Peer, Known] = {}
        self._orders: dict[tuple[str, ...], list[str]] = {}
        self._last_logged = 0.0
        self._unlogged = 0
        self.refused = 0  # requests, since the start
        self.accounts = self._with_inner(accounts)

    def change(self, accounts: Accounts) -> None:
        """From the next request on."""
        self.accounts = self._with_inner(accounts)

    def _with_inner(self, accounts: Accounts) -> Accounts:
        return Accounts({**accounts.by_key, **self._inner}, accounts.white)

    def forget(self, peer: Peer) -> None:
        """It is closed."""
        self._known.pop(peer, None)

    def known(self, peer: Peer) -> Known | None:
        """What is known of it by the accounts in force; None if it has to show its key first."""
        found = self._known.get(peer)
        if found is None or found.accounts is not self.accounts:
            return None
        return found if found.is_white or found.account is not None else None

    def check(self, peer: Peer, request: Command) -> str | None:
        """Why a request is refused; None if it is not. What a heartbeat has in its body is for
        `check_heartbeat`."""
        known = self._known.get(peer)
        if known is None or known.accounts is not self.accounts:
            known = self._known[peer] = Known(self.accounts, canonical(peer.host))
        why = None if known.is_white else self._check(known, peer, request)
        return None if why is None else self._refuse(peer, request.code, why)

    def _check(self, known: Known, peer: Peer, request: Command) -> str | None:
        fields = request.fields
        key = fields.get(ACCESS_KEY) if fields is not None else None
        if fields is None or key is None:
            return "No accessKey is configured"
        account = known.account
        if account is None or account.access_key != key:
            account = self.accounts.by_key.get(key)
            if account is None:
                return f"No acl config for {key}"
            known.take_on(account, canonical(peer.host))
        if known.is_account_white:
            return None
        if not self._is_signed(account, fields, request.body):
            return f"Check signature failed for accessKey={key}"
        code = request.code
        what = (code, *[fields.get(name) for name in needs.names_of(code)])
        try:
            return known.verdicts[what]
        except KeyError:
            why = _why_not(account, code, needs.of_request(code, fields))
            known.remember(what, why)
            return why

    def check_heartbeat(self, peer: Peer, request: Command, data: Heartbeat) -> str | None:
        """As `check`, which has let the request pass, for the groups and topics in its body."""
        host = canonical(peer.host)
        if any(matches(host) for matches in self.accounts.white):
            return None
        account = self.accounts.by_key.get((request.fields or {}).get(ACCESS_KEY, ""))
        if account is None:  # gone in this moment
            return self._refuse(peer, request.code, "No accessKey is configured")
        if account.is_white(host):
            return None
        why = _why_not(account, request.code, needs.of_heartbeat(data))
        return None if why is None else self._refuse(peer, request.code, why)

    def _is_signed(self, account: Account, fields: Mapping[str, str], body: bytes) -> bool:
        names = tuple(fields)
        order = self._orders.get(names)
        is_new = order is None
        if order is None:
            # Java compares strings by their UTF-16 units
            order = sorted(
                (name for name in names if name not in _NOT_SIGNED),
                key=lambda name: name.encode("utf-16-be", "surrogatepass"),
            )
        head = encode_utf8("".join([fields[name] for name in order]))
        digest = account.signer.digest(head, body)
        given = encode_utf8(fields.get(SIGNATURE, ""))
        if not hmac.compare_digest(base64.b64encode(digest), given):
            return False
        if is_new and len(names) <= _MOST_NAMES:  # of those only whom we know
            if len(self._orders) >= _MOST_ORDERS:
                self._orders.clear()
            self._orders[names] = order
        return True

    def _refuse(self, peer: Peer, code: int, why: str) -> str:
        self.refused += 1
        self._unlogged += 1
        now = time.monotonic()
        if now - self._last_logged >= _LOG_SECONDS:
            others = f"; {self._unlogged - 1} others before it" if self._unlogged > 1 else ""
            shown = why if why.isprintable() else ascii(why)
            log.warning("%s: request %d refused: %.*s%s", peer, code, _SHOWN, shown, others)
            self._last_logged, self._unlogged = now, 0
        return ACL_EXCEPTION + why


def _why_not(account: Account, code: int, needed: Needs) -> str | None:
    """RocketMQ's `checkPerm`. Whoever has a key may send traces."""
    if needed.get(TRACE_TOPIC) == Perm.PUB:
        return None
    if needs.asks_for_admin(code, needed) and not account.is_admin:
        return (
            f"Need admin permission for request code={int(code)},"
            f" but accessKey={account.access_key} is not"
        )
    for resource, permission in needed.items():
        if not account.may(resource, permission):
            is_group = resource.startswith(RETRY)
            shown = f"group:{resource[len(RETRY) :]}" if is_group else f"topic:{resource}"
            return f"No default permission for {shown}"
    return None
