package penstock.storage;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.AbstractFileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;

/**
 * Manages the files of Spark's checkpoints on an object store. A file is visible when its upload is
 * complete. The offsets of a batch are created only if they do not exist, and only while this
 * driver holds the lease of its storage.
 *
 * <p>Spark's own file manager for object stores, in {@code spark-hadoop-cloud}, checks whether a
 * file exists and then writes it: a concurrent write of another driver is overwritten.
 */
public final class ObjectCheckpointFiles extends AbstractFileContextBasedCheckpointFileManager {

  private static final Pattern FILE_OF_LOG =
      Pattern.compile(".*/(offsets|commits|sources/[^/]+)/[^/]+");

  private final Configuration conf;

  public ObjectCheckpointFiles(Path path, Configuration conf) {
    super(path, conf);
    this.conf = conf;
  }

  /**
   * Checks a path in a log only for a file. S3 needs an additional request to find a folder, and
   * each batch checks for three files before it creates them.
   */
  @Override
  @SuppressWarnings("deprecation") // s3a implements `isFile` without a listing
  public boolean exists(Path path) {
    boolean isOfLog = FILE_OF_LOG.matcher(path.toUri().getPath()).matches();
    try {
      return isOfLog ? path.getFileSystem(conf).isFile(path) : super.exists(path);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    try {
      if (!overwriteIfPossible) {
        return new NewFile(path, new ByteArrayOutputStream());
      }
      StorageLease.check();
      return new Upload(path.getFileSystem(conf).create(path, true));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** A small file of a log. */
  private final class NewFile extends CancellableFSDataOutputStream {
    private final Path path;
    private final ByteArrayOutputStream content;
    private boolean ended;

    NewFile(Path path, ByteArrayOutputStream content) {
      super(content);
      this.path = path;
      this.content = content;
    }

    @Override
    public void close() throws IOException {
      if (!ended) {
        ended = true;
        flush();
        try {
          StorageLease.commit(path, content.toByteArray(), conf);
        } catch (java.nio.file.FileAlreadyExistsException e) {
          throw new org.apache.hadoop.fs.FileAlreadyExistsException(path.toString());
        }
      }
    }

    @Override
    public void cancel() {
      ended = true;
    }
  }

  /** A file of a state store, which a retried task replaces. */
  private static final class Upload extends CancellableFSDataOutputStream {
    private final FSDataOutputStream upload;
    private boolean ended;

    Upload(FSDataOutputStream upload) {
      super(upload);
      this.upload = upload;
    }

    @Override
    public synchronized void close() throws IOException {
      if (!ended) {
        try {
          StorageLease.check();
        } catch (IOException e) {
          cancel();
          throw e;
        }
        ended = true;
        super.close();
      }
    }

    @Override
    public synchronized void cancel() {
      if (!ended) {
        ended = true;
        upload.abort();
      }
    }
  }
}
