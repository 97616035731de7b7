package penstock.storage;

import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/** A Delta log on Azure: versions are written only while this driver holds the lease. */
public final class AzureLogStore extends io.delta.storage.AzureLogStore {

  public AzureLogStore(Configuration initHadoopConf) {
    super(initHadoopConf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    StorageLease.check();
    super.write(path, actions, overwrite, conf);
  }
}
