package penstock.storage;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * The lease of this driver on a storage without file locks: a file per term, whose name is the
 * number of the term. The newest term holds the lease.
 *
 * <p>The holder overwrites its file at intervals, and then checks for a newer term. A driver that
 * has seen no change for the lifetime of the lease creates the next term. Therefore, the lease is
 * guaranteed for its lifetime after the last renewal; {@link #check} renews it after that.
 */
public final class StorageLease {

  /**
   * Thrown if the lease was released, or taken over by another driver; the message contains the
   * record of that driver.
   */
  public static final class LostException extends IOException {
    private static final long serialVersionUID = 1;

    LostException(String message) {
      super("LEASE_LOST " + message);
    }
  }

  private static final int ATTEMPTS = 5;

  private static volatile StorageLease held;

  private final FileSystem files;
  private final Path file;
  private String record;
  private final long lifetimeMillis;
  private long renewals;
  private volatile long renewedNanos;
  private volatile long renewedMillis;
  private volatile String lost;

  private StorageLease(Path file, String record, long lifetimeMillis, Configuration conf)
      throws IOException {
    this.files = file.getFileSystem(conf);
    this.file = file;
    this.record = record;
    this.lifetimeMillis = lifetimeMillis;
  }

  /**
   * Holds a term whose file this driver has created. {@code record} is the first line of the file.
   */
  public static StorageLease hold(
      String file, String record, long lifetimeMillis, Configuration conf) throws IOException {
    StorageLease lease = new StorageLease(new Path(file), record, lifetimeMillis, conf);
    lease.renew();
    held = lease;
    return lease;
  }

  /** Called after {@link #release}, so that other code of a borrowed session can commit. */
  public static void forget() {
    held = null;
  }

  /** Fails if the lease of this driver was taken over or released. Called before each commit. */
  public static void check() throws IOException {
    StorageLease lease = held;
    if (lease != null) {
      lease.ensure();
    }
  }

  private void ensure() throws IOException {
    // The monotonic clock stops while the machine sleeps; the system clock may be set back.
    long elapsed = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - renewedNanos);
    long apart = Math.abs(System.currentTimeMillis() - renewedMillis);
    if (lost != null || elapsed >= lifetimeMillis || apart >= lifetimeMillis) {
      renew();
    }
  }

  /** Replaces the first line of the file. */
  public synchronized void setRecord(String text) throws IOException {
    record = text;
    renew();
  }

  /** Overwrites the file to signal that the holder is alive, and then checks for a newer term. */
  public synchronized void renew() throws IOException {
    if (lost != null) {
      throw new LostException(lost);
    }
    long nanos = System.nanoTime();
    long millis = System.currentTimeMillis();
    write(record + "\n" + ++renewals + "\n");
    long term = Long.parseLong(file.getName());
    for (FileStatus status : files.listStatus(file.getParent())) {
      if (Long.parseLong(status.getPath().getName()) > term) {
        byte[] newer = read(files, status.getPath());
        String text = newer == null ? "{}" : new String(newer, StandardCharsets.UTF_8);
        lost = text.lines().findFirst().orElse("{}");
        throw new LostException(lost);
      }
    }
    renewedNanos = nanos;
    renewedMillis = millis;
  }

  /** Ends the lease; {@code last} replaces the record. Subsequent commits fail. */
  public synchronized void release(String last) throws IOException {
    if (lost == null) {
      lost = "{}";
      write(last + "\n");
    }
  }

  private void write(String text) throws IOException {
    FSDataOutputStreamBuilder<?, ?> create = files.createFile(file).overwrite(true).recursive();
    create.opt("fs.s3a.create.performance", true); // otherwise s3a lists the path
    try (FSDataOutputStream stream = create.build()) {
      stream.write(text.getBytes(StandardCharsets.UTF_8));
    }
  }

  /**
   * Creates a file if it does not exist, by a conditional write on S3; false if it exists.
   *
   * <p>If the response to the request is lost, the request is retried and fails because the file
   * exists. Therefore, an existing file with the same content counts as created: contents must be
   * unique.
   */
  public static boolean create(Path path, byte[] content, Configuration conf) throws IOException {
    FileSystem files = path.getFileSystem(conf);
    FSDataOutputStreamBuilder<?, ?> create = files.createFile(path).overwrite(false).recursive();
    if ("s3a".equals(files.getScheme())) {
      create.must("fs.option.create.conditional.overwrite", true);
    }
    try (FSDataOutputStream stream = create.build()) {
      stream.write(content);
    } catch (AccessDeniedException e) {
      // The message of s3a does not contain the bucket.
      throw (IOException)
          new AccessDeniedException(path.toString(), null, e.getReason()).initCause(e.getCause());
    } catch (IOException e) {
      byte[] stored = read(files, path);
      if (stored == null) {
        throw e;
      }
      return Arrays.equals(stored, content);
    }
    return true;
  }

  /** Like {@link #create}, for content with a unique id; throws an exception if the file exists. */
  public static void commit(Path path, byte[] content, Configuration conf) throws IOException {
    check();
    if (!create(path, content, conf)) {
      throw new FileAlreadyExistsException(path.toString());
    }
  }

  /** The content of a file; {@code null} if the file does not exist. */
  public static String read(Path path, Configuration conf) throws IOException {
    byte[] content = read(path.getFileSystem(conf), path);
    return content == null ? null : new String(content, StandardCharsets.UTF_8);
  }

  private static byte[] read(FileSystem files, Path path) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try (FSDataInputStream stream = files.open(path)) {
        return stream.readAllBytes();
      } catch (FileNotFoundException e) {
        return null;
      } catch (IOException e) {
        // s3a fails to read a file that was overwritten after it was opened.
        if (attempt == ATTEMPTS) {
          throw e;
        }
      }
    }
  }
}
