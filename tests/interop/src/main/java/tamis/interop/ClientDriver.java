package tamis.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.remoting.RemotingClient;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The real client, told what to do by lines on standard input and answering each with one on standard
 * output: JSON objects, the request's `do` naming the command, the answer having `ok` or `error`. Its
 * producers and consumers have names (`client`) and live until they are stopped or the input ends.
 *
 * <p>One source for the clients 4.9 and 5.3.
 */
public final class ClientDriver {
    private final Producers producers = new Producers();
    private final Consumers consumers = new Consumers();
    private final RemotingClient remoting = new NettyRemotingClient(new NettyClientConfig());
    private final Map<String, Command> commands = new HashMap<>();

    private interface Command {
        Object run(JSONObject request) throws Exception;
    }

    private ClientDriver() {
        remoting.start();
        commands.put("producer", producers::start);
        commands.put("send", producers::send);
        commands.put("checks", producers::checks);
        commands.put("push", consumers::startPush);
        commands.put("subscribe", consumers::subscribe);
        commands.put("received", consumers::received);
        commands.put("assignment", consumers::assignment);
        commands.put("lite", consumers::startLite);
        commands.put("poll", consumers::poll);
        commands.put("assign", consumers::assign);
        commands.put("seek", consumers::seek);
        commands.put("commit", consumers::commit);
        commands.put("committed", consumers::committed);
        commands.put("puller", consumers::startPull);
        commands.put("pull", consumers::pull);
        commands.put("queues", consumers::queues);
        commands.put("offset", consumers::offset);
        commands.put("query", consumers::query);
        commands.put("view", consumers::view);
        commands.put("send_back", consumers::sendBack);
        commands.put("stop", this::stop);
        commands.put("dismiss", this::dismiss);
        commands.put("request", this::request);
        commands.put("admin", this::admin);
    }

    public static void main(String[] args) throws Exception {
        PrintStream stdout = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        // The client's libraries may print; stdout is for answers only.
        System.setOut(System.err);

        Thread hurry = new Thread(new Hurry(Thread.currentThread()), "hurry");
        hurry.setDaemon(true);
        hurry.start();
        ClientDriver driver = new ClientDriver();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            stdout.print(JSON.toJSONString(
                driver.answer(JSON.parseObject(line)),
                SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect) + "\n");
            stdout.flush();
        }
        System.exit(0);  // the client's threads would go on
    }

    private JSONObject answer(JSONObject request) {
        Command command = commands.get(request.getString("do"));
        JSONObject answer = new JSONObject();
        try {
            if (command == null) {
                throw new IllegalArgumentException("unknown command: " + request.getString("do"));
            }
            answer.put("ok", command.run(request));
        } catch (Exception e) {
            e.printStackTrace();
            answer.put("error", Rows.of(e));
        }
        return answer;
    }

    private Object stop(JSONObject request) {
        take(request).run();
        return null;
    }

    /** Stops in its own time: a client of 5.3 may take three seconds. */
    private Object dismiss(JSONObject request) {
        Thread thread = new Thread(take(request));
        thread.setDaemon(true);
        thread.start();
        return null;
    }

    /** What is left to do for a client whose name is free again. */
    private Runnable take(JSONObject request) {
        String name = request.getString("client");
        Runnable shutdown = producers.take(name);
        if (shutdown == null) {
            shutdown = consumers.take(name);
        }
        if (shutdown == null) {
            throw new IllegalArgumentException("no client " + name);
        }
        return shutdown;
    }

    /** Any request, as it is, and the answer to it. */
    private Object request(JSONObject request) throws Exception {
        RemotingCommand command = RemotingCommand.createRequestCommand(request.getIntValue("code"), null);
        HashMap<String, String> fields = new HashMap<>();
        request.getJSONObject("fields").forEach((name, value) -> fields.put(name, (String) value));
        command.setExtFields(fields);
        if (request.getString("body") != null) {
            command.setBody(Base64.getDecoder().decode(request.getString("body")));
        }
        RemotingCommand response = remoting.invokeSync(request.getString("address"), command, request.getLongValue("timeout"));
        JSONObject row = new JSONObject(true);
        row.put("code", response.getCode());
        row.put("remark", response.getRemark());
        row.put("version", response.getVersion());
        row.put("fields", response.getExtFields());
        byte[] body = response.getBody() == null ? new byte[0] : response.getBody();
        row.put("body", Base64.getEncoder().encodeToString(body));
        return row;
    }

    /** Several commands of mqadmin, one after another; what each printed. */
    private Object admin(JSONObject request) {
        System.setProperty("rocketmq.namesrv.addr", request.getString("nameserver"));
        List<String> outputs = new ArrayList<>();
        JSONArray wanted = request.getJSONArray("commands");
        PrintStream out = System.out;
        PrintStream err = System.err;
        for (int i = 0; i < wanted.size(); i++) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(said, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            try {
                MQAdminStartup.main(wanted.getJSONArray(i).toArray(new String[0]));
            } finally {
                System.setOut(out);
                System.setErr(err);
            }
            outputs.add(said.toString(StandardCharsets.UTF_8));
        }
        return outputs;
    }

    /**
     * A client of 5.3 that shuts down waits for a thread that looks up every three seconds; so does every
     * command of mqadmin. This wakes it.
     */
    private static final class Hurry implements Runnable {
        private final Thread watched;

        Hurry(Thread watched) {
            this.watched = watched;
        }

        @Override
        public void run() {
            while (true) {
                for (StackTraceElement frame : watched.getStackTrace()) {
                    if (frame.getClassName().endsWith("NettyRemotingClient") && frame.getMethodName().equals("shutdown")) {
                        wake();
                    }
                }
                LockSupport.parkNanos(20_000_000);
            }
        }

        private static void wake() {
            for (Thread thread : Thread.getAllStackTraces().keySet()) {
                if (thread.getName().startsWith("NettyEventExecutor")) {
                    thread.interrupt();
                }
            }
        }
    }
}
