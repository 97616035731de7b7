package penstock.formats;

import java.io.Serializable;
import java.util.List;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionDef;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionRef;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.With;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.functions;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * An expression that is needed for few rows, such as the search for values that do not fit the
 * columns.
 *
 * <p>Spark generates no code for functions with lambdas, nor for an operator that contains one:
 * every row would be copied before and after this operator. As a call of this object, the
 * expression is evaluated only where it is needed, and the operator is compiled together with
 * adjacent operators.
 */
public final class Interpreted implements Serializable {
  private static final long serialVersionUID = 1;

  private final Expression expression;
  private final String sql;
  private transient Evaluated last;

  private Interpreted(Expression expression, String sql) {
    this.expression = expression;
    this.sql = sql;
  }

  /** The text in a query plan. */
  @Override
  public String toString() {
    return "Interpreted(" + sql + ")";
  }

  /**
   * A column with the values of an expression.
   *
   * @param rows a DataFrame that has the columns used by the expression
   * @param sql a deterministic expression
   * @param columns the columns used by the expression
   */
  public static Column column(Dataset<Row> rows, String sql, List<String> columns) {
    Dataset<Row> value = rows.selectExpr(columns.toArray(String[]::new)).selectExpr(sql);
    LogicalPlan plan = ReplaceExpressions.apply(value.queryExecution().analyzed());
    Expression expression = inlined(plan.expressions().head());
    var input = package$.MODULE$.AttributeSeq(plan.children().head().output());
    Expression resolved = BindReferences.bindReference(expression, input, false);
    Interpreted bound = new Interpreted(resolved, sql);
    Column[] arguments = columns.stream().map(functions::col).toArray(Column[]::new);
    Column row = functions.struct(arguments);
    return RowFunction.column(bound, expression.dataType(), true, row);
  }

  /** Inlines common expressions: Spark's rule for them would add operators to the query. */
  private static Expression inlined(Expression expression) {
    Expression node = withChildren(expression, Interpreted::inlined);
    return node instanceof With with ? withValues(with.child(), with.defs()) : node;
  }

  private static Expression withValues(Expression node, Seq<CommonExpressionDef> values) {
    if (node instanceof CommonExpressionRef use) {
      for (CommonExpressionDef value : CollectionConverters.asJava(values)) {
        if (value.id().equals(use.id())) {
          return value.child();
        }
      }
    }
    return withChildren(node, child -> withValues(child, values));
  }

  private static Expression withChildren(Expression node, UnaryOperator<Expression> change) {
    List<Expression> children = CollectionConverters.asJava(node.children());
    return node.withNewChildren(RowFunction.seq(children.stream().map(change).toList()));
  }

  /**
   * The value for one row. The last value is cached: for example, all rows of a file have one path.
   */
  public Object evaluate(InternalRow row) {
    Evaluated known = last;
    if (known == null || !known.row.equals(row)) {
      InternalRow copy = row.copy();
      known = new Evaluated(copy, expression.eval(copy));
      last = known;
    }
    return known.value;
  }

  private record Evaluated(InternalRow row, Object value) {}
}
