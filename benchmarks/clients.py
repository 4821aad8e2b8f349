"""Ours and the C++-based Python client as `bench_client.py` measures them: a process each.

    python clients.py ours|cpp CASE NAMESERVER TOPIC GROUP WARM SECONDS MESSAGES

Run by an interpreter that has the client, and maybe nothing else. Prints a line of JSON: the
messages stored or received, and the rate. `ClientBench.java` does the same for Apache's.
"""

import asyncio
import json
import os
import queue
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

BODY = b"x" * 1024
BATCH = 32
IN_FLIGHT = 128
CPP_THREADS = 8  # of 1, 2, 4, 8, 20 and 64 the quickest by far
PATIENCE = 120.0  # seconds for a pass over the topic
TIMEOUT = 10.0  # seconds for a send


@dataclass(frozen=True)
class Job:
    nameserver: str
    topic: str
    group: str


class Window:
    """Open for a warm-up and then for the time that the rate is of."""

    def __init__(self, warm: float, seconds: float) -> None:
        self.messages = 0  # acknowledged, the warm-up's too
        self.unstored = 0  # of those, what the broker has as part of another message
        self.rate = 0.0
        self._seconds = seconds
        self._warm_until = time.perf_counter() + warm
        self._start = self._before = 0.0

    def is_open(self) -> bool:
        now = time.perf_counter()
        if now < self._warm_until:
            return True
        if not self._start:
            self._start, self._before = now, self.messages
        if now - self._start < self._seconds:
            return True
        self.rate = (self.messages - self._before) / (now - self._start)
        return False


