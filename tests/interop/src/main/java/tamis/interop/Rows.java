package tamis.interop;

import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** What the driver says of messages, of results and of errors, as JSON. */
final class Rows {
    private Rows() {
    }

    static JSONObject of(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        // The client's own notes, not stored.
        properties.keySet().removeAll(List.of(
            MessageConst.PROPERTY_MIN_OFFSET, MessageConst.PROPERTY_MAX_OFFSET, MessageConst.PROPERTY_CONSUME_START_TIMESTAMP));
        JSONObject row = new JSONObject(true);
        row.put("topic", message.getTopic());
        row.put("broker", message.getBrokerName());
        row.put("queue", message.getQueueId());
        row.put("offset", message.getQueueOffset());
        row.put("body", message.getBody() == null ? "" : new String(message.getBody(), StandardCharsets.UTF_8));
        row.put("tags", message.getTags());
        row.put("keys", message.getKeys());
        row.put("flag", message.getFlag());
        row.put("properties", properties);
        row.put("reconsume_times", message.getReconsumeTimes());
        row.put("msg_id", message.getMsgId());
        row.put("offset_msg_id", offsetId(message));
        row.put("born", message.getBornTimestamp());
        row.put("stored", message.getStoreTimestamp());
        return row;
    }

    static JSONObject of(SendResult result) {
        JSONObject row = new JSONObject(true);
        row.put("status", result.getSendStatus().name());
        row.put("queue", result.getMessageQueue().getQueueId());
        row.put("offset", result.getQueueOffset());
        row.put("msg_id", result.getMsgId());
        row.put("offset_msg_id", result.getOffsetMsgId());
        return row;
    }

    /** `code` is what the server answered, where it did. */
    static JSONObject of(Throwable error) {
        JSONObject row = new JSONObject(true);
        row.put("error", error.getClass().getSimpleName());
        row.put("message", String.valueOf(error.getMessage()));
        for (Throwable cause = error; cause != null && !row.containsKey("code"); cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                row.put("code", ((MQBrokerException) cause).getResponseCode());
            } else if (cause instanceof MQClientException) {
                row.put("code", ((MQClientException) cause).getResponseCode());
            }
        }
        return row;
    }

    private static String offsetId(MessageExt message) {
        int length = (message.getSysFlag() & 1 << 5) == 0 ? 16 : 28;
        return MessageDecoder.createMessageId(
            ByteBuffer.allocate(length), message.getStoreHostBytes(), message.getCommitLogOffset());
    }
}
