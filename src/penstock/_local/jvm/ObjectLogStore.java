package penstock.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on an object store: a version is created only if it does not exist, and only while
 * this driver has the lease of its storage.
 *
 * <p>{@code io.delta.storage.S3SingleDriverLogStore} looks whether the version exists and then
 * writes it: a commit that another driver makes in between is overwritten.
 */
public final class ObjectLogStore extends HadoopFileSystemLogStore {

  public ObjectLogStore(Configuration initHadoopConf) {
    super(initHadoopConf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    StringBuilder lines = new StringBuilder();
    actions.forEachRemaining(action -> lines.append(action).append('\n'));
    byte[] content = lines.toString().getBytes(StandardCharsets.UTF_8);
    if (!overwrite) {
      StorageLease.commit(path, content, conf);
      return;
    }
    // `_last_checkpoint` alone, which every writer may replace.
    try (FSDataOutputStream stream = path.getFileSystem(conf).create(path, true)) {
      stream.write(content);
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
