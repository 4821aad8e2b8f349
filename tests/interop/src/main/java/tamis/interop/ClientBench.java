package tamis.interop;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Measures how many messages a second the client sends or consumes.
 *
 * <p>Arguments: {@code <case> <nameserver> <topic> <group> <warm-up seconds> <seconds> <messages>}, as of
 * benchmarks/clients.py. Prints a line of JSON: the messages acknowledged or received, and the rate.
 */
public final class ClientBench {
    private static final int BODY = 1024;
    private static final int BATCH = 32;
    private static final int IN_FLIGHT = 128;
    private static final int THREADS = 20;
    private static final int PATIENCE = 120;  // seconds for a pass over the topic
    private static final int TIMEOUT = 10_000;  // milliseconds for a send

    private final String nameserver;
    private final String topic;
    private final String group;

    private ClientBench(String nameserver, String topic, String group) {
        this.nameserver = nameserver;
        this.topic = topic;
        this.group = group;
    }

    public static void main(String[] args) throws Exception {
        PrintStream stdout = System.out;
        // The client's libraries may log to the console; stdout is for figures only.
        System.setOut(System.err);

        if (args.length != 7) {
            throw new IllegalArgumentException(
                    "usage: ClientBench <case> <nameserver> <topic> <group> <warm-up> <seconds> <messages>");
        }
        ClientBench bench = new ClientBench(args[1], args[2], args[3]);
        Window window = new Window(Double.parseDouble(args[4]), Double.parseDouble(args[5]));
        Tally tally = new Tally(Long.parseLong(args[6]));
        switch (args[0]) {
            case "sync":
                bench.sendOneByOne(window);
                break;
            case "in-flight":
                bench.sendManyAtOnce(window);
                break;
            case "batch":
                bench.sendBatches(window);
                break;
            case "push":
                bench.consume(group(args[3], "warm"), new Tally(tally.wanted));
                bench.consume(group(args[3], "measured"), tally);
                break;
            default:
                throw new IllegalArgumentException("no such case: " + args[0]);
        }
        boolean isConsumed = args[0].equals("push");
        long messages = isConsumed ? tally.got.get() : window.acknowledged.get();
        double rate = isConsumed ? tally.rate() : window.rate;
        stdout.printf(Locale.ROOT, "{\"messages\": %d, \"rate\": %.1f}%n", messages, rate);
        stdout.flush();
        System.exit(0);
    }

    private static String group(String stem, String pass) {
        return stem + "-" + pass;
    }

    private DefaultMQProducer producer() throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameserver);
        producer.setClientIP("127.0.0.1");
        producer.setSendMsgTimeout(TIMEOUT);
        producer.start();
        return producer;
    }

    private Message message() {
        // A body of its own each, as an application's is.
        byte[] body = new byte[BODY];
        Arrays.fill(body, (byte) 'x');
        return new Message(topic, "TagA", body);
    }

    private void sendOneByOne(Window window) throws Exception {
        DefaultMQProducer producer = producer();
        while (window.isOpen()) {
            check(producer.send(message()));
            window.acknowledged.incrementAndGet();
        }
        producer.shutdown();
    }

    private void sendBatches(Window window) throws Exception {
        DefaultMQProducer producer = producer();
        while (window.isOpen()) {
            List<Message> messages = new ArrayList<>(BATCH);
            for (int i = 0; i < BATCH; i++) {
                messages.add(message());
            }
            check(producer.send(messages));
            window.acknowledged.addAndGet(BATCH);
        }
        producer.shutdown();
    }

    private void sendManyAtOnce(Window window) throws Exception {
        DefaultMQProducer producer = producer();
        Semaphore free = new Semaphore(IN_FLIGHT);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                try {
                    check(result);
                    window.acknowledged.incrementAndGet();
                } catch (IllegalStateException e) {
                    failure.set(e);
                }
                free.release();
            }

            @Override
            public void onException(Throwable e) {
                failure.set(e);
                free.release();
            }
        };
        while (window.isOpen() && failure.get() == null) {
            free.acquire();
            producer.send(message(), callback);
        }
        if (!free.tryAcquire(IN_FLIGHT, TIMEOUT, TimeUnit.MILLISECONDS) || failure.get() != null) {
            throw new IllegalStateException("a send failed", failure.get());
        }
        producer.shutdown();
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    private void consume(String group, Tally tally) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameserver);
        consumer.setClientIP("127.0.0.1");
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(THREADS);
        consumer.setConsumeThreadMax(THREADS);
        consumer.setConsumeMessageBatchMaxSize(BATCH);
        consumer.setPullBatchSize(BATCH);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            tally.add(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean isWhole = tally.full.await(PATIENCE, TimeUnit.SECONDS);
        consumer.shutdown();
        if (!isWhole || tally.got.get() != tally.wanted) {
            throw new IllegalStateException(tally.got + " of " + tally.wanted + " messages received");
        }
    }

    /** Open for a warm-up and then for the time that the rate is of. */
    private static final class Window {
        final AtomicLong acknowledged = new AtomicLong();
        double rate;
        private final long seconds;
        private final long warmUntil;
        private long start;
        private long before;

        Window(double warm, double seconds) {
            this.seconds = (long) (seconds * 1e9);
            this.warmUntil = System.nanoTime() + (long) (warm * 1e9);
        }

        boolean isOpen() {
            long now = System.nanoTime();
            if (now < warmUntil) {
                return true;
            }
            if (start == 0) {
                start = now;
                before = acknowledged.get();
            }
            if (now - start < seconds) {
                return true;
            }
            rate = (acknowledged.get() - before) * 1e9 / (now - start);
            return false;
        }
    }

    /** Counts up to what is wanted, and takes the time from the first handover to the last. */
    private static final class Tally {
        final long wanted;
        final AtomicLong got = new AtomicLong();
        final CountDownLatch full = new CountDownLatch(1);
        private volatile int first;
        private volatile long start;
        private volatile long end;

        Tally(long wanted) {
            this.wanted = wanted;
        }

        void add(int count) {
            long before = got.getAndAdd(count);
            if (before == 0) {
                start = System.nanoTime();
                first = count;
            }
            if (before + count == wanted) {
                end = System.nanoTime();
                full.countDown();
            }
        }

        /** Of those after the first handover, at which the clock starts. */
        double rate() {
            return (wanted - first) * 1e9 / (end - start);
        }
    }
}
