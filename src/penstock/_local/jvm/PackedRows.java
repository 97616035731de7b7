package penstock.delta;

import com.esotericsoftware.kryo.DefaultSerializer;
import com.esotericsoftware.kryo.serializers.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;

/** Rows as bytes, because serializing them as single objects is slow. */
@DefaultSerializer(JavaSerializer.class)
final class PackedRows implements Iterable<InternalRow>, Serializable {
  private static final long serialVersionUID = 1L;
  private static final int MOST_CHUNK = 1 << 20;
  private static final int HEAD = Long.BYTES;

  private final int columns;
  // Each row is preceded by its size + 1; 0 ends a chunk.
  private final List<byte[]> chunks = new ArrayList<>();
  private int end;
  private long bytes;
  private int count;

  /** @param columns the number of columns of each row */
  PackedRows(int columns) {
    this.columns = columns;
  }

  static PackedRows of(int columns, Iterable<? extends InternalRow> rows) {
    PackedRows packed = new PackedRows(columns);
    rows.forEach(row -> packed.add((UnsafeRow) row));
    return packed;
  }

  /** Adds a copy of a row. */
  void add(UnsafeRow row) {
    int size = row.getSizeInBytes();
    byte[] chunk = chunks.isEmpty() ? new byte[0] : chunks.get(chunks.size() - 1);
    if (end + HEAD + size > chunk.length) {
      int length = Math.min(2 * chunk.length + 256, MOST_CHUNK);
      chunk = new byte[Math.max(HEAD + size, length)];
      chunks.add(chunk);
      end = 0;
    }
    Platform.putInt(chunk, Platform.BYTE_ARRAY_OFFSET + end, size + 1);
    row.writeToMemory(chunk, Platform.BYTE_ARRAY_OFFSET + end + HEAD);
    end += HEAD + size;
    bytes += size;
    count++;
  }

  int count() {
    return count;
  }

  /** The size of all rows in bytes. */
  long bytes() {
    return bytes;
  }

  @Override
  public Iterator<InternalRow> iterator() {
    return new Iterator<>() {
      private int left = count;
      private int chunk;
      private int at;

      @Override
      public boolean hasNext() {
        return left > 0;
      }

      @Override
      public InternalRow next() {
        if (left == 0) {
          throw new NoSuchElementException();
        }
        left--;
        byte[] all = chunks.get(chunk);
        if (at == all.length || head(all) == 0) {
          all = chunks.get(++chunk);
          at = 0;
        }
        UnsafeRow row = new UnsafeRow(columns);
        row.pointTo(all, Platform.BYTE_ARRAY_OFFSET + at + HEAD, head(all) - 1);
        at += HEAD + row.getSizeInBytes();
        return row;
      }

      private int head(byte[] all) {
        return Platform.getInt(all, Platform.BYTE_ARRAY_OFFSET + at);
      }
    };
  }
}
