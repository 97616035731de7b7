package penstock.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.BufferedWriter;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A Delta log on a local disk: a version is published by a hard link, which fails if it exists.
 *
 * <p>{@code io.delta.storage.LocalLogStore} checks whether the version exists and then renames the
 * new file to it. This is safe only between the threads of one process: a concurrent commit of
 * another process is overwritten. Creating a link is atomic, as the Delta protocol requires of a
 * commit. If it fails, Delta checks the other commit for conflicts and retries with the next
 * version.
 */
public final class LinkLogStore extends HadoopFileSystemLogStore {

  private static final Pattern LAST_CHECKPOINT = Pattern.compile("\"version\"\\s*:\\s*(\\d+)");
  private static final Pattern OTHER_CHECKPOINT = Pattern.compile("\"(parts|v2Checkpoint)\"");

  /** The suffixes of the files of a version, in the order of their names. */
  private static final List<String> SUFFIXES = List.of(".checkpoint.parquet", ".crc", ".json");

  public LinkLogStore(Configuration initHadoopConf) {
    super(initHadoopConf);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    if (overwrite) {
      // Only `_last_checkpoint` is overwritten; every writer may replace it.
      writeWithRename(path, actions, true, conf);
      return;
    }
    java.nio.file.Path target = Paths.get(path.toUri().getPath());
    if (Files.exists(target)) {
      throw new FileAlreadyExistsException(path.toString());
    }
    java.nio.file.Path draft = Paths.get(createTempPath(path).toUri().getPath());
    try {
      write(draft, actions);
      // A Hadoop checksum file that remains of a deleted file would make this file unreadable.
      Files.deleteIfExists(target.resolveSibling("." + target.getFileName() + ".crc"));
      Files.createLink(target, draft);
    } catch (FileAlreadyExistsException e) {
      throw new FileAlreadyExistsException(path.toString());
    } catch (UnsupportedOperationException e) {
      throw noLinks(path, e);
    } catch (FileSystemException e) {
      // "Operation not permitted" or "Operation not supported", depending on the file system.
      boolean isRefused = e.getReason() != null && e.getReason().startsWith("Operation not");
      throw isRefused ? noLinks(path, e) : e;
    } finally {
      Files.deleteIfExists(draft);
    }
  }

  /**
   * Gets the status of only the files from the given name on. Every update of a snapshot lists the
   * log, and Delta gets the status of all files in the folder: at least one for each commit of the
   * last month. From the last checkpoint on, the folder is not listed at all.
   */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    FileSystem files = path.getFileSystem(conf);
    Path folder = files.makeQualified(path.getParent());
    File local = new File(folder.toUri().getPath());
    List<String> names = namesSinceCheckpoint(local, path.getName());
    if (names == null) {
      String[] all = local.list();
      if (all == null) {
        throw new FileNotFoundException("No such folder: " + folder);
      }
      Arrays.sort(all);
      names = Arrays.asList(all);
    }
    List<FileStatus> found = new ArrayList<>();
    for (String name : names) {
      if (name.compareTo(path.getName()) >= 0) {
        try {
          found.add(files.getFileStatus(new Path(folder, name)));
        } catch (FileNotFoundException e) {
          // Deleted concurrently.
        }
      }
    }
    return found.iterator();
  }

  /**
   * The files of a version and of later versions, found by probing their names: versions have no
   * gaps. {@code null} if the version is before the last checkpoint, where files may be missing, or
   * if that checkpoint has parts or is a V2 checkpoint.
   */
  private static List<String> namesSinceCheckpoint(File folder, String from) throws IOException {
    if (!from.matches("\\d{20}\\..*")) {
      return null;
    }
    Matcher checkpoint;
    try {
      checkpoint =
          LAST_CHECKPOINT.matcher(
              Files.readString(
                  folder.toPath().resolve("_last_checkpoint"), StandardCharsets.UTF_8));
    } catch (NoSuchFileException e) {
      return null;
    }
    long version = Long.parseLong(from.substring(0, 20));
    if (!checkpoint.find() || version < Long.parseLong(checkpoint.group(1))) {
      return null;
    }
    if (checkpoint.reset().usePattern(OTHER_CHECKPOINT).find()) {
      return null;
    }
    boolean isNext = version > 0 && new File(folder, commit(version - 1)).exists();
    if (!isNext && !new File(folder, commit(version)).exists()) {
      return null;
    }
    List<String> names = new ArrayList<>();
    for (boolean exists = true; exists; version++) {
      String prefix = String.format("%020d", version);
      exists = new File(folder, commit(version)).exists();
      for (String suffix : SUFFIXES) {
        if (new File(folder, prefix + suffix).exists()) {
          names.add(prefix + suffix);
        }
      }
    }
    return names;
  }

  /** The file name of a commit. */
  static String commit(long version) {
    return String.format("%020d.json", version);
  }

  private static void write(java.nio.file.Path draft, Iterator<String> actions)
      throws IOException {
    try (BufferedWriter writer =
        Files.newBufferedWriter(draft, StandardCharsets.UTF_8, StandardOpenOption.CREATE_NEW)) {
      while (actions.hasNext()) {
        writer.write(actions.next());
        writer.write('\n');
      }
    }
  }

  private static IOException noLinks(Path path, Exception cause) {
    return new IOException(
        "could not link " + path + " (" + cause + "): a Delta log on a local disk needs a file"
            + " system with hard links",
        cause);
  }

  /** Checkpoints are written in place: a reader may see a partial checkpoint. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return true;
  }
}
