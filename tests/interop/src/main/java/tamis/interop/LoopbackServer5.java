package tamis.interop;

import java.io.IOException;
import java.lang.reflect.Field;
import java.util.Arrays;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.DefaultHAService;

/**
 * As {@link LoopbackServer}, for 5.3: its servers take `bindAddress`, all but the replication's.
 *
 * <p>Arguments: {@code nameserver} or {@code broker}, then the startup class's own.
 */
public final class LoopbackServer5 {
    private LoopbackServer5() {
    }

    public static void main(String[] args) throws Exception {
        String[] rest = Arrays.copyOfRange(args, 1, args.length);
        switch (args[0]) {
            case "nameserver":
                NamesrvStartup.main(rest);
                break;
            case "broker":
                startBroker(rest);
                break;
            default:
                throw new IllegalArgumentException("unknown server: " + args[0]);
        }
        Loopback.exitWithInput();
    }

    private static void startBroker(String[] args) throws ReflectiveOperationException {
        BrokerController broker = BrokerStartup.createBrokerController(args);
        Field replication = DefaultMessageStore.class.getDeclaredField("haService");
        replication.setAccessible(true);
        replication.set(broker.getMessageStore(), new LoopbackReplication());
        BrokerStartup.start(broker);
    }

    private static final class LoopbackReplication extends DefaultHAService {
        @Override
        public void init(DefaultMessageStore store) throws IOException {
            super.init(store);
            int port = store.getMessageStoreConfig().getHaListenPort();
            try {
                Field address = AcceptSocketService.class.getDeclaredField("socketAddressListen");
                address.setAccessible(true);
                address.set(acceptSocketService, Loopback.address(port));
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
        }
    }
}
