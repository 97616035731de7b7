package penstock.storage;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.Constants;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;
import software.amazon.awssdk.services.s3.model.S3Object;

/**
 * Delta's log on an object store: a version is created only if it does not exist, and only while
 * this driver has the lease of its storage.
 *
 * <p>{@code io.delta.storage.S3SingleDriverLogStore} looks whether the version exists and then
 * writes it: a commit that another driver makes in between is overwritten.
 */
public final class ObjectLogStore extends HadoopFileSystemLogStore {

  private static final int PAGE = 1000; // the most that S3 returns

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

  /**
   * Asks for the keys from the wanted one on. Every update of a table's state lists its log, which has
   * at least two objects for each commit of the last month.
   */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
    Path folder = path.getParent();
    // VACUUM lists folders of data with this method, and needs the folders in them. In a directory
    // bucket, keys have no order. With client-side encryption, objects are longer than their files.
    if (!folder.getName().equals("_delta_log")
        || !(path.getFileSystem(conf) instanceof S3AFileSystem files)
        || files.getConf().getInt(Constants.LIST_VERSION, 2) != 2
        || files.isCSEEnabled()
        || files.hasPathCapability(folder, CommonPathCapabilities.DIRECTORY_LISTING_INCONSISTENT)) {
      return super.listFrom(path, conf);
    }
    String prefix = files.makeQualified(folder).toUri().getPath().substring(1) + "/";
    String name = path.getName();
    ListObjectsV2Request request =
        files
            .getRequestFactory()
            .newListObjectsV2RequestBuilder(prefix, "/", PAGE)
            .startAfter(prefix + name.substring(0, name.length() - 1))
            .build();
    S3Client client = files.getS3AInternals().getAmazonS3Client("listing of a log");
    List<FileStatus> found =
        files
            .createStoreContext()
            .getInvoker()
            .retry(
                "list",
                path.toString(),
                true,
                () ->
                    client.listObjectsV2Paginator(request).contents().stream()
                        .filter(object -> object.key().compareTo(prefix + name) >= 0)
                        .map(object -> status(files, folder, object))
                        .sorted()
                        .toList());
    if (found.isEmpty() && !files.exists(folder)) {
      throw new FileNotFoundException("No such folder: " + folder);
    }
    return found.iterator();
  }

  private static FileStatus status(S3AFileSystem files, Path folder, S3Object object) {
    String name = object.key().substring(object.key().lastIndexOf('/') + 1);
    Path path = files.makeQualified(new Path(folder, name));
    long block = files.getDefaultBlockSize(path);
    return new FileStatus(
        object.size(), false, 1, block, object.lastModified().toEpochMilli(), path);
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }
}
