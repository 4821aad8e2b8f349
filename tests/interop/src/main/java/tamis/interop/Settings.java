package tamis.interop;

import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** Settings that all the driver's clients share. */
final class Settings {
    private Settings() {
    }

    /** A test does not wait for the next heartbeat, nor for the next look at the routes. */
    static void hasten(ClientConfig client, JSONObject request) {
        client.setNamesrvAddr(request.getString("nameserver"));
        // Clients with one name share a connection, even with one that is about to shut down.
        client.setInstanceName(request.getString("client") + "-" + System.nanoTime());
        client.setClientIP("127.0.0.1");
        client.setPollNameServerInterval(300);
        client.setHeartbeatBrokerInterval(500);
        client.setPersistConsumerOffsetInterval(500);
        client.setPullTimeDelayMillsWhenException(200);
        client.setVipChannelEnabled(request.getBooleanValue("vip"));
    }

    /** Signs what a client asks, if it has a key. */
    static RPCHook hook(JSONObject request) {
        String key = request.getString("access_key");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, request.getString("secret_key")));
    }

    /** For an enumeration whose package differs between the lines. */
    static void set(Object owner, String setter, String constant) {
        for (Method method : owner.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterTypes()[0].isEnum()) {
                Class<?> type = method.getParameterTypes()[0];
                for (Object each : type.getEnumConstants()) {
                    if (((Enum<?>) each).name().equals(constant)) {
                        call(owner, method, each);
                        return;
                    }
                }
            }
        }
        throw new IllegalArgumentException(setter + " does not take " + constant);
    }

    private static void call(Object owner, Method method, Object argument) {
        try {
            method.invoke(owner, argument);
        } catch (IllegalAccessException | InvocationTargetException e) {
            throw new IllegalStateException(e);
        }
    }
}
