"""The answer to GET_GROUP_RULES: what was decided about members that disagree, and its state."""

from dataclasses import dataclass
from typing import Any

__all__ = ["BrokerRules", "FilterChange", "GroupRules", "Lane"]


@dataclass(frozen=True, slots=True)
class Lane:
    """Members of a group that are served by a subscription of their own. One without members is
    held for them to come back, and has been for `held_seconds`."""

    id: str
    filters: dict[str, str]  # by topic, in words
    members: list[str]
    held_seconds: float
    progress: list[dict[str, Any]]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Lane":
        return cls(
            id=str(value["id"]),
            filters={str(topic): _words(one) for topic, one in value["filters"].items()},
            members=[str(one) for one in value["members"]],
            held_seconds=float(value["held_seconds"] or 0),
            progress=[
                {
                    "topic": str(one["topic"]),
                    "queue": int(one["queue"]),
                    "offset": int(one["offset"]),
                }
                for one in value["progress"]
            ],
        )


@dataclass(frozen=True, slots=True)
class FilterChange:
    """From `cuts` on, offsets by queue, the new filter holds. `made`: when that was decided."""

    topic: str
    old: str
    new: str
    cuts: dict[str, int]
    made: int

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "FilterChange":
        return cls(
            topic=str(value["topic"]),
            old=_words(value["old"]),
            new=_words(value["new"]),
            cuts={str(queue): int(offset) for queue, offset in value["cuts"].items()},
            made=int(value["made"]),
        )


@dataclass(frozen=True, slots=True)
class GroupRules:
    """`refused`: why members are refused, one text for each reason."""

    policy: str
    lanes: list[Lane]
    changes: list[FilterChange]
    refused: list[str]


@dataclass(frozen=True, slots=True)
class BrokerRules:
    """`policy` is that of groups which have none of their own."""

    policy: str
    hold_seconds: float
    groups: dict[str, GroupRules]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "BrokerRules":
        """Raises KeyError, TypeError, ValueError or AttributeError for what is no such answer."""
        return cls(
            policy=str(value["policy"]),
            hold_seconds=float(value["hold_seconds"]),
            groups={
                str(one["group"]): GroupRules(
                    policy=str(one["policy"]),
                    lanes=[Lane.from_json(lane) for lane in one["lanes"]],
                    changes=[FilterChange.from_json(change) for change in one["cutovers"]],
                    refused=[str(why) for why in one["refused"]],
                )
                for one in value["groups"]
            },
        )


def _words(one: dict[str, Any]) -> str:
    return f"{one['kind']} {one['text']!r}"
