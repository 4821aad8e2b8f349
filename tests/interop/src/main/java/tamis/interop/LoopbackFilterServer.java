package tamis.interop;

import org.apache.rocketmq.filtersrv.FiltersrvController;
import org.apache.rocketmq.filtersrv.FiltersrvStartup;

/**
 * The real filter server (4.2), by its own startup class, but on 127.0.0.1 only. It chooses its port and
 * prints its address when it listens, and ends when its standard input does.
 *
 * <p>Arguments: the startup class's own.
 */
public final class LoopbackFilterServer {
    private LoopbackFilterServer() {
    }

    public static void main(String[] args) {
        FiltersrvController server = FiltersrvStartup.createController(args);
        Loopback.confine(server.getRemotingServer());
        FiltersrvStartup.start(server);
        Loopback.exitWithInput();
    }
}
