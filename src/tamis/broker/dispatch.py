"""Which request goes where: one row each, with its header and the parts its handler uses."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ResponseError, StoreError
from ..net.longwork import Long
from ..net.server import Answer, Handler, Request, Result, Route
from ..wire import access
from ..wire import headers as h
from ..wire.codes import RequestCode, ResponseCode
from .handlers import (
    accounts,
    clients,
    explain,
    groups,
    lag,
    locks,
    monitor,
    queries,
    remote,
    rules,
    topics,
    transaction,
    verdicts,
)

if TYPE_CHECKING:
    from .broker import Broker

__all__ = ["routes"]


def routes(b: "Broker") -> Mapping[int, Route]:
    code = RequestCode
    name = b.settings.config.name
    progress = groups.Progress(name, b.store, b.topics, b.consumers, b.offsets, b.stats)

    explainer = explain.Explainer(
        name,
        b.store,
        b.topics,
        b.consumers,
        b.filters,
        b.offsets,
        b.recorder,
        b.conflicts.policy,
        b.conflicts.lane_facts,
    )

    deciding = rules.Deciding(name, b.conflicts, b.consumers, b.filters, b.topics, b.store, b.now)

    async def finished(result: Result, request: Request) -> Answer | None:
        """The answer that a handler's result comes to."""
        if isinstance(result, Long):
            result = b.server.work.finish(request.peer, result)
        return result if result is None or isinstance(result, Answer) else await result

    def durable(handle: Handler, *tables: str) -> Handler:
        """Answered when what was changed is on the disk: neither a kill nor a power cut right after
        undoes it. If it can't be saved, that is the answer."""

        async def changed(header: Any, request: Request) -> Answer | None:
            answer = await finished(handle(header, request), request)
            try:
                await b.saver.durable(*tables)
            except StoreError as error:
                why = f"done, but not saved: {error}; it is lost if the broker stops before it is"
                raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
            return answer

        return changed

    def current(handle: Handler) -> Handler:
        """Answered from queues and index that hold all that was stored before the request came."""

        def look(header: Any, request: Request) -> Result:
            try:
                is_current = b.queueing.catch_up()
            except StoreError as error:
                raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
            return handle(header, request) if is_current else look_later(header, request)

        async def look_later(header: Any, request: Request) -> Answer | None:
            try:
                await b.queueing.caught_up()
            except StoreError as error:
                raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
            return await finished(handle(header, request), request)

        return look

    table: dict[int, Route] = {
        # Producers.
        code.SEND_MESSAGE: Route(h.SendMessage, b.sender.send),
        code.SEND_MESSAGE_V2: Route(h.SendMessage, b.sender.send, letters=True),
        code.SEND_BATCH_MESSAGE: Route(h.SendMessage, b.sender.send, letters=True),
        code.SEND_REPLY_MESSAGE: Route(h.SendMessage, b.sender.reply),
        code.SEND_REPLY_MESSAGE_V2: Route(h.SendMessage, b.sender.reply, letters=True),
        code.END_TRANSACTION: Route(
            h.EndTransaction, partial(transaction.end_transaction, b.transactions)
        ),
        # Consumers.
        code.PULL_MESSAGE: Route(h.PullMessage, b.puller.pull_message),
        code.LITE_PULL_MESSAGE: Route(h.PullMessage, b.puller.pull_message),
        code.CONSUMER_SEND_MSG_BACK: Route(h.SendMessageBack, b.sender.send_back),
        code.QUERY_CONSUMER_OFFSET: Route(
            h.QueryConsumerOffset,
            current(
                partial(clients.query_offset, b.offsets, b.store, b.conflicts, b.puller.takeovers)
            ),
        ),
        code.UPDATE_CONSUMER_OFFSET: Route(
            h.UpdateConsumerOffset,
            partial(clients.update_offset, b.settings, b.offsets, b.recorder, b.conflicts),
        ),
        code.GET_CONSUMER_LIST_BY_GROUP: Route(
            h.OfConsumerGroup, partial(clients.consumer_list, b.consumers, b.conflicts)
        ),
        code.LOCK_BATCH_MQ: Route(None, partial(locks.lock_queues, b.locks)),
        code.UNLOCK_BATCH_MQ: Route(None, partial(locks.unlock_queues, b.locks)),
        # Both.
        code.HEART_BEAT: Route(
            None,
            partial(
                clients.heartbeat,
                b.settings,
                b.topics,
                b.groups,
                b.consumers,
                b.producers,
                b.filters,
                b.conflicts,
                now=b.puller.clock,  # by which members that fall silent are looked for
                access=b.acl.access if b.acl is not None else None,
            ),
        ),
        code.UNREGISTER_CLIENT: Route(
            h.UnregisterClient, partial(clients.unregister, b.consumers, b.producers)
        ),
        code.CHECK_CLIENT_CONFIG: Route(None, partial(clients.check_client_config, b.settings)),
        # Messages and offsets.
        code.QUERY_MESSAGE: Route(h.QueryMessage, current(partial(queries.query_message, b.store))),
        code.VIEW_MESSAGE_BY_ID: Route(h.ViewMessage, partial(queries.view_message, b.store)),
        code.SEARCH_OFFSET_BY_TIMESTAMP: Route(
            h.SearchOffset, current(partial(queries.search_offset, b.store))
        ),
        code.GET_MAX_OFFSET: Route(h.OfQueue, current(partial(queries.last_offset, b.store))),
        code.GET_MIN_OFFSET: Route(h.OfQueue, current(partial(queries.first_offset, b.store))),
        code.GET_EARLIEST_MSG_STORETIME: Route(
            h.OfQueue, current(partial(queries.oldest_time, b.store))
        ),
        code.QUERY_CONSUME_QUEUE: Route(
            h.QueryConsumeQueue,
            current(partial(queries.query_consume_queue, b.store, b.consumers, b.filters)),
        ),
        # Fates.
        code.EXPLAIN_MESSAGE: Route(
            h.ExplainMessage, current(partial(explain.explain_message, explainer))
        ),
        code.GET_HISTORY: Route(h.GetHistory, partial(explain.get_history, b.recorder, name)),
        # Topics.
        code.UPDATE_AND_CREATE_TOPIC: Route(
            h.CreateTopic, durable(partial(topics.create_topic, b.topics), "topics")
        ),
        code.DELETE_TOPIC_IN_BROKER: Route(
            h.OfTopic,
            durable(
                partial(topics.delete_topic, b.topics, b.offsets, b.recorder),
                "topics",
                "consumer offsets",
                "history",
                "group rules",
            ),
        ),
        code.GET_ALL_TOPIC_CONFIG: Route(None, partial(topics.all_topics, b.topics)),
        code.GET_TOPIC_CONFIG: Route(h.OfTopic, partial(topics.one_topic, b.topics)),
        code.GET_TOPIC_STATS_INFO: Route(
            h.OfTopic, current(partial(topics.topic_stats, name, b.topics, b.store))
        ),
        code.QUERY_TOPIC_CONSUME_BY_WHO: Route(
            h.OfTopic, partial(topics.consumed_by, b.consumers, b.offsets)
        ),
        code.QUERY_CONSUME_TIME_SPAN: Route(
            h.OfTopicAndGroup,
            current(partial(topics.consume_time_spans, name, b.topics, b.offsets, b.store, b.now)),
        ),
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Route(
            None, partial(topics.system_topics, b.topics)
        ),
        code.CLEAN_EXPIRED_CONSUMEQUEUE: Route(None, partial(topics.clean_up, b.clean)),
        code.CLEAN_UNUSED_TOPIC: Route(None, partial(topics.clean_up, b.clean)),
        code.DELETE_EXPIRED_COMMITLOG: Route(None, partial(topics.clean_up, b.clean)),
        # Groups.
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Route(
            None, durable(partial(groups.create_group, b.groups), "groups")
        ),
        code.DELETE_SUBSCRIPTIONGROUP: Route(
            h.DeleteGroup,
            durable(
                partial(groups.delete_group, b.groups, b.offsets, b.recorder),
                "groups",
                "consumer offsets",
                "history",
                "group rules",
            ),
        ),
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Route(None, partial(groups.all_groups, b.groups)),
        code.GET_SUBSCRIPTIONGROUP_CONFIG: Route(h.OfGroup, partial(groups.one_group, b.groups)),
        code.GET_CONSUMER_CONNECTION_LIST: Route(
            h.OfConsumerGroup, partial(groups.consumer_connections, b.consumers)
        ),
        code.GET_PRODUCER_CONNECTION_LIST: Route(
            h.OfProducerGroup, partial(groups.producer_connections, b.producers)
        ),
        code.GET_ALL_PRODUCER_INFO: Route(None, partial(groups.all_producers, b.producers)),
        code.GET_CONSUME_STATS: Route(
            h.GetConsumeStats, current(partial(groups.consume_stats, progress))
        ),
        code.GET_BROKER_CONSUME_STATS: Route(
            h.GetBrokerConsumeStats,
            current(partial(groups.all_consume_stats, progress, b.groups, lambda: b.address)),
        ),
        code.GET_MATCHING_LAG: Route(
            h.GetMatchingLag, current(partial(lag.matching_lag, b.readers, b.lags))
        ),
        code.COUNT_MATCHES: Route(
            h.CountMatches, current(partial(lag.count_matches, b.settings, b.topics, b.lags))
        ),
        code.GET_ALL_CONSUMER_OFFSET: Route(None, partial(groups.all_offsets, b.offsets)),
        code.GET_ALL_DELAY_OFFSET: Route(
            None, partial(groups.delay_offsets, lambda: b.delays.offsets)
        ),
        code.QUERY_CORRECTION_OFFSET: Route(
            h.CorrectOffset, current(partial(groups.correct_offsets, b.store, b.offsets))
        ),
        code.CLONE_GROUP_OFFSET: Route(
            h.CloneGroupOffset,
            durable(
                partial(groups.clone_offsets, b.topics, b.consumers, b.offsets, b.recorder),
                "consumer offsets",
                "history",
                "group rules",
            ),
        ),
        code.INVOKE_BROKER_TO_RESET_OFFSET: Route(
            h.ResetOffset,
            durable(
                current(
                    partial(
                        groups.reset_offset,
                        name,
                        b.store,
                        b.topics,
                        b.consumers,
                        b.offsets,
                        b.recorder,
                    )
                ),
                "consumer offsets",
                "history",
                "group rules",
            ),
        ),
        code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Route(
            h.GetConsumerStatus, partial(groups.consumer_status, b.consumers)
        ),
        code.GET_CONSUMER_RUNNING_INFO: Route(
            h.GetRunningInfo, partial(remote.running_info, b.consumers)
        ),
        code.CONSUME_MESSAGE_DIRECTLY: Route(
            h.ConsumeDirectly, partial(remote.consume_directly, name, b.consumers, b.store)
        ),
        # Members that disagree.
        code.SET_GROUP_POLICY: Route(
            h.SetGroupPolicy,
            durable(partial(rules.set_policy, deciding), "group rules", "consumer offsets"),
        ),
        code.SET_GROUP_FILTER: Route(
            h.SetGroupFilter,
            durable(current(partial(rules.set_filter, deciding)), "group rules"),
        ),
        code.GET_GROUP_RULES: Route(h.GetGroupRules, partial(rules.get_rules, deciding)),
        # The broker.
        code.GET_BROKER_RUNTIME_INFO: Route(
            None,
            partial(
                monitor.runtime_info,
                b.settings,
                b.store,
                b.stats,
                lambda: b.delays.offsets,
                b.load,
                b.now,
            ),
        ),
        code.GET_BROKER_CONFIG: Route(
            None, partial(monitor.broker_config, b.settings, b.store, lambda: b.address, b.stats)
        ),
        code.UPDATE_BROKER_CONFIG: Route(None, partial(monitor.update_broker_config, b.settings)),
        code.VIEW_BROKER_STATS_DATA: Route(h.ViewStats, partial(monitor.broker_stats, b.stats)),
        code.GET_FILTER_VERDICTS: Route(
            h.OfAnyGroup, partial(verdicts.filter_verdicts, b.verdicts, b.filters, b.now)
        ),
        code.RESUME_CHECK_HALF_MESSAGE: Route(
            h.OfMessage, partial(transaction.resume_check, b.transactions)
        ),
        code.REGISTER_FILTER_SERVER: Route(
            h.RegisterFilterServer,
            partial(monitor.register_filter_server, name, b.filter_servers),
        ),
        # Accounts.
        code.UPDATE_AND_CREATE_ACL_CONFIG: Route(
            access.CreateAccessConfig, partial(accounts.put_account, b.acl)
        ),
        code.DELETE_ACL_CONFIG: Route(
            access.DeleteAccessConfig, partial(accounts.delete_account, b.acl)
        ),
        code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Route(
            access.UpdateWhiteAddresses, partial(accounts.put_white_addresses, b.acl)
        ),
        code.GET_BROKER_CLUSTER_ACL_INFO: Route(
            None, partial(accounts.versions, b.settings, b.acl, lambda: b.address)
        ),
        code.GET_BROKER_CLUSTER_ACL_CONFIG: Route(None, partial(accounts.all_accounts, b.acl)),
        code.REPORT_CODE_LAG: Route(
            h.ReportCodeLag, partial(lag.report_code_lag, b.filter_servers, b.code_lags)
        ),
    }
    return table
