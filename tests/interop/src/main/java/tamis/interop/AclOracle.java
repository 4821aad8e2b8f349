package tamis.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.acl.plain.PlainAccessResource;
import org.apache.rocketmq.acl.plain.RemoteAddressStrategy;
import org.apache.rocketmq.acl.plain.RemoteAddressStrategyFactory;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Answers, line by line, how RocketMQ's client signs a command, and which addresses a white pattern
 * matches. JSON in and out; texts are UTF-16 in base64.
 */
public final class AclOracle {
    private AclOracle() {
    }

    public static void main(String[] args) throws IOException {
        PrintStream stdout = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        String line;
        while ((line = in.readLine()) != null) {
            JSONObject request = JSON.parseObject(line);
            Object answer = request.containsKey("pattern") ? match(request) : sign(request);
            stdout.print(JSON.toJSONString(answer, SerializerFeature.BrowserCompatible) + "\n");
            stdout.flush();
        }
    }

    private static Object sign(JSONObject request) {
        RemotingCommand command = RemotingCommand.createRequestCommand(request.getIntValue("code"), null);
        JSONArray fields = request.getJSONArray("fields");
        if (fields != null) {
            HashMap<String, String> made = new HashMap<>();
            for (int i = 0; i < fields.size(); i++) {
                JSONArray field = fields.getJSONArray(i);
                made.put(text(field.getString(0)), text(field.getString(1)));
            }
            command.setExtFields(made);
        }
        String body = request.getString("body");
        if (body != null) {
            command.setBody(Base64.getDecoder().decode(body));
        }
        String key = text(request.getString("key"));
        String secret = text(request.getString("secret"));
        String token = request.getString("token");
        SessionCredentials credentials = token == null
            ? new SessionCredentials(key, secret)
            : new SessionCredentials(key, secret, text(token));
        new AclClientRPCHook(credentials).doBeforeRequest("", command);
        return command.getExtFields().get(SessionCredentials.SIGNATURE);
    }

    /** Of each host, or one text if the pattern is refused. */
    private static Object match(JSONObject request) {
        RemoteAddressStrategy strategy;
        try {
            strategy = new RemoteAddressStrategyFactory().getRemoteAddressStrategy(text(request.getString("pattern")));
        } catch (RuntimeException e) {
            return "refused";
        }
        JSONArray verdicts = new JSONArray();
        for (Object host : request.getJSONArray("hosts")) {
            PlainAccessResource resource = new PlainAccessResource();
            resource.setWhiteRemoteAddress((String) host);
            try {
                verdicts.add(strategy.match(resource));
            } catch (RuntimeException e) {
                verdicts.add("error");
            }
        }
        return verdicts;
    }

    /** Half a surrogate pair stays one: a decoder would replace it. */
    private static String text(String field) {
        return ByteBuffer.wrap(Base64.getDecoder().decode(field)).asCharBuffer().toString();
    }
}
