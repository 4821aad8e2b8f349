package tamis.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The real push consumer with a filter in code: it uploads a source to the filter servers and prints what
 * it is given, a line of JSON each. It ends when its standard input does.
 *
 * <p>One source for the clients 4.2, 4.9 and 5.3.
 *
 * <p>Arguments: {@code <nameserver> <group> <topic> <class name> <file with the source>}.
 */
public final class CodeConsumer {
    private CodeConsumer() {
    }

    @SuppressWarnings("deprecation")  // filters in code, in all clients since 4.3
    public static void main(String[] args) throws Exception {
        PrintStream stdout = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // The client's libraries may print; stdout is for messages only.
        System.setOut(System.err);

        if (args.length != 5) {
            throw new IllegalArgumentException("usage: CodeConsumer <nameserver> <group> <topic> <class> <file>");
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setClientIP("127.0.0.1");
        consumer.setPollNameServerInterval(300);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], args[3], Files.readString(Path.of(args[4])));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (stdout) {
                messages.forEach(message -> stdout.print(JSON.toJSONString(row(message)) + "\n"));
                stdout.flush();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Loopback.exitWithInput();
    }

    private static JSONObject row(MessageExt message) {
        JSONObject row = new JSONObject(true);
        row.put("topic", message.getTopic());
        row.put("queue", message.getQueueId());
        row.put("offset", message.getQueueOffset());
        row.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        row.put("tags", message.getTags());
        row.put("keys", message.getKeys());
        row.put("msg_id", message.getMsgId());
        row.put("properties", new TreeMap<>(message.getProperties()));
        return row;
    }
}
