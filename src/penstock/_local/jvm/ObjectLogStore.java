package penstock.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on an object store with conditional writes: a version is created only if it does not
 * exist ({@code If-None-Match: *} on S3).
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
    FileSystem files = path.getFileSystem(conf);
    if (overwrite) {
      // `_last_checkpoint` alone, which every writer may replace.
      try (FSDataOutputStream stream = files.create(path, true)) {
        stream.write(content);
      }
      return;
    }
    FSDataOutputStreamBuilder<?, ?> create = files.createFile(path).overwrite(false).recursive();
    create.must("fs.option.create.conditional.overwrite", true);
    try (FSDataOutputStream stream = create.build()) {
      stream.write(content);
    } catch (IOException e) {
      // The version exists; or it is ours, and only the answer was lost: the request is repeated
      // then, and refused because of itself. A commit has an id of its own.
      byte[] committed = read(files, path);
      if (committed == null) {
        throw e;
      }
      if (!Arrays.equals(committed, content)) {
        throw new FileAlreadyExistsException(path.toString());
      }
    }
  }

  private static byte[] read(FileSystem files, Path path) throws IOException {
    try (FSDataInputStream stream = files.open(path)) {
      return stream.readAllBytes();
    } catch (FileNotFoundException e) {
      return null;
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
