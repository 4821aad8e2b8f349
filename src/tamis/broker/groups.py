"""The consumer groups there are, with their settings: RocketMQ's `SubscriptionGroupManager`."""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ..store import tables
from ..wire.bodies import GroupConfig
from .quotas import Quotas

__all__ = ["Groups"]

log = logging.getLogger(__name__)

_MADE_AT_START: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"


class Groups(Mapping[str, GroupConfig]):
    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self._folder = folder
        self._now = now
        self.path = folder / "subscriptionGroup.json"
        self.changes = 0
        self.on_change: Callable[[], None] = lambda: None
        self.on_delete: Callable[[str], None] = lambda group: None
        self.quotas: Quotas | None = None
        self._groups, self.version = tables.load_groups(folder)
        for name in _MADE_AT_START:
            self._groups.setdefault(name, GroupConfig(name=name))

    def __getitem__(self, group: str) -> GroupConfig:
        return self._groups[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def copy(self) -> dict[str, GroupConfig]:
        """As they are now."""
        return self._groups.copy()

    def check_quota(self, group: str, client: str | None) -> None:
        """Raises ResponseError if the client, or a tool if there is none, may not create it."""
        if self.quotas is not None and group not in self._groups:
            self.quotas.check_group(group, len(self._groups), client)

    def find(self, group: str, *, create: bool, client: str = "") -> GroupConfig | None:
        """The group's settings; one that is not there is made, if that is allowed. Raises
        ResponseError if the client may not create it."""
        found = self._groups.get(group)
        if found is None and (create or group.startswith(SYSTEM_PREFIX)) and "@" not in group:
            self.check_quota(group, client)
            found = GroupConfig(name=group)
            self.put(found)
        return found

    def put(self, group: GroupConfig) -> None:
        old = self._groups.get(group.name)
        self._groups[group.name] = group
        log.info("group %s: %s", group.name, "made" if old is None else f"changed from {old}")
        self._changed()

    def delete(self, group: str) -> bool:
        if self._groups.pop(group, None) is None:
            return False
        log.info("group %s: deleted", group)
        self._changed()
        self.on_delete(group)
        return True

    def _changed(self) -> None:
        self.version = self.version.next(int(self._now() * 1000))
        self.changes += 1
        self.on_change()

    def snapshot(self) -> Callable[[], None]:
        groups, version = dict(self._groups), self.version
        return lambda: tables.save_groups(self._folder, groups, version)
