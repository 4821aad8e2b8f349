package tamis.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The driver's named consumers: push, lite pull and pull. */
@SuppressWarnings("deprecation")  // DefaultMQPullConsumer, which is still in use
final class Consumers {
    private final Map<String, DefaultMQPushConsumer> pushes = new ConcurrentHashMap<>();
    private final Map<String, DefaultLitePullConsumer> lites = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPullConsumer> pulls = new ConcurrentHashMap<>();
    private final Map<String, Inbox> inboxes = new ConcurrentHashMap<>();

    Runnable take(String name) {
        DefaultMQPushConsumer push = pushes.remove(name);
        if (push != null) {
            return push::shutdown;
        }
        DefaultLitePullConsumer lite = lites.remove(name);
        if (lite != null) {
            return lite::shutdown;
        }
        DefaultMQPullConsumer pull = pulls.remove(name);
        return pull == null ? null : pull::shutdown;
    }

    // push

    Object startPush(JSONObject request) throws MQClientException {
        String name = request.getString("client");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            request.getString("group"), Settings.hook(request), new AllocateMessageQueueAveragely());
        Settings.hasten(consumer, request);
        Settings.set(consumer, "setMessageModel", request.getBooleanValue("broadcast") ? "BROADCASTING" : "CLUSTERING");
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.getString("from")));
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setAwaitTerminationMillisWhenShutdown(5000);  // what was heard is committed
        consumer.setMaxReconsumeTimes(request.getIntValue("max_reconsume"));
        consumer.setConsumeMessageBatchMaxSize(request.getIntValue("batch"));
        consumer.setPostSubscriptionWhenPull(request.getBooleanValue("post_subscription"));
        if (request.containsKey("strategy")) {
            consumer.setAllocateMessageQueueStrategy(AssignOracle.strategyOf(request.getString("strategy"), request));
        }
        JSONObject topics = request.getJSONObject("topics");
        for (String topic : topics.keySet()) {
            consumer.subscribe(topic, selector(topics.getJSONObject(topic)));
        }
        Inbox inbox = new Inbox();
        inboxes.put(name, inbox);
        Failures failures = new Failures(request);
        if (request.getBooleanValue("ordered")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean failed = failures.next(messages);
                messages.forEach(message -> inbox.add(row(name, message, failed)));
                if (!failed) {
                    return ConsumeOrderlyStatus.SUCCESS;
                }
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean failed = failures.next(messages);
                messages.forEach(message -> inbox.add(row(name, message, failed)));
                context.setDelayLevelWhenNextConsume(request.getIntValue("delay_level"));
                return failed ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        pushes.put(name, consumer);
        return null;
    }

    private static JSONObject row(String name, MessageExt message, boolean failed) {
        JSONObject row = Rows.of(message);
        row.put("client", name);
        row.put("failed", failed);
        return row;
    }

    /** Fails a message's first `fail` deliveries (all when negative), of those whose body has `failing` in it. */
    private static final class Failures {
        private final int count;
        private final String failing;
        private final Map<String, Integer> seen = new ConcurrentHashMap<>();

        Failures(JSONObject request) {
            count = request.getIntValue("fail");
            failing = request.getString("failing") == null ? "" : request.getString("failing");
        }

        boolean next(List<MessageExt> messages) {
            boolean failed = false;
            for (MessageExt message : messages) {
                String body = new String(message.getBody());
                if (body.contains(failing)) {
                    int time = seen.merge(body, 1, Integer::sum);
                    failed |= count < 0 || time <= count;
                }
            }
            return failed;
        }
    }

    /** Subscribes a push consumer that runs to a topic, which gives the subscription a new version and a heartbeat. */
    Object subscribe(JSONObject request) throws MQClientException {
        find(pushes, request).subscribe(request.getString("topic"), selector(request));
        return null;
    }

    /** Everything the consumer's listener was given. */
    Object received(JSONObject request) throws InterruptedException {
        return inboxes.get(request.getString("client")).await(request);
    }

    /** The queues a push consumer has, as pairs of topic and number. */
    Object assignment(JSONObject request) {
        DefaultMQPushConsumer consumer = find(pushes, request);
        Collection<MessageQueue> queues =
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet();
        return pairs(queues);
    }

    // lite pull

    Object startLite(JSONObject request) throws MQClientException {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.getString("group"), Settings.hook(request));
        Settings.hasten(consumer, request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.getString("from")));
        consumer.setAutoCommit(request.getBooleanValue("auto_commit"));
        consumer.setPullThreadNums(2);
        JSONObject topics = request.getJSONObject("topics");
        for (String topic : topics.keySet()) {
            consumer.subscribe(topic, selector(topics.getJSONObject(topic)));
        }
        consumer.start();
        lites.put(request.getString("client"), consumer);
        return null;
    }

    /** Polls until there are `count` messages, at most for `seconds`. */
    Object poll(JSONObject request) {
        DefaultLitePullConsumer consumer = find(lites, request);
        List<JSONObject> rows = new ArrayList<>();
        long deadline = System.nanoTime() + (long) (request.getDoubleValue("seconds") * 1e9);
        do {
            consumer.poll(100).forEach(message -> rows.add(Rows.of(message)));
        } while (rows.size() < request.getIntValue("count") && System.nanoTime() < deadline);
        return rows;
    }

    /** In place of a subscription: these queues, by number, each from its first message. */
    Object assign(JSONObject request) throws MQClientException {
        DefaultLitePullConsumer consumer = find(lites, request);
        List<Integer> wanted = request.getJSONArray("queues").toJavaList(Integer.class);
        List<MessageQueue> queues = sorted(consumer.fetchMessageQueues(request.getString("topic"))).stream()
            .filter(queue -> wanted.contains(queue.getQueueId()))
            .collect(Collectors.toList());
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.seekToBegin(queue);
        }
        return pairs(queues);
    }

    Object seek(JSONObject request) throws MQClientException {
        DefaultLitePullConsumer consumer = find(lites, request);
        consumer.seek(one(consumer.fetchMessageQueues(request.getString("topic")), request), request.getLongValue("offset"));
        return null;
    }

    Object commit(JSONObject request) {
        find(lites, request).commitSync();
        return null;
    }

    Object committed(JSONObject request) throws MQClientException {
        DefaultLitePullConsumer consumer = find(lites, request);
        List<Long> offsets = new ArrayList<>();
        for (MessageQueue queue : sorted(consumer.fetchMessageQueues(request.getString("topic")))) {
            offsets.add(consumer.committed(queue));
        }
        return offsets;
    }

    // pull

    Object startPull(JSONObject request) throws MQClientException {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(request.getString("group"), Settings.hook(request));
        Settings.hasten(consumer, request);
        consumer.setBrokerSuspendMaxTimeMillis(1000);
        consumer.start();
        pulls.put(request.getString("client"), consumer);
        return null;
    }

    Object pull(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = find(pulls, request);
        MessageQueue queue = queue(consumer, request);
        MessageSelector selector = selector(request);
        if (request.containsKey("sql")) {
            learnVersion(consumer, queue.getTopic());
        }
        long offset = request.getLongValue("offset");
        int count = request.getIntValue("count");
        PullResult result;
        if (request.getBooleanValue("block")) {
            result = consumer.pullBlockIfNotFound(queue, request.getString("tags"), offset, count);
        } else {
            result = consumer.pull(queue, selector, offset, count);
        }
        JSONObject row = new JSONObject(true);
        row.put("status", result.getPullStatus().name());
        row.put("next", result.getNextBeginOffset());
        row.put("min", result.getMinOffset());
        row.put("max", result.getMaxOffset());
        List<JSONObject> rows = new ArrayList<>();
        if (result.getMsgFoundList() != null) {
            result.getMsgFoundList().forEach(message -> rows.add(Rows.of(message)));
        }
        row.put("messages", rows);
        return row;
    }

    /** The client sends SQL only to a broker whose version it knows, which a heartbeat tells it. */
    private static void learnVersion(DefaultMQPullConsumer consumer, String topic) {
        MQClientInstance client = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        client.updateTopicRouteInfoFromNameServer(topic);
        client.sendHeartbeatToAllBrokerWithLock();
    }

    Object queues(JSONObject request) throws MQClientException {
        return pairs(find(pulls, request).fetchSubscribeMessageQueues(request.getString("topic")));
    }

    /** `what` is max, min, search (with a timestamp), fetch or update (with an offset). */
    Object offset(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = find(pulls, request);
        MessageQueue queue = queue(consumer, request);
        switch (request.getString("what")) {
            case "max":
                return consumer.maxOffset(queue);
            case "min":
                return consumer.minOffset(queue);
            case "search":
                return consumer.searchOffset(queue, request.getLongValue("timestamp"));
            case "fetch":
                return consumer.fetchConsumeOffset(queue, true);
            case "update":
                consumer.getDefaultMQPullConsumerImpl().getOffsetStore()
                    .updateConsumeOffsetToBroker(queue, request.getLongValue("offset"), false);
                return null;
            default:
                throw new IllegalArgumentException("unknown question: " + request.getString("what"));
        }
    }

    Object query(JSONObject request) throws Exception {
        QueryResult result = find(pulls, request).queryMessage(
            request.getString("topic"), request.getString("key"), request.getIntValue("count"),
            request.getLongValue("begin"), request.getLongValue("end"));
        return result.getMessageList().stream().map(Rows::of).collect(Collectors.toList());
    }

    /** By either kind of id. */
    Object view(JSONObject request) throws Exception {
        return Rows.of(find(pulls, request).viewMessage(request.getString("topic"), request.getString("id")));
    }

    /** Back to the retry topic: the message at this offset. */
    Object sendBack(JSONObject request) throws Exception {
        DefaultMQPullConsumer consumer = find(pulls, request);
        MessageQueue queue = queue(consumer, request);
        PullResult result = consumer.pull(queue, "*", request.getLongValue("offset"), 1);
        MessageExt message = result.getMsgFoundList().get(0);
        consumer.sendMessageBack(message, request.getIntValue("delay_level"), queue.getBrokerName());
        return null;
    }

    // shared

    private static <T> T find(Map<String, T> clients, JSONObject request) {
        T client = clients.get(request.getString("client"));
        if (client == null) {
            throw new IllegalArgumentException("no consumer of this kind: " + request.getString("client"));
        }
        return client;
    }

    private static MessageSelector selector(JSONObject filter) {
        if (filter.containsKey("sql")) {
            return MessageSelector.bySql(filter.getString("sql"));
        }
        return MessageSelector.byTag(filter.containsKey("tags") ? filter.getString("tags") : "*");
    }

    private static MessageQueue queue(DefaultMQPullConsumer consumer, JSONObject request) throws MQClientException {
        return one(consumer.fetchSubscribeMessageQueues(request.getString("topic")), request);
    }

    private static MessageQueue one(Collection<MessageQueue> queues, JSONObject request) {
        for (MessageQueue queue : queues) {
            if (queue.getQueueId() == request.getIntValue("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + request.getIntValue("queue") + " in " + queues);
    }

    private static List<MessageQueue> sorted(Collection<MessageQueue> queues) {
        return new ArrayList<>(new TreeSet<>(queues));
    }

    private static JSONArray pairs(Collection<MessageQueue> queues) {
        JSONArray pairs = new JSONArray();
        sorted(queues).forEach(queue -> pairs.add(List.of(queue.getTopic(), queue.getQueueId())));
        return pairs;
    }
}