class Tally:
    """Counts up to what is wanted; the rate is of those after the first handover, at which the
    clock starts. Only one thread at a time may add."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.messages = self._first = self._timed = 0
        self._start = self._end = 0.0

    def add(self, count: int) -> bool:
        """Whether that was the last."""
        if not self.messages:
            self._start, self._first = time.perf_counter(), count
        self.messages += count
        if self.messages < self.wanted:
            return False
        if not self._timed:
            self.mark()
        return True

    def mark(self) -> None:
        """Time goes up to here and not beyond, if this is not called again."""
        self._end, self._timed = time.perf_counter(), self.messages

    def rate(self) -> float:
        if self.messages != self.wanted:
            sys.exit(f"{self.messages} of {self.wanted} messages received")
        if self._timed == self._first:
            sys.exit(f"{self.wanted} messages are too few to be timed")
        return (self._timed - self._first) / (self._end - self._start)


# Ours


async def our_send(case: str, job: Job, window: Window) -> None:
    from tamis.client import Message, Producer, ProducerConfig, SendResult, SendStatus

    def message() -> Message:
        return Message(job.topic, BODY, tags="TagA")

    def acknowledge(*results: SendResult) -> None:
        for result in results:
            if result.status is not SendStatus.OK:
                sys.exit(str(result))
        window.messages += len(results)

    config = ProducerConfig(timeout=TIMEOUT)
    async with Producer(job.nameserver, job.group, config=config) as producer:
        if case == "sync":
            while window.is_open():
                acknowledge(await producer.send(message()))
        elif case == "batch":
            while window.is_open():
                messages = [message() for _ in range(BATCH)]
                acknowledge(*await producer.send_batch(messages))
        else:
            assert case == "in-flight", case
            under_way = deque(producer.submit(message()) for _ in range(IN_FLIGHT))
            while window.is_open():
                acknowledge(await under_way.popleft())
                under_way.append(producer.submit(message()))
            acknowledge(*await asyncio.gather(*under_way))


async def our_consume(case: str, job: Job, tally: Tally) -> None:
    from tamis.client import Consumer, ConsumerConfig, PushConsumer, ReceivedMessage

    if case == "batches" and hasattr(os, "sched_setaffinity"):  # its target is for one core
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    config = ConsumerConfig(start="first")
    if case == "push":
        full = asyncio.Event()

        async def count(_: ReceivedMessage) -> None:
            if tally.add(1):
                full.set()

        pushed = PushConsumer(job.nameserver, job.group, count, config=config)
        pushed.subscribe(job.topic)
        async with pushed:
            with suppress(TimeoutError):  # the tally tells
                await asyncio.wait_for(full.wait(), PATIENCE)
        return
    consumer = Consumer(job.nameserver, job.group, config=config)
    consumer.subscribe(job.topic)
    async with consumer:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                if case == "batches":
                    async for rows in consumer.batches():
                        if tally.add(rows.num_rows):
                            break
                        tally.mark()  # the last batch is not full and waits for more
                else:
                    assert case == "iterate", case
                    async for _ in consumer:
                        if tally.add(1):
                            break


# The C++-based one


def cpp_send(case: str, job: Job, window: Window) -> None:
    from rocketmq import client, exceptions
    from rocketmq.ffi import _CLogLevel, dll

    def message() -> client.Message:
        made = client.Message(job.topic)
        made.set_tags("TagA")
        made.set_body(BODY)
        return made

    def acknowledge(result: client.SendResult, count: int = 1) -> None:
        if result.status is not client.SendStatus.OK:
            sys.exit(str(result))
        window.messages += count

    producer = client.Producer(job.group, timeout=int(TIMEOUT * 1000))
    client.ffi_check(dll.SetProducerLogLevel(producer._handle, _CLogLevel.ERROR))
    producer.set_namesrv_addr(job.nameserver)
    producer.start()
    for attempts_left in range(20, -1, -1):  # the first may meet "no route": see cpp_driver.py
        try:
            acknowledge(producer.send_sync(message()))
            break
        except exceptions.ProducerSendSyncFailed:
            if not attempts_left:
                raise
            time.sleep(0.05)
    if case == "sync":
        while window.is_open():
            acknowledge(producer.send_sync(message()))
    elif case == "batch":
        while window.is_open():
            acknowledge(producer.send_batch([message() for _ in range(BATCH)]), BATCH)
            window.unstored += BATCH - 1  # its flag for a batch is not the one that brokers know
    else:
        assert case == "in-flight", case
        producer._callback_refs = Callbacks()
        answers: queue.SimpleQueue[client.SendResult | Exception] = queue.SimpleQueue()

        def acknowledge_next() -> None:
            answer = answers.get(timeout=2 * TIMEOUT)
            if isinstance(answer, Exception):
                raise answer
            acknowledge(answer)

        for _ in range(IN_FLIGHT):
            producer.send_async(message(), answers.put, answers.put)
        while window.is_open():
            acknowledge_next()
            producer.send_async(message(), answers.put, answers.put)
        for _ in range(IN_FLIGHT):
            acknowledge_next()


class Callbacks(dict):
    """In the place of the package's list of callbacks. That keeps one of the two of each send for
    ever and is searched from its start at each answer: the more was sent, the slower."""

    def append(self, callback: object) -> None:
        self[id(callback)] = callback

    def remove(self, callback: object) -> None:
        del self[id(callback)]


kept: list[object] = []  # the shutdown of a pull consumer has been seen to abort the process


def cpp_consume(case: str, job: Job, tally: Tally) -> None:
    from rocketmq import client
    from rocketmq.ffi import _CLogLevel, dll

    if case == "pull":
        puller = client.PullConsumer(job.group)
        puller.offset_table = {}  # by queue; the package has one for the class
        client.ffi_check(dll.SetPullConsumerLogLevel(puller._handle, _CLogLevel.ERROR))
        puller.set_namesrv_addr(job.nameserver)
        puller.start()
        for _ in puller.pull(job.topic):
            if tally.add(1):
                break
        kept.append(puller)
        return
    assert case == "push", case
    full, adding = threading.Event(), threading.Lock()

    def count(_: client.RecvMessage) -> None:
        with adding:
            if tally.add(1):
                full.set()

    consumer = client.PushConsumer(job.group)
    client.ffi_check(dll.SetPushConsumerLogLevel(consumer._handle, _CLogLevel.ERROR))
    consumer.set_namesrv_addr(job.nameserver)
    consumer.set_instance_name(job.group)
    consumer.set_thread_count(CPP_THREADS)
    consumer.subscribe(job.topic, count)
    consumer.start()
    full.wait(PATIENCE)
    consumer.shutdown()


def main() -> None:
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the C++ library prints
    who, case, nameserver, topic, group, warm, seconds, messages = sys.argv[1:]
    if case in ("sync", "in-flight", "batch"):
        job = Job(nameserver, topic, group)
        window = Window(float(warm), float(seconds))
        if who == "ours":
            asyncio.run(our_send(case, job, window))
        else:
            cpp_send(case, job, window)
        count, rate = window.messages - window.unstored, window.rate
    else:
        for each in ("warm", "measured"):
            job = Job(nameserver, topic, f"{group}-{each}")
            tally = Tally(int(messages))
            if who == "ours":
                asyncio.run(our_consume(case, job, tally))
            else:
                cpp_consume(case, job, tally)
            count, rate = tally.messages, tally.rate()
    print(json.dumps({"messages": count, "rate": rate}), file=said, flush=True)
    os._exit(0)  # the C++ library's threads and destructors are not waited for


if __name__ == "__main__":
    main()
