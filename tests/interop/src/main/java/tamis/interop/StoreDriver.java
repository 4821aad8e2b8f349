package tamis.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeoutException;
import org.apache.rocketmq.client.MQAdmin;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.ResponseCode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Fills and reads a broker with the real client; a JSON line on standard output for each message.
 *
 * <pre>
 * produce   nameserver seed count [seconds]            sends a mixture, waits until all can be read
 * consume   nameserver topic... [--tags EXPR | --sql EXPR]
 * subscribe nameserver (group topic sql)... [seconds]  registers filters at the broker, then leaves
 * query     nameserver topic key
 * </pre>
 */
public final class StoreDriver {
    private static final Map<String, Integer> QUEUES = new TreeMap<>(Map.of("Orders", 4, "Plain", 1, "Batches", 2));
    private static final long CALL_MILLIS = 20_000;

    private final PrintStream out;
    private final String nameServer;

    private StoreDriver(PrintStream out, String nameServer) {
        this.out = out;
        this.nameServer = nameServer;
    }

    public static void main(String[] args) throws Exception {
        PrintStream stdout = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // The client's libraries may log to the console; stdout is for messages only.
        System.setOut(System.err);

        int status = 0;
        try {
            new StoreDriver(stdout, args[1]).run(args[0], Arrays.asList(args).subList(2, args.length));
        } catch (Exception e) {
            e.printStackTrace();
            status = 1;
        }
        stdout.flush();
        System.exit(status);  // the client's threads would go on
    }

    private void run(String command, List<String> arguments) throws Exception {
        switch (command) {
            case "produce":
                Random random = new Random(Long.parseLong(arguments.get(0)));
                produce(random, Integer.parseInt(arguments.get(1)), seconds(arguments, 2));
                break;
            case "consume":
                consume(arguments);
                break;
            case "subscribe":
                subscribe(arguments, seconds(arguments, arguments.size() / 3 * 3));
                break;
            case "query":
                query(arguments.get(0), arguments.get(1));
                break;
            default:
                throw new IllegalArgumentException("unknown command: " + command);
        }
    }

    private static double seconds(List<String> arguments, int index) {
        return index < arguments.size() ? Double.parseDouble(arguments.get(index)) : 30;
    }

    // produce

    private void produce(Random random, int count, double seconds) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout((int) CALL_MILLIS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setCompressMsgBodyOverHowmuch(512);
        producer.start();
        DefaultMQAdminExt admin = startAdmin();
        for (String topic : QUEUES.keySet()) {
            makeTopic(admin, topic);
        }
        admin.shutdown();
        Map<String, List<MessageQueue>> queues = new TreeMap<>();
        for (String topic : QUEUES.keySet()) {
            queues.put(topic, sorted(producer.fetchPublishMessageQueues(topic)));
        }
        long before = stored(producer, queues);

        for (int sent = 0; sent < count; ) {
            int kind = random.nextInt(10);
            if (kind == 0) {
                sent += sendBatch(producer, queues.get("Batches"), random, sent, count);
                continue;
            }
            String topic = random.nextInt(4) == 0 ? "Plain" : "Orders";
            MessageQueue queue = pick(random, queues.get(topic));
            Message message = message(random, topic, sent++);
            JSONObject row = row(message);
            if (kind == 1) {
                producer.sendOneway(message, queue);
                print(row, "oneway", message, queue.getQueueId(), null, null);
            } else if (kind == 2) {
                message.setDelayTimeLevel(1 + random.nextInt(3));
                row.put("delay_level", message.getDelayTimeLevel());
                SendResult result = stored(producer.send(message, queue));
                // The offset and the id are those of the schedule topic's record.
                print(row, "delayed", message, result.getMessageQueue().getQueueId(), null, null);
            } else if (kind <= 4) {
                SendResult result = stored(producer.send(
                    message, (all, body, order) -> sorted(all).get((Integer) order % all.size()), random.nextInt(20)));
                print(row, "ordered", message, result.getMessageQueue().getQueueId(), result.getQueueOffset(), result.getOffsetMsgId());
            } else {
                SendResult result = stored(producer.send(message, queue));
                print(row, "plain", message, result.getMessageQueue().getQueueId(), result.getQueueOffset(), result.getOffsetMsgId());
            }
        }
        // One-way and delayed messages arrive when they like.
        if (seconds > 0) {
            await(seconds, () -> stored(producer, queues) - before == count, "all messages to be stored");
        }
        producer.shutdown();
    }

