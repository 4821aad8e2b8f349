"""A consumer in a process of its own, to be killed: `child.py nameserver group topic`.

It prints each message it is given. Queue 0's first it never ends, and queue 1's no sooner than the
others of queue 0: when that one is saved as done, these were done before.
"""

import asyncio
import sys

from tamis.client import ConsumerConfig, PushConsumer, ReceivedMessage


async def main(nameserver: str, group: str, topic: str) -> None:
    done = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal done
        print(message.text, flush=True)
        if message.queue.queue_id == 0:
            if message.offset == 0:
                await asyncio.Event().wait()
            done += 1
        while done < 9:
            await asyncio.sleep(0.01)

    config = ConsumerConfig(start="first", commit_interval=0.1)
    consumer = PushConsumer(nameserver, group, handle, config=config)
    consumer.subscribe(topic)
    await consumer.run()


asyncio.run(main(*sys.argv[1:]))
