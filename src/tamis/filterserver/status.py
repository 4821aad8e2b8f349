"""What a filter server runs, as JSON: for `tamis filterserver --status` and other tools."""

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..net.server import Answer
from .classes import FilterClass

if TYPE_CHECKING:
    from .server import FilterServer

__all__ = ["answer", "status"]

_MOST_HELD: Final = 16  # of a class: all of them might not fit in an answer


def answer(server: "FilterServer") -> Answer:
    return Answer(body=json.dumps(status(server), ensure_ascii=False).encode())


def status(server: "FilterServer") -> dict[str, Any]:
    config, link = server.config, server.link
    return {
        "address": server.address,
        "started": server.started,
        "broker": {
            "address": link.address,
            "name": link.broker_name,
            "id": link.broker_id,
            "registered": server.registration.is_registered,
            "failure": server.registration.failure,
        },
        "uploads": {
            "allowed": config.uploads,
            "secret": config.secret is not None,
            "accepted": server.uploads.accepted,
            "refused": dict(server.uploads.refused),
            "conflicts": server.classes.conflicts,
        },
        "isolation": {"wanted": config.isolation, "found": server.isolation},
        "on_error": config.on_error,
        "pulls_waiting": server.puller.waiting,
        "bytes_kept": server.streams.memory.used,
        "classes": [_class(server, one) for one in server.classes],
    }


def _class(server: "FilterServer", one: FilterClass) -> dict[str, Any]:
    tally = one.tally
    return {
        "group": one.group,
        "topic": one.topic,
        "class": one.identity.class_name,
        "crc": one.identity.crc,
        "bytes": one.size,
        "uploader": one.uploader,
        "since": one.since,
        "messages": tally.messages,
        "matched": tally.matched,
        "failed": tally.failed,
        "dead_letters": tally.dead_letters,
        "seconds": round(tally.seconds, 6),
        "restarts": one.restarts,
        "replacements": tally.replacements,
        "conflicts": tally.conflicts,
        "last_failure": tally.last_failure,
        "held_queues": len(one.held),
        "held": [
            {"queue": queue_id, "offset": held.offset, "reason": held.reason, "tries": held.tries}
            for queue_id, held in islice(one.held.items(), _MOST_HELD)
        ],
    }
