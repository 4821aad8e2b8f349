"""A broker: its parts, what runs beside the requests, and its start and stop.

One event loop owns everything here. Files leave it at one seam, `_in_thread`: syncing and the
saving of tables. What is done again and again is listed in `start`.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from ..acl import AclKeeper
from ..errors import ConfigError, StoreError
from ..fate.filters import Filter
from ..filter.bloom import BloomFilter
from ..message import Host
from ..net.aio import Peer
from ..net.server import Server
from ..net.tasks import Tasks
from ..security import ServerTls
from ..store.dispatch import parse_delay_levels
from ..store.store import Store
from ..wire.bodies import TopicConfig
from . import dispatch, supervisor
from ._sends import Sends
from .codelag import CodeLags
from .config import BrokerConfig, Settings
from .conflicts import Conflicts
from .delay import Delays
from .filters import Filters
from .groups import Groups
from .handlers.clients import Notices
from .handlers.monitor import FilterServers, Load
from .handlers.pull import Puller
from .handlers.send import Sender, born_host
from .history import Recorder
from .holds import Holds
from .intake import Intake
from .lag import Lags
from .latency import Latency
from .locks import Locks
from .members import ConsumerGroup, Consumers, Producers
from .offsets import Offsets
from .queueing import Queueing
from .quotas import Quotas
from .readers import Readers, last_filter
from .registration import Registrar
from .rules import Rules
from .saving import Saver
from .stats import Stats
from .supervisor import FilterServerProcesses
from .tending import GivenUp, Tending
from .topics import Topics
from .transactions import Transactions
from .verdicts import Verdicts
from .warmup import prepare_loops

__all__ = ["Broker"]

log = logging.getLogger(__name__)

_SILENT: Final = 120.0  # seconds without a heartbeat
_SAVE_HISTORY: Final = 0.25  # seconds: members may change their minds for ever, and each save syncs
_SAVE_OFFSETS: Final = 5.0
_SAVE_FILTERS: Final = 10.0
_CLEAN: Final = 10.0
_CLEAN_SLICE: Final = 0.01  # for queues whose first messages are gone; the rest is swept
_SWEEP: Final = 1.0
_SHORTEST_FLUSH: Final = 0.001
_VIP: Final = 2  # old clients send to the port this much lower
_SEEN_OFF: Final = 20  # groups that connections are taken out of at once


class Broker:
    """From `start` to `close`, once. `data` is the store's directory, RocketMQ's own layout."""

    def __init__(
        self,
        config: BrokerConfig,
        data: Path | str,
        *,
        filter_arguments: Sequence[str] = (),
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`filter_arguments`: more of them for the filter servers that it starts."""
        self.settings = Settings(config)
        self._filter_arguments = filter_arguments
        self.data = Path(data)
        self.now = now
        self._clock = clock
        self.background = Tasks()
        self._threads = ThreadPoolExecutor(2, "tamis-files")
        self.saver = Saver(self._in_thread)
        self.flush_latency = Latency()
        self._flush_failure = ""
        # by which the filter servers that it starts are known to it
        self._own_key = f"filter-server-{secrets.token_hex(8)}"
        self._own_secret = secrets.token_hex(32)
        self.acl: AclKeeper | None = None
        self.started = now()
        self.port = 0
        self.address = ""

    async def start(self, *, listens: bool = True) -> None:
        """Ready for requests, and registered where it could be, when this returns. Raises OSError
        (the port), StoreError (the directory) and ConfigError. One that does not listen is for
        whom its server adopts."""
        await prepare_loops()
        config = self.settings.config
        self.acl = await self._in_thread(self._read_accounts) if config.acl else None
        self.server = Server(
            {},
            on_close=self._peer_closed,
            idle_seconds=config.idle_seconds,
            most_connections=config.most_connections,
            connection_memory=config.connection_memory,
            tls=ServerTls.of(config),
            gate=self.acl.access.check if self.acl is not None else None,
        )
        try:
            await self._start(config, listens)
        except BaseException:
            await self.background.close()
            await self.server.close()
            self._threads.shutdown()
            raise

    async def _start(self, config: BrokerConfig, listens: bool) -> None:
        if listens:
            self.port = await self.server.bind(config.bind, config.port)
        if self.port > _VIP:
            with contextlib.suppress(OSError):
                await self.server.bind(config.bind, self.port - _VIP)
        host = config.advertise or config.bind
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        store_host = _store_host(host, self.port)
        settings = replace(config.store(), store_host=store_host)
        self.store = await self._in_thread(lambda: Store(self.data, settings, now=self.now))
        try:
            await self._open(store_host)
        except BaseException:
            self.store.abandon()
            raise

    async def _open(self, store_host: Host) -> None:
        config, store, now = self.settings.config, self.store, self.now
        folder = store.paths.config
        stored: dict[str, int] = {}
        for topic, queue_id in store.queues:
            stored[topic] = max(stored.get(topic, 0), queue_id + 1)
        self.topics = Topics(folder, config, now, stored)
        self.groups = Groups(folder, now)
        self.offsets = Offsets(folder, store)
        bloom = BloomFilter(config.bloom_error_percent, config.bloom_groups)
        # never before a message that is there: bits are looked for in later ones only
        self.filters = Filters(folder, bloom, lambda: max(now(), store.last_time / 1000))
        self.quotas = self.topics.quotas = self.groups.quotas = Quotas(self.settings, self._clock)
        self.consumers, self.producers = Consumers(), Producers()
        self.recorder = Recorder(folder, self.settings, self.consumers, self._first_offset, now)
        self.rules = Rules(folder, store)
        self.conflicts = Conflicts(
            self.settings, self.rules, self.consumers, self.offsets, self.recorder, self._clock
        )
        self.tending = Tending(self.settings, self.conflicts, self.consumers, store, self._clock)
        self.lags = Lags(store)
        self.readers = Readers(
            self.settings, store, self.topics, self.consumers, self.offsets, self.filters
        )
        self.notices = Notices(self.settings, self.groups, self.server.work)
        self._departed: asyncio.Queue[Peer] = asyncio.Queue()
        self.stats, self.verdicts = Stats(config.cluster, now), Verdicts(now)
        self.holds, self.locks = Holds(self._clock), Locks(self._clock)
        self.filter_servers = FilterServers(self._clock)
        self.code_lags = CodeLags()
        acl_arguments, environment = list[str](), supervisor.environment(config)
        if self.acl is not None:
            acl_arguments = ["--acl", str(self.acl.files.file)]
            environment = supervisor.with_key(
                environment or os.environ, self._own_key, self._own_secret
            )
        self.filter_processes = FilterServerProcesses(
            config.filter_servers,
            [*supervisor.arguments(config, self.port), *self._filter_arguments, *acl_arguments],
            self.background,
            environment,
        )
        self.queueing = Queueing(store, self.holds, self._clock)
        sync = config.flush == "sync"
        self.intake = Intake(store, sync=sync, on_stored=self.queueing.stored)
        self.intake.on_flush = self._flushed
        self.intake.on_append = self.stats.put_took
        levels = parse_delay_levels(config.delay_levels)
        self.delays = Delays(store, self.intake, folder, levels, now)
        self.transactions = Transactions(
            store, self.intake, self.offsets, self.topics, self.producers, self.settings, now
        )
        self.transactions.load()
        self.puller = Puller(
            self.settings,
            store,
            self.topics,
            self.groups,
            self.consumers,
            self.filters,
            self.offsets,
            self.holds,
            self.queueing,
            self.stats,
            self.verdicts,
            self.recorder,
            self._clock,
        )
        self.puller.work = self.server.work
        self.puller.conflicts = self.conflicts
        self.sender = Sender(
            self.settings,
            store,
            self.intake,
            self.topics,
            self.groups,
            self.producers,
            self.transactions,
            self.stats,
            store_host,
            now,
        )
        self.sender.conflicts = self.conflicts
        self.sends = Sends(
            self.settings,
            self.intake,
            self.topics,
            self.stats,
            self.sender.id_prefix,
            born_host,
            self.sender.refuse,
            self.acl.access if self.acl is not None else None,
        )
        self.registrar = Registrar(
            self.settings, self.topics, self.address, self.filter_servers.list, self.background
        )
        self._connect_parts()
        self.background.keep("saving of tables", self.saver.run)
        if self.acl is not None:
            # pulls that wait were allowed by what held before: who sent them may ask again
            self.acl.on_change = self.holds.answer_all
            self.background.keep("accounts", self.acl.run)
        await self.server.serve(dispatch.routes(self), self.sends.take)
        self.background.keep("member notices", self.notices.run)
        self.background.keep("departures", self._see_off)
        await self.registrar.start()
        self.background.keep("delayed messages", self.delays.run)
        self.background.keep("transactions", self.transactions.run)
        self._every(lambda: 0.0, self._flush)  # it sleeps itself
        self._every(lambda: _SWEEP, self._sweep)
        self._every(lambda: _SWEEP, self._tend_lanes)
        self._every(lambda: _SAVE_OFFSETS, self._save_offsets)
        self._every(lambda: _SAVE_FILTERS, self._save_filters)
        self._every(lambda: _CLEAN, self.clean)
        self.filter_processes.start()
        log.info("broker %s at %s, store %s", config.name, self.address, self.data)
        if not config.nameservers:
            log.warning("no name server is named: clients can't find this broker (nameservers)")

    def _connect_parts(self) -> None:
        """Who tells whom, and which tables are saved."""
        self.saver.add("topics", self.topics, self.topics.sync)
        self.saver.add("groups", self.groups)
        self.saver.add("filters", self.filters)
        self.saver.add("history", self.recorder)
        self.saver.add("consumer offsets", self.offsets)
        self.saver.add("delay offsets", self.delays)
        self.saver.add("group rules", self.rules)
        self.queueing.on_delayed = self.delays.wake
        self.topics.on_change = self._topic_changed
        self.groups.on_change = lambda: self.saver.soon("groups")
        self.filter_servers.on_change = self.registrar.changed
        self.consumers.on_change = self.notices.changed
        self.consumers.on_empty = self._group_left
        self.consumers.on_leave = self.conflicts.left
        self.consumers.on_reset = self.conflicts.reset
        self.consumers.on_offsets_set = self.conflicts.offsets_set
        self.topics.on_delete = self.conflicts.topic_deleted
        self.groups.on_delete = self.conflicts.forget
        self.rules.on_change = lambda: self.saver.soon("group rules")
        self.locks.name_of = self.conflicts.lock_name
        self.conflicts.rename_locks = self.locks.rename
        self.readers.lanes = self.conflicts.readers
        self.conflicts.on_divided = self.notices.changed
        self.conflicts.on_united = self._group_united
        self.conflicts.wake = self.holds.grown
        self.tending.on_lane_given_up = self._lane_given_up
        self.consumers.on_member = self.recorder.member_changed
        self.readers.last_filter = lambda group, topic: last_filter(
            self.recorder.history(group, topic)
        )
        self.recorder.on_change = lambda: self.saver.soon("history", _SAVE_HISTORY)
        self.offsets.before_save = self._save_history
        self.filters.on_change = self._filters_changed
        self._filters_changed()
        self.settings.on_change = self._reconfigured
        self.saver.soon("topics")
        self.saver.soon("history")

    async def close(self) -> None:
        """Everything is answered, stored and saved; the next start has nothing to recover. A step
        that fails is logged, and the others are done all the same. Raises StoreError if the store
        can't be closed in good order."""
        self.filter_servers.is_closing = True
        await asyncio.gather(
            self._try("leave the name servers", self.registrar.close),
            self._try("stop the filter servers", self.filter_processes.close),
        )
        self.server.stop_reading()
        self.holds.answer_all()
        await self._try("store what was taken", self.intake.drain)
        await self._try("close the connections", self.server.close)
        await self._try("end what runs beside", self.background.close)
        await self._try("store what was taken", self.intake.close)
        self._threads.shutdown()  # whoever is still at a file is done with it after this
        self.transactions.note_progress()
        self.recorder.close()
        self.saver.save_all()
        try:
            self.store.close()
        except BaseException:
            self.store.abandon()
            raise
        log.info("broker %s stopped", self.settings.config.name)

    async def _try(self, what: str, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except Exception:  # the edge: the next steps are to be done all the same
            log.exception("could not %s", what)

    def _read_accounts(self) -> AclKeeper:
        """In a thread. Raises ConfigError."""
        file = self.settings.config.acl_file or self.data / "conf" / "plain_acl.yml"
        own = supervisor.own_account(self._own_key, self._own_secret)
        return AclKeeper(file, (own,))

    def _peer_closed(self, peer: Peer) -> None:
        if self.acl is not None:
            self.acl.access.forget(peer)
        self.filter_servers.drop(peer)
        self.code_lags.drop(peer)
        self.conflicts.drop(peer)
        self._departed.put_nowait(peer)

    async def _see_off(self) -> None:
        """Takes connections that are gone out of their groups; in slices, for one may have been in
        a thousand, and a thousand may go at once."""
        count = 0
        while True:
            peer = await self._departed.get()
            steps = chain(self.consumers.drop_steps(peer), self.producers.drop_steps(peer))
            for _ in steps:
                count += 1
                if count % _SEEN_OFF == 0:
                    await self.server.work.turn(self)

    def _first_offset(self, topic: str, queue_id: int) -> int:
        queue = self.store.find_queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def _save_history(self) -> None:
        """Before offsets are saved. If it fails they are all the same: the saver tries again."""
        with contextlib.suppress(OSError):
            self.recorder.flush()

    def _topic_changed(self, topic: TopicConfig | None) -> None:
        self.saver.soon("topics")
        if topic is not None:
            self.registrar.changed(topic)

    def _group_left(self, group: str) -> None:
        self.filters.leave(group)
        self.puller.forget(group)

    def _lane_given_up(self, lane: GivenUp) -> None:
        for (topic, queue_id), (start, end, _) in lane.left.items():
            one = lane.filters[topic]
            self.recorder.moved(
                *(lane.group, topic, queue_id, start, end),
                by="the broker",
                why="no member had this subscription any more, and the time to hold it was over",
                lane=lane.lane,
                wanted=Filter(one.kind, one.text),
            )

    def _group_united(self, group: ConsumerGroup) -> None:
        """Its members agree again: their SQL is the group's, whoever registered last."""
        self.filters.make_way_for(group.name, group.subscriptions.values())
        self.filters.register(group.name, group.subscriptions.values())

    def _filters_changed(self) -> None:
        if self.settings.config.bitmaps:
            self.store.set_filters(self.filters.all(), self.filters.compiled)
        self.saver.soon("filters")

    def _reconfigured(self, old: BrokerConfig, new: BrokerConfig) -> None:
        if old.permission != new.permission:
            self.registrar.changed()
        if old.subscription_conflicts != new.subscription_conflicts:
            self.conflicts.policy_changed()

    # What runs beside the requests.

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _every(self, seconds: Callable[[], float], work: Callable[[], Awaitable[None]]) -> None:
        name = work.__name__.strip("_").replace("_", " ")

        async def run() -> None:
            while True:
                await asyncio.sleep(seconds())
                try:
                    await work()
                except (StoreError, OSError, ConfigError) as error:
                    self.background.failures[name] += 1
                    log.error("%s: %s", name, error)
                except Exception:  # the edge: it is to be done again all the same
                    self.background.failures[name] += 1
                    log.exception("%s failed", name)

        self.background.keep(name, run)

    async def _flush(self) -> None:
        await self.settings.sleep(lambda config: max(config.flush_interval, _SHORTEST_FLUSH))
        started = self._clock()
        try:
            await self._in_thread(self.store.flush)
        except (StoreError, OSError) as error:
            if str(error) != self._flush_failure:  # once, not at each attempt
                log.error("what is stored can't be flushed, trying again: %s", error)
            self._flush_failure = str(error)
            return
        if self._flush_failure:
            log.info("what is stored is flushed again")
            self._flush_failure = ""
        self._flushed(self._clock() - started)

    def _flushed(self, seconds: float) -> None:
        self.flush_latency.observe(seconds)

    async def _sweep(self) -> None:
        before = self._clock() - _SILENT
        steps = chain(
            self.holds.sweep(),
            self.consumers.drop_silent(before),
            self.producers.drop_silent(before),
        )
        for _ in steps:
            await self.server.work.turn(self)
        self.stats.tick(self.now())
        if not self.queueing.is_current:
            self.queueing.stored()
        self.store.correct_queues(_CLEAN_SLICE)

    async def _tend_lanes(self) -> None:
        if self.conflicts.divisions:
            work = self.server.work
            await self.tending.tend(
                lambda: work.turn(self.tending), lambda job: work.call(self.tending, job)
            )

    async def _save_offsets(self) -> None:
        self.transactions.note_progress()
        self.recorder.note_progress()
        self.saver.soon("history")
        self.saver.soon("consumer offsets")
        self.saver.soon("delay offsets")
        self.saver.soon("group rules")

    async def _save_filters(self) -> None:
        self.filters.clean(self.settings.config.filter_keep_seconds)
        self.saver.soon("filters")

    async def clean(self) -> None:
        """Removes what is too old, or what the disk has no room for."""
        for path in self.store.clean(_CLEAN_SLICE):
            log.info("%s: removed, it was too old or the disk too full", path)
        self.recorder.clean()

    def load(self) -> Load:
        return Load(sends=self.intake.backlog)

    @property
    def tasks(self) -> int:
        return len(self.background) + self.server.tasks


def _store_host(host: str, port: int) -> Host:
    try:
        return Host(ipaddress.ip_address(host).packed, port)
    except ValueError:  # a name
        return Host(b"\x7f\0\0\1", port)
