"""The name server: a route table behind a socket.

Brokers register with every name server there is; name servers know nothing of each other.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import orjson

from ..errors import ResponseError
from ..net.server import Answer, Request, Route, Server, needless_header
from ..net.tasks import Tasks
from ..security import ServerTls
from ..wire import beans
from ..wire.bodies import DataVersion, KvTable, decode_properties, encode_properties
from ..wire.codes import STANDARD_JSON_VERSION, RequestCode, ResponseCode
from ..wire.headers import (
    AddWritePermResponse,
    DataVersionResponse,
    DeleteTopicInNameServer,
    GetRoute,
    OfBroker,
    OfBrokerName,
    OfCluster,
    OfKvConfig,
    OfNamespace,
    PutKvConfig,
    RegisterBroker,
    ValueResponse,
    WipeWritePermResponse,
)
from .config import NameServerConfig
from .kvconfig import FILE_NAME, ORDER_TOPICS, KvConfig
from .registrations import Registrations
from .table import RouteTable, TopicFlag

__all__ = ["NameServer", "Settings", "routes"]

log = logging.getLogger(__name__)

_MOST_BODY: Final = 65_536  # bytes of what is short, and not a registration


class NameServer:
    """Listens from `start` to `close`. It keeps no routes: brokers tell them again."""

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError if there is a key-value table that can't be read, or a certificate
        that can't be used."""
        self.config = config or NameServerConfig()
        self.table = RouteTable()
        self.kv = KvConfig(self.config.data, self.config.most_keys)
        self.port = self.config.port
        self._settings = Settings(self.config)
        self.background = Tasks()
        self._registrations = Registrations(self.table, self.kv, self.config, now)
        self._server = Server(
            routes(self.table, self.kv, self._registrations, self._settings, now),
            on_close=self._registrations.drop_connection,
            most_connections=self.config.most_connections,
            connection_memory=self.config.connection_memory,
            tls=ServerTls.of(self.config),
        )
        self._registrations.work = self._server.work

    @property
    def address(self) -> str:
        host = self.config.bind
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def start(self) -> None:
        """Raises OSError if it can't listen there."""
        self.port = await self._server.start(self.config.bind, self.config.port)
        self._settings.port = self.port
        self.background.keep("silent brokers", self._drop_silent)

    async def close(self) -> None:
        await self.background.close()
        await self._server.close()

    async def _drop_silent(self) -> None:
        while True:
            await asyncio.sleep(self.config.scan_seconds)
            self._registrations.drop_silent(self.config.silent_seconds)


class Settings:
    """The configuration under RocketMQ's names, as tools see it. What they change lasts until the
    name server is started again."""

    def __init__(self, config: NameServerConfig) -> None:
        self._config = config
        self.port = config.port
        self.order_messages = config.order_messages

    def show(self) -> dict[str, str]:
        config = self._config
        return {
            "bindAddress": config.bind,
            "kvConfigPath": str(config.data / FILE_NAME) if config.data is not None else "",
            "listenPort": str(self.port),
            "orderMessageEnable": str(self.order_messages).lower(),
            "scanNotActiveBrokerInterval": str(round(config.scan_seconds * 1000)),
            "tls.server.certPath": config.tls_cert,
            "tls.server.keyPath": config.tls_key,
            "tls.server.mode": config.tls,
            "tls.server.need.client.auth": config.tls_client_auth,
            "tls.server.trustCertPath": config.tls_ca,
        }

    def update(self, values: dict[str, str]) -> None:
        """Names we don't have are passed over, as RocketMQ does. Raises ResponseError."""
        shown = self.show()
        fixed = sorted(
            name
            for name, value in values.items()
            if name in shown and name != "orderMessageEnable" and value != shown[name]
        )
        if fixed:
            remark = f"{', '.join(fixed)}: can't be changed while the name server runs"
            raise ResponseError(ResponseCode.NO_PERMISSION, remark)
        if (value := values.get("orderMessageEnable")) is not None:
            self.order_messages = value.lower() == "true"
            log.info("order_messages set to %s", self.order_messages)


