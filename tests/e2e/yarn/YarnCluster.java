import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** YARN's resource manager and two node managers; containers are processes. */
public final class YarnCluster {
  /** Writes the settings for clients into a folder when the cluster is ready. */
  public static void main(String[] arguments) throws Exception {
    YarnConfiguration conf = new YarnConfiguration();
    conf.set("fs.defaultFS", "file:///");
    conf.set("yarn.nodemanager.resource.memory-mb", "4096");
    conf.set("yarn.nodemanager.vmem-check-enabled", "false");
    conf.set("yarn.nodemanager.env-whitelist", "JAVA_HOME,PATH");
    conf.set("yarn.scheduler.minimum-allocation-mb", "256");
    conf.set("yarn.scheduler.capacity.root.queues", "default");
    conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
    conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.8");
    MiniYARNCluster cluster = new MiniYARNCluster("cluster", 2, 1, 1);
    cluster.init(conf);
    cluster.start();
    Path draft = Path.of(arguments[0], "draft.xml");
    try (OutputStream out = Files.newOutputStream(draft)) {
      cluster.getConfig().writeXml(out);
    }
    Files.move(draft, Path.of(arguments[0], "yarn-site.xml"));
    Thread.sleep(Long.MAX_VALUE);
  }
}
