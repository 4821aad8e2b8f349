"""The client: producer, consumers, admin; for Tamis and for Apache RocketMQ."""

from ..message import Message
from ..wire.bodies import MessageQueue
from .admin import Admin
from .cluster import BrokerInfo
from .codefilters import CodeServer, CodeStatus
from .codesource import Code
from .config import ClientConfig, ConsumerConfig, Moment, ProducerConfig, Start, Strategy
from .consumer import Consumer
from .handling import ConsumeStatus, Handler, RetryLater
from .outgoing import SendResult, SendStatus
from .producer import Producer, Selector
from .push import PushConsumer
from .received import ReceivedMessage
from .reports import (
    GroupInfo,
    GroupMember,
    MatchingLag,
    Mismatch,
    QueueInfo,
    QueueProgress,
    TopicInfo,
    TopicPlace,
)
from .transactions import Check, Execute, Transaction, TransactionState

__all__ = [
    "Admin",
    "BrokerInfo",
    "Check",
    "ClientConfig",
    "Code",
    "CodeServer",
    "CodeStatus",
    "ConsumeStatus",
    "Consumer",
    "ConsumerConfig",
    "Execute",
    "GroupInfo",
    "GroupMember",
    "Handler",
    "MatchingLag",
    "Message",
    "MessageQueue",
    "Mismatch",
    "Moment",
    "Producer",
    "ProducerConfig",
    "PushConsumer",
    "QueueInfo",
    "QueueProgress",
    "ReceivedMessage",
    "RetryLater",
    "Selector",
    "SendResult",
    "SendStatus",
    "Start",
    "Strategy",
    "TopicInfo",
    "TopicPlace",
    "Transaction",
    "TransactionState",
]
