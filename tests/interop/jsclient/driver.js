'use strict';

// Run by `jsclient.py` in a process of its own: a JavaScript client of RocketMQ's protocol, driven
// by JSON lines. A question is `[verb, {arguments}]`, its answer `["ok", value]` or `["error",
// text]`; a message given to a consumer is `["message", {...}]` at any time.

const readline = require('readline');
const { Consumer, Producer, Message } = require('ali-ons');

const logger = { debug() {}, info() {}, warn: console.error, error: console.error };
const common = {
  httpclient: {}, // insisted on, and used only to ask the cloud for a name server
  logger,
  clientIP: '127.0.0.1',
  // The client does nothing when the broker tells it of a new member or a topic: it looks itself.
  pollNameServerInteval: 300, // milliseconds, and the package's spelling
  rebalanceInterval: 300,
};

let started; // the producer or the consumer

function say(...line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

function row(message) {
  return {
    topic: message.topic,
    body: message.body.toString('base64'),
    tags: message.tags,
    keys: message.keys,
    id: message.msgId,
    queue: message.queueId,
    offset: message.queueOffset,
    size: message.storeSize,
    born: message.bornTimestamp,
    stored: message.storeTimestamp,
    times: message.reconsumeTimes,
    properties: message.properties,
  };
}

const verbs = {
  async produce({ nameserver, group }) {
    started = new Producer({ ...common, nameSrv: nameserver, producerGroup: group });
    started.on('error', logger.error);
    await started.ready();
  },

  // At the broker the client finds by the topic that stands for all; it never creates one by a send.
  async create({ topic, queues }) {
    const client = started._mqClient;
    await client.updateTopicRouteInfoFromNameServer('TBW102', true, started);
    await client.createTopic(client.findBrokerAddrByTopic('TBW102'), 'TBW102', {
      topicName: topic,
      readQueueNums: queues,
      writeQueueNums: queues,
      perm: 6,
      topicFilterType: 'SINGLE_TAG',
      topicSysFlag: 0,
      order: false,
    });
  },

  async send({ topic, body, tags, keys, shard, delay, properties }) {
    const message = new Message(topic, body);
    delete message.properties.TAGS; // or the absent tag is sent as "null"
    if (tags !== undefined) message.tags = tags;
    if (keys !== undefined) message.keys = keys;
    if (shard !== undefined) message.shardingKey = shard;
    if (delay !== undefined) message.delayTimeLevel = delay;
    Object.assign(message.properties, properties);
    const sent = await started.send(message);
    return {
      status: sent.sendStatus,
      id: sent.msgId,
      queue: Number(sent.messageQueue.queueId),
      offset: sent.queueOffset,
    };
  },

  // `failing` are bodies to fail on their first delivery to this process.
  async consume({ nameserver, group, topic, expression = '*', failing = [] }) {
    const left = new Set(failing);
    started = new Consumer({ ...common, nameSrv: nameserver, consumerGroup: group });
    started.on('error', logger.error);
    await started.ready();
    started.subscribe(topic, expression, async message => {
      const failed = left.delete(message.body.toString());
      say('message', { ...row(message), failed });
      return failed ? Consumer.ACTION_RETRY : undefined;
    });
  },

  // Says goodbye to the broker and commits offsets.
  async close() {
    await started.close();
  },
};

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, options] = JSON.parse(line);
    try {
      const value = await verbs[verb](options);
      say('ok', value === undefined ? null : value);
    } catch (error) {
      say('error', error.stack);
    }
  }
  process.exit(0);
})();
