package penstock.storage;

import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** A Delta log on HDFS: versions are written only while this driver holds the lease. */
public final class HdfsLogStore extends io.delta.storage.HDFSLogStore {

  public HdfsLogStore(Configuration initHadoopConf) {
    super(initHadoopConf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    StorageLease.check();
    super.write(path, actions, overwrite, conf);
  }
}
