"""Run by `cppclient.py` in a process and an environment of its own: RocketMQ's C++ client, driven
by JSON lines. A question is `[verb, {arguments}]`, its answer `["ok", value]` or `["error", text]`;
a message given to a push consumer is `["message", {...}]` at any time.

The package's `subscribe` is not used: its callback raises where it means to report a failure, which
the library takes for success.
"""

import json
import os
import sys
import threading
import time

sys.stdout.flush()
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # the library prints

from rocketmq import client  # noqa: E402
from rocketmq import exceptions as client_errors  # noqa: E402
from rocketmq.ffi import MessageModel, dll  # noqa: E402

SUCCESS, LATER = 0, 1
PROPERTIES = "UNIQ_KEY", "KEYS", "TAGS", "DELAY", "REAL_TOPIC", "RETRY_TOPIC", "region", "colour"

writing = threading.Lock()
started = []  # producers and consumers, in the order of their start


def say(*line):
    with writing:
        answers.write(json.dumps(line) + "\n")
        answers.flush()


def start(client, nameserver):
    client.set_namesrv_addr(nameserver)
    client.start()
    started.append(client)


def text(value):
    return None if value is None else value.decode()


def row(message):
    return {
        "topic": message.topic,
        "body": text(message.body),
        "tags": text(message.tags),
        "keys": text(message.keys),
        "id": message.id,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "size": message.store_size,
        "born": message.born_timestamp,
        "stored": message.store_timestamp,
        "times": message.reconsume_times,
        "properties": {
            name: value.decode() for name in PROPERTIES if (value := message.get_property(name))
        },
    }


def message(topic, body, tags=None, keys=None, delay=0, properties=()):
    made = client.Message(topic)
    made.set_body(body)
    if tags is not None:
        made.set_tags(tags)
    if keys is not None:
        made.set_keys(keys)
    if delay:
        made.set_delay_time_level(delay)
    for name, value in dict(properties).items():
        made.set_property(name, value)
    return made


def result(sent):
    return {"status": sent.status.name, "id": sent.msg_id, "offset": sent.offset}


def produce(nameserver, group):
    """Ready when a send has succeeded: the first heartbeat and the first send both connect to the
    broker, and the one that comes second gives up and finds "no route"."""
    producer = client.Producer(group)
    start(producer, nameserver)
    for attempts_left in range(20, -1, -1):
        try:
            producer.send_sync(message("cpp-warm-up", "first"))
            return
        except client_errors.ProducerSendSyncFailed:
            if not attempts_left:
                raise
            time.sleep(0.05)


def send(how="sync", queue=0, **fields):
    producer, made = started[0], message(**fields)
    if how == "sync":
        return result(producer.send_sync(made))
    if how == "orderly":
        return result(producer.send_orderly(made, queue))
    if how == "oneway":
        return producer.send_oneway(made)
    if how == "oneway-orderly":
        return producer.send_oneway_orderly(made, queue)
    assert how == "async", how
    done, outcome = threading.Event(), []

    def finish(value):
        outcome.append(value)
        done.set()

    producer.send_async(made, finish, finish)
    assert done.wait(10), "neither callback was called"
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return result(outcome[0])


def batch(messages):
    return result(started[0].send_batch([message(**one) for one in messages]))


def consume(nameserver, group, topic, expression="*", orderly=False, broadcast=False, failing=()):
    """`failing` are bodies to fail on their first delivery to this process."""
    model = MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING
    consumer = client.PushConsumer(group, orderly=orderly, message_model=model)
    left = set(failing)

    def callback(_, handle):
        given = row(client.RecvMessage(handle))
        fail = given["body"] in left
        left.discard(given["body"])
        say("message", given | {"failed": fail})
        return LATER if fail else SUCCESS

    client.ffi_check(dll.Subscribe(consumer._handle, topic.encode(), expression.encode()))
    consumer._register_callback(callback)
    start(consumer, nameserver)


def pull(nameserver, group, topic, expression="*"):
    """All there is, of every queue, and how many queues: none while the name server doesn't know
    the topic."""
    consumer = client.PullConsumer(group)
    consumer.offset_table = {}  # by queue; the package has one for the class
    start(consumer, nameserver)
    try:
        rows = [row(one) for one in consumer.pull(topic, expression)]
        return [len(consumer.offset_table), rows]
    finally:
        started.remove(consumer)
        consumer.shutdown()


def close():
    """Says goodbye to the broker and commits offsets."""
    while started:
        started.pop().shutdown()


VERBS = {f.__name__: f for f in (produce, send, batch, consume, pull, close)}

for line in sys.stdin:
    verb, arguments = json.loads(line)
    try:
        value = VERBS[verb](**arguments)
    except Exception as error:
        say("error", f"{type(error).__name__}: {error}")
    else:
        say("ok", value)
answers.flush()
os._exit(0)  # the library's threads and destructors are not waited for
