package tamis.interop;

import io.netty.bootstrap.ServerBootstrap;
import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Arrays;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * The real name server or broker, by its own startup class, but on 127.0.0.1 only: 4.9 listens on
 * every interface and has no setting for it. It ends when its standard input does, as a child whose
 * parent has died must.
 *
 * <p>Arguments: {@code nameserver} or {@code broker}, then the startup class's own.
 */
public final class LoopbackServer {
    private LoopbackServer() {
    }

    public static void main(String[] args) throws Exception {
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        switch (args[0]) {
            case "nameserver":
                startNameServer(rest);
                break;
            case "broker":
                startBroker(rest);
                break;
            default:
                throw new IllegalArgumentException("unknown server: " + args[0]);
        }
        Thread watch = new Thread(LoopbackServer::exitWithInput, "watch-stdin");
        watch.setDaemon(true);
        watch.start();
    }

    private static void startNameServer(String[] args) throws Exception {
        NamesrvController made = NamesrvStartup.createNamesrvController(args);
        NamesrvStartup.start(new NamesrvController(made.getNamesrvConfig(), made.getNettyServerConfig()) {
            @Override
            public boolean initialize() {
                boolean done = super.initialize();
                set(get(this, NamesrvController.class, "remotingServer"), "serverBootstrap", new LoopbackBootstrap());
                return done;
            }
        });
    }

    private static void startBroker(String[] args) {
        BrokerController broker = BrokerStartup.createBrokerController(args);
        for (String server : new String[] {"remotingServer", "fastRemotingServer"}) {
            set(get(broker, BrokerController.class, server), "serverBootstrap", new LoopbackBootstrap());
        }
        Object replication = ((DefaultMessageStore) broker.getMessageStore()).getHaService();
        Object acceptor = get(replication, replication.getClass(), "acceptSocketService");
        set(acceptor, "socketAddressListen", loopback(broker.getMessageStoreConfig().getHaListenPort()));
        BrokerStartup.start(broker);
    }

    private static final class LoopbackBootstrap extends ServerBootstrap {
        @Override
        public ServerBootstrap localAddress(SocketAddress any) {
            return super.localAddress(loopback(((InetSocketAddress) any).getPort()));
        }
    }

    private static InetSocketAddress loopback(int port) {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    }

    private static Object get(Object owner, Class<?> type, String name) {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(owner);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void set(Object owner, String name, Object value) {
        try {
            Field field = owner.getClass().getDeclaredField(name);
            field.setAccessible(true);
            field.set(owner, value);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void exitWithInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException e) {
            // As good as the end.
        }
        System.exit(0);
    }
}