    private int sendBatch(DefaultMQProducer producer, List<MessageQueue> queues, Random random, int sent, int count)
        throws Exception {
        int size = Math.min(2 + random.nextInt(5), count - sent);
        MessageQueue queue = pick(random, queues);
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            batch.add(message(random, queue.getTopic(), sent + i));
        }
        SendResult result = stored(producer.send(batch, queue));
        String[] ids = result.getOffsetMsgId().split(",");
        for (int i = 0; i < size; i++) {
            Message message = batch.get(i);
            print(row(message), "batch", message, queue.getQueueId(), result.getQueueOffset() + i, ids[i]);
        }
        return size;
    }

    private static Message message(Random random, String topic, int number) {
        byte[] body = new byte[(1 << random.nextInt(13)) + random.nextInt(64)];
        if (random.nextBoolean()) {
            random.nextBytes(body);
        } else {
            Arrays.fill(body, (byte) ('a' + number % 26));  // compresses well
        }
        Message message = new Message(topic, body);
        message.setFlag(random.nextInt(3));
        String tag = pick(random, "", "", "TagA", "TagB", "Aa", "BB", "订单", "tag with space");
        if (!tag.isEmpty()) {
            message.setTags(tag);
        }
        if (random.nextInt(4) > 0) {
            message.setKeys(random.nextInt(3) > 0 ? List.of("k" + number) : List.of("k" + number, "alt" + number % 10, "钥匙"));
        }
        putUserProperty(message, "age", pick(random, "", "" + random.nextInt(100), "" + random.nextInt(100), "unknown"));
        putUserProperty(message, "region", pick(random, "", "eu", "us", "cn", "亚太"));
        putUserProperty(message, "price", pick(random, "", random.nextInt(200) + ".5", "" + random.nextInt(200), "1e2", "free"));
        putUserProperty(message, "vip", pick(random, "", "true", "false", "TRUE"));
        return message;
    }

    private static void putUserProperty(Message message, String name, String value) {
        if (!value.isEmpty()) {  // the client refuses an empty value
            message.putUserProperty(name, value);
        }
    }

    /** What is said of a message, taken before the client adds its own properties. */
    private static JSONObject row(Message message) {
        JSONObject row = new JSONObject(true);
        row.put("topic", message.getTopic());
        row.put("tags", message.getTags());
        row.put("keys", message.getKeys());
        row.put("flag", message.getFlag());
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.keySet().removeAll(MessageConst.STRING_HASH_SET);
        row.put("properties", properties);
        row.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        return row;
    }

    private void print(JSONObject row, String kind, Message message, int queue, Long offset, String id) {
        row.put("kind", kind);
        row.put("queue", queue);
        row.put("queue_offset", offset);
        row.put("msg_id", id);
        row.put("unique_key", MessageClientIDSetter.getUniqID(message));
        print(row);
    }

    private static SendResult stored(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
        return result;
    }

    private static long stored(MQAdmin client, Map<String, List<MessageQueue>> queues) throws MQClientException {
        long total = 0;
        for (List<MessageQueue> ofTopic : queues.values()) {
            for (MessageQueue queue : ofTopic) {
                total += client.maxOffset(queue);
            }
        }
        return total;
    }

    // consume and query

    private void consume(List<String> arguments) throws Exception {
        List<String> topics = new ArrayList<>(arguments);
        MessageSelector selector = MessageSelector.byTag("*");
        DefaultMQPullConsumer consumer = pullConsumer();
        int options = topics.size() - 2;
        if (options >= 0 && topics.get(options).startsWith("--")) {
            String expression = topics.remove(options + 1);
            if (topics.remove(options).equals("--sql")) {
                selector = MessageSelector.bySql(expression);
                learnVersion(consumer, topics.get(0));
            } else {
                selector = MessageSelector.byTag(expression);
            }
        }
        for (String topic : topics) {
            for (MessageQueue queue : sorted(consumer.fetchSubscribeMessageQueues(topic))) {
                long end = consumer.maxOffset(queue);
                for (long offset = consumer.minOffset(queue); offset < end; ) {
                    PullResult result = consumer.pull(queue, selector, offset, 32, CALL_MILLIS);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        result.getMsgFoundList().forEach(this::print);
                    }
                    if (result.getNextBeginOffset() <= offset) {
                        throw new IllegalStateException(queue + " is stuck at " + offset + ": " + result);
                    }
                    offset = result.getNextBeginOffset();
                }
            }
        }
        consumer.shutdown();
    }

    /** The client sends SQL only to a broker whose version it knows, which a heartbeat tells it. */
    private static void learnVersion(DefaultMQPullConsumer consumer, String topic) {
        MQClientInstance client = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        client.updateTopicRouteInfoFromNameServer(topic);
        client.sendHeartbeatToAllBrokerWithLock();
    }

    private void query(String topic, String key) throws Exception {
        DefaultMQPullConsumer consumer = pullConsumer();
        try {
            consumer.queryMessage(topic, key, 1000, 0, Long.MAX_VALUE).getMessageList().forEach(this::print);
        } catch (MQClientException e) {
            if (e.getResponseCode() != ResponseCode.NO_MESSAGE) {
                throw e;
            }
        }
        consumer.shutdown();
    }

    private DefaultMQPullConsumer pullConsumer() throws MQClientException {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop-reader");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        return consumer;
    }

    private void print(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        // The client's own notes, not stored.
        properties.keySet().removeAll(List.of(MessageConst.PROPERTY_MIN_OFFSET, MessageConst.PROPERTY_MAX_OFFSET));
        JSONObject row = new JSONObject(true);
        row.put("topic", message.getTopic());
        row.put("queue", message.getQueueId());
        row.put("queue_offset", message.getQueueOffset());
        row.put("commit_log_offset", message.getCommitLogOffset());
        row.put("store_size", message.getStoreSize());
        row.put("msg_id", offsetId(message));
        row.put("unique_key", message.getProperty(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX));
        row.put("tags", message.getTags());
        row.put("keys", message.getKeys());
        row.put("properties", properties);
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        row.put("body", Base64.getEncoder().encodeToString(body));
        row.put("body_crc", message.getBodyCRC());
        row.put("born_timestamp", message.getBornTimestamp());
        row.put("store_timestamp", message.getStoreTimestamp());
        row.put("flag", message.getFlag());
        row.put("sys_flag", message.getSysFlag());
        row.put("reconsume_times", message.getReconsumeTimes());
        print(row);
    }

    private static String offsetId(MessageExt message) {
        int length = (message.getSysFlag() & 1 << 5) == 0 ? 16 : 28;
        return MessageDecoder.createMessageId(
            ByteBuffer.allocate(length), message.getStoreHostBytes(), message.getCommitLogOffset());
    }

    private void print(JSONObject row) {
        out.print(JSON.toJSONString(row, SerializerFeature.WriteMapNullValue) + "\n");
    }

    // subscribe

    private void subscribe(List<String> triples, double seconds) throws Exception {
        DefaultMQAdminExt admin = startAdmin();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        Map<String, String> topics = new LinkedHashMap<>();
        for (int i = 0; i + 2 < triples.size(); i += 3) {
            String group = triples.get(i);
            String topic = triples.get(i + 1);
            topics.put(group, topic);
            makeTopic(admin, topic);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(nameServer);
            consumer.subscribe(topic, MessageSelector.bySql(triples.get(i + 2)));
            consumer.registerMessageListener(
                (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.RECONSUME_LATER);
            consumer.suspend();  // it is here to be known, not to consume
            consumer.start();
            consumers.add(consumer);
        }
        for (Map.Entry<String, String> entry : topics.entrySet()) {
            await(seconds, () -> isRegistered(admin, entry.getKey(), entry.getValue()), entry + " to be registered");
        }
        // The broker keeps a filter for a day after its group has left, and goes on computing bits for it.
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        admin.shutdown();
    }

    private static boolean isRegistered(DefaultMQAdminExt admin, String group, String topic) throws Exception {
        try {
            return admin.examineConsumerConnectionInfo(group).getSubscriptionTable().containsKey(topic);
        } catch (MQBrokerException | MQClientException e) {
            return false;  // not online yet
        }
    }

    // shared

    private DefaultMQAdminExt startAdmin() throws MQClientException {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.start();
        return admin;
    }

    /** Leaves a topic that is there as it is. */
    private static void makeTopic(DefaultMQAdminExt admin, String topic) throws Exception {
        try {
            admin.examineTopicRouteInfo(topic);
        } catch (MQClientException e) {
            if (e.getResponseCode() != ResponseCode.TOPIC_NOT_EXIST) {
                throw e;
            }
            admin.createTopic("TBW102", topic, QUEUES.getOrDefault(topic, 4));
        }
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void await(double seconds, Condition condition, String what) throws Exception {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) {
                throw new TimeoutException("waited " + seconds + " s for " + what);
            }
            Thread.sleep(50);
        }
    }

    private static List<MessageQueue> sorted(Collection<MessageQueue> queues) {
        return new ArrayList<>(new TreeSet<>(queues));
    }

    private static <T> T pick(Random random, List<T> choices) {
        return choices.get(random.nextInt(choices.size()));
    }

    private static String pick(Random random, String... choices) {
        return choices[random.nextInt(choices.length)];
    }
}
