package penstock.delta;

import com.google.common.collect.Iterators;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * The rows of an RDD of {@link PackedRows}.
 *
 * <p>With {@code flatMap}, Spark would parse the class file of the lambda for each micro-batch.
 */
final class PackedRdd extends RDD<InternalRow> {
  private static final long serialVersionUID = 1L;

  PackedRdd(RDD<PackedRows> packed) {
    super(packed, tag(InternalRow.class));
  }

  private static <T> ClassTag<T> tag(Class<T> type) {
    return ClassTag$.MODULE$.apply(type);
  }

  @Override
  public Partition[] getPartitions() {
    return firstParent(tag(PackedRows.class)).partitions();
  }

  @Override
  public Iterator<InternalRow> compute(Partition part, TaskContext context) {
    Iterator<PackedRows> packed = firstParent(tag(PackedRows.class)).iterator(part, context);
    return CollectionConverters.asScala(
        Iterators.concat(
            Iterators.transform(CollectionConverters.asJava(packed), PackedRows::iterator)));
  }
}
