"""The client: producer, consumers, admin; for Tamis and for Apache RocketMQ."""

from ..message import Message
from ..wire.bodies import MessageQueue
from .admin import Admin
from .config import ClientConfig, ConsumerConfig, ProducerConfig
from .consumer import Consumer
from .handling import ConsumeStatus, RetryLater
from .outgoing import SendResult, SendStatus
from .producer import Producer
from .push import PushConsumer
from .received import ReceivedMessage
from .transactions import TransactionState

__all__ = [
    "Admin",
    "ClientConfig",
    "ConsumeStatus",
    "Consumer",
    "ConsumerConfig",
    "Message",
    "MessageQueue",
    "Producer",
    "ProducerConfig",
    "PushConsumer",
    "ReceivedMessage",
    "RetryLater",
    "SendResult",
    "SendStatus",
    "TransactionState",
]
