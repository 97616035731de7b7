package penstock.formats;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.ExprUtils;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.util.BadRecordException;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Shared code of the record parsers: their method {@code evaluate} is called as a SQL function. */
final class RowFunction {
  private RowFunction() {}

  /** A column of the results; each task has a copy of the object. */
  static Column column(
      Object function, DataType result, boolean isDeterministic, Column... arguments) {
    List<Expression> values = Arrays.stream(arguments).map(ExpressionUtils::expression).toList();
    Expression target = Literal.create(function, new ObjectType(function.getClass()));
    return ExpressionUtils.column(
        new Invoke(
            target, "evaluate", result, seq(values), seq(List.of()), true, true, isDeterministic));
  }

  /** Columns in DDL, as {@code from_json} and {@code from_csv} read it. */
  static StructType schema(String ddl) {
    Literal struct = Literal.create("struct<" + ddl + ">", DataTypes.StringType);
    return (StructType) ExprUtils.evalTypeExpr(struct);
  }

  /** The columns of a malformed record that could be parsed; {@code null} if there are none. */
  static InternalRow partial(BadRecordException error) {
    InternalRow[] rows = error.partialResults().apply();
    return rows.length > 0 ? rows[0] : null;
  }

  static scala.collection.immutable.Map<String, String> map(Map<String, String> options) {
    return scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(options));
  }

  static <T> Seq<T> seq(List<T> items) {
    return CollectionConverters.asScala(items).toSeq();
  }
}