def routes(
    table: RouteTable,
    kv: KvConfig,
    registrations: Registrations,
    settings: Settings,
    now: Callable[[], float],
) -> dict[int, Route]:
    """What is answered, and by whom. Other requests are answered with 3."""
    code = RequestCode
    unit, sub = TopicFlag.UNIT, TopicFlag.UNIT_SUB
    return {
        # clients
        code.GET_ROUTEINFO_BY_TOPIC: Route(GetRoute, partial(get_route, table, kv, settings)),
        # brokers
        code.REGISTER_BROKER: Route(RegisterBroker, registrations.register),
        code.UNREGISTER_BROKER: Route(OfBroker, registrations.unregister),
        code.QUERY_DATA_VERSION: Route(OfBroker, partial(query_data_version, table, now)),
        # tools: brokers and topics
        code.GET_BROKER_CLUSTER_INFO: _plain(lambda: beans.encode(table.cluster_info())),
        code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _plain(lambda: _topic_list(table.topics())),
        code.GET_TOPICS_BY_CLUSTER: Route(OfCluster, partial(get_topics_by_cluster, table)),
        code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _plain(lambda: _topic_list(*table.system_topics())),
        code.GET_UNIT_TOPIC_LIST: _plain(lambda: _topic_list(table.unit_topics(unit))),
        code.GET_HAS_UNIT_SUB_TOPIC_LIST: _plain(lambda: _topic_list(table.unit_topics(sub))),
        code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _plain(
            lambda: _topic_list(table.unit_topics(sub, lacks=unit))
        ),
        code.WIPE_WRITE_PERM_OF_BROKER: Route(OfBrokerName, partial(wipe_write_perm, table)),
        code.ADD_WRITE_PERM_OF_BROKER: Route(OfBrokerName, partial(add_write_perm, table)),
        code.DELETE_TOPIC_IN_NAMESRV: Route(DeleteTopicInNameServer, partial(delete_topic, table)),
        # tools: key-value table and settings
        code.PUT_KV_CONFIG: Route(PutKvConfig, partial(put_kv, kv)),
        code.GET_KV_CONFIG: Route(OfKvConfig, partial(get_kv, kv)),
        code.DELETE_KV_CONFIG: Route(OfKvConfig, partial(delete_kv, kv)),
        code.GET_KVLIST_BY_NAMESPACE: Route(OfNamespace, partial(get_kv_namespace, kv)),
        code.UPDATE_NAMESRV_CONFIG: Route(None, needless_header(partial(update_config, settings))),
        code.GET_NAMESRV_CONFIG: _plain(lambda: encode_properties(settings.show())),
    }


def _plain(body: Callable[[], bytes]) -> Route:
    """For a question without details."""
    return Route(None, lambda header, request: Answer(body=body()))


def get_route(
    table: RouteTable, kv: KvConfig, settings: Settings, header: GetRoute, request: Request
) -> Answer:
    route = table.route(header.topic)
    if route is None:
        remark = (
            f"No topic route info in name server for the topic: {header.topic}\n"
            "See http://rocketmq.apache.org/docs/faq/ for further details."
        )
        return Answer(code=ResponseCode.TOPIC_NOT_EXIST, remark=remark)
    if settings.order_messages:
        route = replace(route, order_topic_conf=kv.get(ORDER_TOPICS, header.topic))
    is_new = request.command.version >= STANDARD_JSON_VERSION
    return Answer(body=route.encode(standard=is_new or header.accept_standard_json_only))


def query_data_version(
    table: RouteTable, now: Callable[[], float], header: OfBroker, request: Request
) -> Answer:
    """A broker asks whether it must register again; if not, it counts as heard of."""
    _check_length(request)
    try:
        asked = beans.decode(DataVersion, request.body)
    except ValueError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"no data version: {error}") from None
    known = table.version(header.broker_addr)
    if known == asked:
        table.touch(header.broker_addr, now())
    body = beans.encode(known) if known is not None else b""
    return Answer(DataVersionResponse(changed=known != asked), body)


def get_topics_by_cluster(table: RouteTable, header: OfCluster, request: Request) -> Answer:
    return Answer(body=_topic_list(table.topics(header.cluster)))


def _topic_list(topics: list[str], broker: str | None = None) -> bytes:
    """`TopicList`; not by `beans`, which takes 220 ms for 100,000 names: this takes 3."""
    made: dict[str, object] = {"topicList": topics}
    return orjson.dumps(made if broker is None else {"brokerAddr": broker, **made})


def wipe_write_perm(table: RouteTable, header: OfBrokerName, request: Request) -> Answer:
    count = table.wipe_write_perm(header.broker_name)
    return Answer(WipeWritePermResponse(wipe_topic_count=count))


def add_write_perm(table: RouteTable, header: OfBrokerName, request: Request) -> Answer:
    count = table.add_write_perm(header.broker_name)
    return Answer(AddWritePermResponse(add_topic_count=count))


def delete_topic(table: RouteTable, header: DeleteTopicInNameServer, request: Request) -> Answer:
    table.delete_topic(header.topic, header.cluster_name or None)
    return Answer()


async def put_kv(kv: KvConfig, header: PutKvConfig, request: Request) -> Answer:
    await kv.put(header.namespace, header.key, header.value)
    return Answer()


def get_kv(kv: KvConfig, header: OfKvConfig, request: Request) -> Answer:
    value = kv.get(header.namespace, header.key)
    if value is None:
        remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        return Answer(ValueResponse(), code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
    return Answer(ValueResponse(value=value))


async def delete_kv(kv: KvConfig, header: OfKvConfig, request: Request) -> Answer:
    await kv.delete(header.namespace, header.key)
    return Answer()


def get_kv_namespace(kv: KvConfig, header: OfNamespace, request: Request) -> Answer:
    entries = kv.namespace(header.namespace)
    if entries is None:
        remark = f"No config item, Namespace: {header.namespace}"
        return Answer(code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
    return Answer(body=beans.encode(KvTable(table=entries)))


def _check_length(request: Request) -> None:
    """Raises ResponseError for a body that would take long to read."""
    if len(request.body) > _MOST_BODY:
        why = f"a body of {len(request.body)} bytes: the name server takes {_MOST_BODY}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)


def update_config(settings: Settings, request: Request) -> Answer:
    _check_length(request)
    try:
        values = decode_properties(request.body)
    except ValueError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"no properties: {error}") from None
    settings.update(values)
    return Answer()
