package tamis.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Answers, line by line, which queues the real strategies give to a member: a JSON object in, with the
 * strategy's name and its settings, and one out, with `queues` or `error`. As in a rebalance, the lists
 * are sorted first.
 */
public final class AssignOracle {
    private AssignOracle() {
    }

    public static void main(String[] args) throws IOException {
        PrintStream stdout = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        // The client's libraries may print; stdout is for answers only.
        System.setOut(System.err);

        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        String line;
        while ((line = in.readLine()) != null) {
            // Browser compatible: what is not ASCII is escaped, half a surrogate pair too.
            stdout.print(JSON.toJSONString(answer(JSON.parseObject(line)), SerializerFeature.BrowserCompatible) + "\n");
            stdout.flush();
        }
    }

    private static JSONObject answer(JSONObject request) {
        JSONObject answer = new JSONObject();
        try {
            AllocateMessageQueueStrategy strategy = strategyOf(request.getString("strategy"), request);
            if (!strategy.getName().equals(request.getString("strategy"))) {
                throw new IllegalStateException("this strategy is called " + strategy.getName());
            }
            List<MessageQueue> queues = queuesOf(request.getJSONArray("queues"));
            List<String> members = textsOf(request.getJSONArray("members"));
            Collections.sort(queues);
            Collections.sort(members);
            JSONArray share = new JSONArray();
            for (MessageQueue queue : strategy.allocate("group", request.getString("me"), queues, members)) {
                share.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
            }
            answer.put("queues", share);
        } catch (RuntimeException e) {
            answer.put("error", e.getClass().getSimpleName());
        }
        return answer;
    }

    static AllocateMessageQueueStrategy strategyOf(String name, JSONObject request) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(new HashSet<>(textsOf(request.getJSONArray("rooms"))));
                return byRoom;
            case "CONFIG":
                AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
                byConfig.setMessageQueueList(queuesOf(request.getJSONArray("fixed")));
                return byConfig;
            default:
                if (!name.startsWith("MACHINE_ROOM_NEARBY-")) {
                    throw new UnsupportedOperationException(name);
                }
                String inner = name.substring("MACHINE_ROOM_NEARBY-".length());
                return new AllocateMachineRoomNearby(strategyOf(inner, request), new Rooms(request));
        }
    }

    private static List<MessageQueue> queuesOf(JSONArray rows) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < rows.size(); i++) {
            JSONArray row = rows.getJSONArray(i);
            queues.add(new MessageQueue(row.getString(0), row.getString(1), row.getIntValue(2)));
        }
        return queues;
    }

    private static List<String> textsOf(JSONArray rows) {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < rows.size(); i++) {
            texts.add(rows.getString(i));
        }
        return texts;
    }

    /** Of each queue and each member, in the order of the request. */
    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        private final Map<MessageQueue, String> ofQueues = new HashMap<>();
        private final Map<String, String> ofMembers = new HashMap<>();

        Rooms(JSONObject request) {
            List<MessageQueue> queues = queuesOf(request.getJSONArray("queues"));
            for (int i = 0; i < queues.size(); i++) {
                ofQueues.put(queues.get(i), request.getJSONArray("queue_rooms").getString(i));
            }
            List<String> members = textsOf(request.getJSONArray("members"));
            for (int i = 0; i < members.size(); i++) {
                ofMembers.put(members.get(i), request.getJSONArray("member_rooms").getString(i));
            }
        }

        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return ofQueues.get(queue);
        }

        @Override
        public String consumerDeployIn(String member) {
            return ofMembers.get(member);
        }
    }
}
