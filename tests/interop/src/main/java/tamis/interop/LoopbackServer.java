package tamis.interop;

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
        Loopback.exitWithInput();
    }

    private static void startNameServer(String[] args) throws Exception {
        NamesrvController made = NamesrvStartup.createNamesrvController(args);
        NamesrvStartup.start(new NamesrvController(made.getNamesrvConfig(), made.getNettyServerConfig()) {
            @Override
            public boolean initialize() {
                boolean done = super.initialize();
                Loopback.confine(Loopback.get(this, NamesrvController.class, "remotingServer"));
                return done;
            }
        });
    }

    private static void startBroker(String[] args) {
        BrokerController broker = BrokerStartup.createBrokerController(args);
        for (String server : new String[] {"remotingServer", "fastRemotingServer"}) {
            Loopback.confine(Loopback.get(broker, BrokerController.class, server));
        }
        Object replication = ((DefaultMessageStore) broker.getMessageStore()).getHaService();
        Object acceptor = Loopback.get(replication, replication.getClass(), "acceptSocketService");
        int port = broker.getMessageStoreConfig().getHaListenPort();
        Loopback.set(acceptor, "socketAddressListen", Loopback.address(port));
        BrokerStartup.start(broker);
    }
}
