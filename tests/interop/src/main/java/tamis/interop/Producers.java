package tamis.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The driver's named producers. */
final class Producers {
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, Inbox> checks = new ConcurrentHashMap<>();

    Object start(JSONObject request) throws MQClientException {
        String name = request.getString("client");
        DefaultMQProducer producer;
        if (request.getBooleanValue("transactional")) {
            TransactionMQProducer transactional = new TransactionMQProducer(request.getString("group"), Settings.hook(request));
            checks.put(name, new Inbox());
            transactional.setTransactionListener(new Decisions(checks.get(name)));
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(request.getString("group"), Settings.hook(request));
        }
        Settings.hasten(producer, request);
        producer.setSendMsgTimeout(request.getIntValue("timeout"));
        producer.setRetryTimesWhenSendFailed(request.getIntValue("retries"));
        producer.setRetryTimesWhenSendAsyncFailed(request.getIntValue("retries"));
        producer.setMaxMessageSize(16 << 20);  // the limit under test is the broker's
        if (request.containsKey("compress_over")) {
            producer.setCompressMsgBodyOverHowmuch(request.getIntValue("compress_over"));
        }
        producer.start();
        producers.put(name, producer);
        return null;
    }

    Runnable take(String name) {
        DefaultMQProducer producer = producers.remove(name);
        return producer == null ? null : producer::shutdown;
    }

    /** A row per message sent (per batch for a batch), in order; an error is a row too. */
    Object send(JSONObject request) throws Exception {
        DefaultMQProducer producer = find(request);
        JSONArray wanted = request.getJSONArray("messages");
        String mode = request.getString("mode");
        Object[] rows = new Object[wanted.size()];
        if (mode.equals("batch")) {
            return List.of(attempt(() -> sendBatch(producer, wanted)));
        }
        CountDownLatch left = new CountDownLatch(mode.equals("async") ? rows.length : 0);
        for (int i = 0; i < rows.length; i++) {
            int index = i;
            JSONObject one = wanted.getJSONObject(i);
            switch (mode) {
                case "sync":
                    rows[i] = attempt(() -> Rows.of(sendSync(producer, one)));
                    break;
                case "oneway":
                    rows[i] = attempt(() -> sendOneway(producer, one));
                    break;
                case "async":
                    sendAsync(producer, one, row -> {
                        rows[index] = row;
                        left.countDown();
                    });
                    break;
                case "transaction":
                    rows[i] = attempt(() -> sendInTransaction((TransactionMQProducer) producer, one));
                    break;
                default:
                    throw new IllegalArgumentException("unknown mode: " + mode);
            }
        }
        if (!left.await(request.getIntValue("timeout"), TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(left.getCount() + " of " + rows.length + " callbacks missing");
        }
        return Arrays.asList(rows);
    }

    /** The half messages the broker has asked about. */
    Object checks(JSONObject request) throws InterruptedException {
        return checks.get(request.getString("client")).await(request);
    }

    private DefaultMQProducer find(JSONObject request) {
        DefaultMQProducer producer = producers.get(request.getString("client"));
        if (producer == null) {
            throw new IllegalArgumentException("no producer " + request.getString("client"));
        }
        return producer;
    }

    private interface Attempt {
        Object run() throws Exception;
    }

    private static Object attempt(Attempt attempt) {
        try {
            return attempt.run();
        } catch (Exception e) {
            e.printStackTrace();  // the client wraps the broker's reason
            return Rows.of(e);
        }
    }

    private static SendResult sendSync(DefaultMQProducer producer, JSONObject one) throws Exception {
        Message message = message(one);
        if (one.containsKey("shard")) {
            return producer.send(message, BY_SHARD, one.getInteger("shard"));
        }
        MessageQueue queue = queue(producer, one);
        return queue == null ? producer.send(message) : producer.send(message, queue);
    }

    private static Object sendOneway(DefaultMQProducer producer, JSONObject one) throws Exception {
        if (one.containsKey("shard")) {
            producer.sendOneway(message(one), BY_SHARD, one.getInteger("shard"));
        } else if (one.containsKey("queue")) {
            producer.sendOneway(message(one), queue(producer, one));
        } else {
            producer.sendOneway(message(one));
        }
        return null;
    }

    private interface Done {
        void with(JSONObject row);
    }

    private static void sendAsync(DefaultMQProducer producer, JSONObject one, Done done) {
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                done.with(Rows.of(result));
            }

            @Override
            public void onException(Throwable error) {
                done.with(Rows.of(error));
            }
        };
        try {
            if (one.containsKey("shard")) {
                producer.send(message(one), BY_SHARD, one.getInteger("shard"), callback);
            } else if (one.containsKey("queue")) {
                producer.send(message(one), queue(producer, one), callback);
            } else {
                producer.send(message(one), callback);
            }
        } catch (Exception e) {
            done.with(Rows.of(e));
        }
    }

    private static Object sendBatch(DefaultMQProducer producer, JSONArray wanted) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < wanted.size(); i++) {
            batch.add(message(wanted.getJSONObject(i)));
        }
        MessageQueue queue = queue(producer, wanted.getJSONObject(0));
        return Rows.of(queue == null ? producer.send(batch) : producer.send(batch, queue));
    }

    private static Object sendInTransaction(TransactionMQProducer producer, JSONObject one) throws Exception {
        return Rows.of(producer.sendMessageInTransaction(message(one), one.getString("decision")));
    }

    private static Message message(JSONObject one) {
        Message message = new Message(one.getString("topic"), one.getString("body").getBytes(StandardCharsets.UTF_8));
        message.setFlag(one.getIntValue("flag"));
        if (one.containsKey("tags")) {
            message.setTags(one.getString("tags"));
        }
        if (one.containsKey("keys")) {
            message.setKeys(one.getString("keys"));
        }
        if (one.containsKey("delay")) {
            message.setDelayTimeLevel(one.getIntValue("delay"));
        }
        JSONObject properties = one.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, (String) value));
        }
        if (one.containsKey("check")) {
            message.putUserProperty("check", one.getString("check"));
        }
        return message;
    }

    private static final MessageQueueSelector BY_SHARD =
        (queues, message, shard) -> new ArrayList<>(new TreeSet<>(queues)).get((Integer) shard % queues.size());

    private static MessageQueue queue(DefaultMQProducer producer, JSONObject one) throws MQClientException {
        if (!one.containsKey("queue")) {
            return null;
        }
        for (MessageQueue queue : producer.fetchPublishMessageQueues(one.getString("topic"))) {
            if (queue.getQueueId() == one.getIntValue("queue")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no queue " + one.getIntValue("queue"));
    }

    /** The argument decides at first; the property `check` says what each later question gets, in turn. */
    private static final class Decisions implements TransactionListener {
        private final Inbox asked;
        private final Map<String, Integer> times = new ConcurrentHashMap<>();

        Decisions(Inbox asked) {
            this.asked = asked;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
            return state((String) decision);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String[] answers = String.valueOf(message.getUserProperty("check")).split(",");
            int time = times.merge(message.getTransactionId(), 1, Integer::sum);
            asked.add(Rows.of(message));
            return state(answers[Math.min(time, answers.length) - 1]);
        }

        private static LocalTransactionState state(String decision) {
            switch (decision) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }
}
