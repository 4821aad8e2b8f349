"""What was decided about groups beyond RocketMQ's own settings, and the progress of their lanes.

Kept in `config/tamisGroups.json`, beside RocketMQ's tables and unknown to it: an Apache broker that
is started on the same directory finds each group's offset where it always is, and that is the least
of its lanes'.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import StoreError
from ..store import tables
from ..store.commitlog import Queue
from ..store.store import Store
from .lanes import Band, CutOver, Division, Lane, LaneFilter, Newcomer, lane_id

__all__ = ["MOST_CUTOVERS", "MOST_RULES", "POLICIES", "Rules", "cutover_to_json"]

POLICIES: Final = ("rocketmq", "reject", "isolate")
MOST_RULES: Final = 10_000  # groups with a policy of their own or a cut-over
MOST_CUTOVERS: Final = 100  # of a group


class Rules:
    """Policies of groups, and groups that are divided. After a crash at any moment, the table of
    the last save is read; it is never ahead of the messages that are on the disk."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        """Raises StoreError if there is a table that can't be read."""
        self.path = folder / "tamisGroups.json"
        self._store = store
        self.changes = 0
        self.on_change: Callable[[], None] = lambda: None
        self.policies: dict[str, str] = {}
        self.divisions: dict[str, Division] = {}
        table = tables.read_table(self.path)
        if table is not None:
            try:
                self._load(table)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise StoreError(
                    f"{self.path} can't be read: {type(error).__name__} {error}. Mend it or move "
                    "it and its backup away: groups then go on from their committed offsets, with "
                    "the broker's policy"
                ) from None

    def has_room(self, group: str) -> bool:
        known = self.policies.keys() | self.divisions.keys()
        return group in known or len(known) < MOST_RULES

    def set_policy(self, group: str, policy: str | None) -> None:
        """None for the broker's."""
        if self.policies.get(group) != policy:
            self.changes += 1
            self.policies.pop(group, None)
            if policy is not None:
                self.policies[group] = policy

    def forget(self, group: str) -> None:
        if self.policies.pop(group, None) or self.divisions.pop(group, None):
            self.changes += 1

    def snapshot(self) -> Callable[[], None]:
        groups: dict[str, Any] = {}
        for name in sorted(self.policies.keys() | self.divisions.keys()):
            made = groups[name] = {}
            if name in self.policies:
                made["policy"] = self.policies[name]
            division = self.divisions.get(name)
            if division is not None:
                made["isBroadcast"] = division.is_broadcast
                made["began"] = _by_topic(division.began)
                made["lanes"] = [_lane_to_json(lane) for lane in division.lanes]
                made["cutovers"] = [cutover_to_json(one) for one in division.cutovers.values()]

        def save() -> None:
            if groups and self._store is not None:
                self._store.make_durable()  # first what the offsets point to
            tables.write_table(self.path, {"groups": groups})

        return save

    def _load(self, table: Mapping[str, Any]) -> None:
        for name, said in table["groups"].items():
            policy = said.get("policy")
            if policy is not None:
                if policy not in POLICIES:
                    raise ValueError(f"policy {policy!r} of group {name}")
                self.policies[name] = policy
            lanes = [_lane_from_json(one) for one in said.get("lanes") or ()]
            changes = [_cutover_from_json(one) for one in said.get("cutovers") or ()]
            if lanes or changes:
                lanes.sort(key=lambda lane: lane.born)
                cutovers = {one.topic: one for one in changes}
                broadcast = bool(said.get("isBroadcast"))
                division = Division(name, lanes, cutovers, broadcast)
                division.began = _of_topics(said.get("began") or {})
                self.divisions[name] = division


def _lane_to_json(lane: Lane) -> dict[str, Any]:
    return {
        "id": lane.id,
        "born": lane.born,
        "isPlaceholder": lane.is_placeholder,
        "filters": {topic: one.to_json() for topic, one in lane.filters.items()},
        "progress": _by_topic(lane.progress),
        "rewinds": _by_topic(lane.rewinds),
        "newcomers": [
            {"clientId": one.client_id, "queues": [list(queue) for queue in sorted(one.queues)]}
            for one in (*lane.newcomers.values(), *lane.awaited.values())
        ],
        "had": [
            {
                "topic": queue[0],
                "queue": queue[1],
                "from": band.start,
                "to": band.end,
                "butFor": band.leftover.to_json() if band.leftover is not None else None,
            }
            for queue, bands in lane.bands.items()
            for band in bands
        ],
    }


def _lane_from_json(said: Mapping[str, Any]) -> Lane:
    filters = {topic: LaneFilter.from_json(one) for topic, one in said["filters"].items()}
    lane = Lane(lane_id(filters), int(said["born"]), filters)
    lane.is_placeholder = bool(said.get("isPlaceholder"))
    lane.progress = _of_topics(said["progress"])
    lane.rewinds = _of_topics(said.get("rewinds") or {})
    for one in said.get("newcomers") or ():
        known = {(str(topic), int(queue_id)) for topic, queue_id in one["queues"]}
        lane.awaited[one["clientId"]] = Newcomer(one["clientId"], known)
    for one in said.get("had") or ():
        leftover = one.get("butFor")
        band = Band(
            int(one["from"]),
            int(one["to"]),
            LaneFilter.from_json(leftover) if leftover is not None else None,
        )
        lane.bands.setdefault((str(one["topic"]), int(one["queue"])), []).append(band)
    return lane


def cutover_to_json(one: CutOver) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "old": one.old.to_json(),
        "new": one.new.to_json(),
        "cuts": {str(queue_id): offset for queue_id, offset in one.cuts.items()},
        "made": one.made,
        "isHanded": one.is_handed,
    }


def _cutover_from_json(said: Mapping[str, Any]) -> CutOver:
    cuts = {int(queue_id): int(offset) for queue_id, offset in said["cuts"].items()}
    old, new = LaneFilter.from_json(said["old"]), LaneFilter.from_json(said["new"])
    return CutOver(str(said["topic"]), old, new, cuts, int(said["made"]), bool(said["isHanded"]))


def _by_topic(offsets: Mapping[Queue, int]) -> dict[str, dict[str, int]]:
    made: dict[str, dict[str, int]] = {}
    for (topic, queue_id), offset in offsets.items():
        made.setdefault(topic, {})[str(queue_id)] = offset
    return made


def _of_topics(said: Mapping[str, Mapping[Any, Any]]) -> dict[Queue, int]:
    return {(topic, int(one)): int(at) for topic, by in said.items() for one, at in by.items()}
