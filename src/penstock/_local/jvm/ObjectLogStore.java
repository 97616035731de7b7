package penstock.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.S3AFileStatus;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import org.apache.hadoop.fs.store.audit.AuditSpan;

/**
 * A Delta log on an object store: a version is created only if it does not exist, and only while
 * this driver holds the lease of its storage.
 *
 * <p>{@code io.delta.storage.S3SingleDriverLogStore} checks whether the version exists and then
 * writes it: a concurrent commit of another driver is overwritten.
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
    // Only `_last_checkpoint` is overwritten; every writer may replace it.
    try (FSDataOutputStream stream = path.getFileSystem(conf).create(path, true)) {
      stream.write(content);
    }
  }

  /**
   * Lists the keys from the given one on. Every update of a snapshot lists the log, which has at
   * least two objects for each commit of the last month.
   */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    // VACUUM lists data folders with this method.
    if (!path.getParent().getName().equals("_delta_log")
        || !(path.getFileSystem(conf) instanceof S3AFileSystem files)) {
      return super.listFrom(path, conf);
    }
    Path folder = files.makeQualified(path.getParent());
    String prefix = folder.toUri().getPath().substring(1) + "/";
    String name = path.getName();
    S3ListRequest request = files.createListObjectsRequest(prefix, "/");
    // Version 1 of the S3 API has no `start-after`, and the keys of a directory bucket are not
    // sorted.
    if (request.isV1()
        || files.hasPathCapability(path, CommonPathCapabilities.DIRECTORY_LISTING_INCONSISTENT)) {
      return super.listFrom(path, conf);
    }
    String before = prefix + name.substring(0, name.length() - 1);
    List<FileStatus> listed = new ArrayList<>();
    try (AuditSpan span = files.createSpan("op_list_status", folder.toString(), null)) {
      RemoteIterator<S3AFileStatus> statuses =
          files
              .getListing()
              .createFileStatusListingIterator(
                  folder,
                  S3ListRequest.v2(request.getV2().toBuilder().startAfter(before).build()),
                  file -> file.getName().compareTo(name) >= 0,
                  new Listing.AcceptAllButSelfAndS3nDirs(folder),
                  span);
      while (statuses.hasNext()) {
        FileStatus status = statuses.next();
        if (status.isFile()) {
          listed.add(status);
        }
      }
    }
    if (listed.isEmpty() && !files.exists(folder)) {
      throw new FileNotFoundException("No such folder: " + folder);
    }
    return listed.iterator();
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
