package tamis.yarn;

import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;

/**
 * HDFS with one data node, a resource manager and a node manager, all on 127.0.0.1 and on ports
 * that the system chooses. The node manager runs containers as processes of this machine.
 *
 * <p>Argument: a directory. Files of the servers lie in it; when everything runs, {@code conf} in
 * it holds what HADOOP_CONF_DIR is to name, and {@code ready} is printed. The process ends when its
 * standard input does, as a child whose parent has died must.
 */
public final class LoopbackHadoop {
    private static final String LOOPBACK = "127.0.0.1";

    /** Settings that have an address as their value; each is asked for port 0. */
    private static final String[] ADDRESSES = {
        YarnConfiguration.RM_ADDRESS,
        YarnConfiguration.RM_SCHEDULER_ADDRESS,
        YarnConfiguration.RM_RESOURCE_TRACKER_ADDRESS,
        YarnConfiguration.RM_ADMIN_ADDRESS,
        YarnConfiguration.RM_WEBAPP_ADDRESS,
        YarnConfiguration.NM_ADDRESS,
        YarnConfiguration.NM_LOCALIZER_ADDRESS,
        YarnConfiguration.NM_COLLECTOR_SERVICE_ADDRESS,
        YarnConfiguration.NM_WEBAPP_ADDRESS,
    };

    /** A small machine, and containers of which Spark asks for three. */
    private static final Map<String, String> SETTINGS = Map.of(
        YarnConfiguration.NM_PMEM_MB, "6144",
        YarnConfiguration.NM_VCORES, "4",
        YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, "128",
        YarnConfiguration.NM_VMEM_CHECK_ENABLED, "false",
        YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, "100",
        YarnConfiguration.DEBUG_NM_DELETE_DELAY_SEC, "600",
        "yarn.scheduler.capacity.root.queues", "default",
        "yarn.scheduler.capacity.root.default.capacity", "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent", "0.5",
        "hadoop.http.staticuser.user", System.getProperty("user.name"));

    private LoopbackHadoop() {
    }

    public static void main(String[] args) throws Exception {
        Path directory = Path.of(args[0]).toAbsolutePath();
        DefaultMetricsSystem.setMiniClusterMode(true);  // several servers count in one process

        Configuration files = new Configuration();
        File base = directory.resolve("hdfs").toFile();
        MiniDFSCluster hdfs = new MiniDFSCluster.Builder(files, base).numDataNodes(1).build();
        hdfs.waitActive();

        YarnConfiguration conf = settings(directory);
        conf.set(FileSystem.FS_DEFAULT_NAME_KEY, hdfs.getURI().toString());
        ResourceManager resources = new ResourceManager();
        resources.init(conf);
        resources.start();
        NodeManager node = new NodeManager();
        node.init(conf);  // it has the resource manager's ports by now
        node.start();
        while (resources.getResourceScheduler().getNumClusterNodes() == 0) {
            Thread.sleep(50);
        }

        write(conf, directory.resolve("conf"));
        System.out.println("ready");
        while (System.in.read() >= 0) {
            continue;
        }
        node.stop();
        resources.stop();
        hdfs.shutdown();
        System.exit(0);
    }

    private static YarnConfiguration settings(Path directory) {
        YarnConfiguration conf = new YarnConfiguration();
        SETTINGS.forEach(conf::set);
        conf.set(YarnConfiguration.RM_HOSTNAME, LOOPBACK);
        conf.set("yarn.nodemanager.hostname", LOOPBACK);
        conf.set(YarnConfiguration.RM_BIND_HOST, LOOPBACK);
        conf.set(YarnConfiguration.NM_BIND_HOST, LOOPBACK);
        for (String name : ADDRESSES) {
            conf.set(name, LOOPBACK + ":0");
        }
        conf.set(YarnConfiguration.NM_LOCAL_DIRS, directory.resolve("local").toString());
        conf.set(YarnConfiguration.NM_LOG_DIRS, directory.resolve("containers").toString());
        return conf;
    }

    /** What clients need to know; the ports are those that the servers got. */
    private static void write(Configuration conf, Path directory) throws IOException {
        Configuration core = new Configuration(false);
        core.set(FileSystem.FS_DEFAULT_NAME_KEY, conf.get(FileSystem.FS_DEFAULT_NAME_KEY));
        Configuration yarn = new Configuration(false);
        yarn.set(YarnConfiguration.RM_HOSTNAME, LOOPBACK);
        for (String name : ADDRESSES) {
            if (name.startsWith(YarnConfiguration.RM_PREFIX)) {
                yarn.set(name, conf.get(name));
            }
        }
        Files.createDirectories(directory);
        try (OutputStream out = Files.newOutputStream(directory.resolve("core-site.xml"))) {
            core.writeXml(out);
        }
        try (OutputStream out = Files.newOutputStream(directory.resolve("yarn-site.xml"))) {
            yarn.writeXml(out);
        }
    }
}
