package tamis.interop;

import io.netty.bootstrap.ServerBootstrap;
import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;

/**
 * What the real servers need to be a test's: to listen on 127.0.0.1 only, where they have no setting for
 * it, and to end with their parent.
 */
final class Loopback {
    private Loopback() {
    }

    /** Makes one of RocketMQ's remoting servers listen on loopback, before it is started. */
    static void confine(Object remotingServer) {
        set(remotingServer, "serverBootstrap", new LoopbackBootstrap());
    }

    static InetSocketAddress address(int port) {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    }

    static Object get(Object owner, Class<?> type, String name) {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field.get(owner);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static void set(Object owner, String name, Object value) {
        try {
            Field field = owner.getClass().getDeclaredField(name);
            field.setAccessible(true);
            field.set(owner, value);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Ends this process when its standard input ends, as a child whose parent has died must. */
    static void exitWithInput() {
        Thread watch = new Thread(Loopback::watch, "watch-stdin");
        watch.setDaemon(true);
        watch.start();
    }

    private static void watch() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException e) {
            // As good as the end.
        }
        System.exit(0);
    }

    private static final class LoopbackBootstrap extends ServerBootstrap {
        @Override
        public ServerBootstrap localAddress(SocketAddress any) {
            return super.localAddress(address(((InetSocketAddress) any).getPort()));
        }
    }
}
