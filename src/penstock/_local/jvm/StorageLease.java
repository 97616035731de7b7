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
 * number of the term. The newest term has the lease.
 *
 * <p>The holder changes its file at intervals, and then looks for a newer term. A driver that has
 * seen no change for the lifetime of the lease creates the next term. So the lease is certain to be
 * held for its lifetime after the last renewal; {@link #check} renews it after that.
 */
public final class StorageLease {

  /** Of a lease that another driver has taken over, whose record is the message, or released. */
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

  /** Holds a term whose file this driver has created. {@code record} is its first line. */
  public static StorageLease hold(
      String file, String record, long lifetimeMillis, Configuration conf) throws IOException {
    StorageLease lease = new StorageLease(new Path(file), record, lifetimeMillis, conf);
    lease.renew();
    held = lease;
    return lease;
  }

  /** After {@link #release}: other code of a borrowed session may commit. */
  public static void forget() {
    held = null;
  }

  /** Fails if this driver had a lease and another one has it now. Called before each commit. */
  public static void check() throws IOException {
    StorageLease lease = held;
    if (lease != null) {
      lease.ensure();
    }
  }

  private void ensure() throws IOException {
    // Two clocks: the first stops while the machine sleeps, the second may be set back.
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

  /** Proves that the holder is alive, and then that there is no newer term. */
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

  /** Ends the lease; {@code last} replaces the record. Commits fail from here on. */
  public synchronized void release(String last) throws IOException {
    if (lost == null) {
      lost = "{}";
      write(last + "\n");
    }
  }

  private void write(String text) throws IOException {
    FSDataOutputStreamBuilder<?, ?> create = files.createFile(file).overwrite(true).recursive();
    create.opt("fs.s3a.create.performance", true); // else s3a lists whether it is a folder
    try (FSDataOutputStream stream = create.build()) {
      stream.write(text.getBytes(StandardCharsets.UTF_8));
    }
  }

  /**
   * Creates a file that does not exist yet, by a conditional write on S3; false if it exists.
   *
   * <p>If the response to the request is lost, the request is repeated, and refused because of
   * itself. So a file with the same content is taken as created: contents must differ.
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
      // The message of s3a lacks the bucket.
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

  /** As {@link #create}, for content with an id of its own; an existing file is an exception. */
  public static void commit(Path path, byte[] content, Configuration conf) throws IOException {
    check();
    if (!create(path, content, conf)) {
      throw new FileAlreadyExistsException(path.toString());
    }
  }

  /** The content of a file, {@code null} if there is none. */
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
        // s3a refuses to read a file that was renewed since it was opened.
        if (attempt == ATTEMPTS) {
          throw e;
        }
      }
    }
  }
}
