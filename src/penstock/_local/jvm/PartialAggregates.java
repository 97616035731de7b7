package penstock.delta;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.analysis.UpdateAttributeNullability;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import scala.Option;

/**
 * An aggregate query whose aggregates of old rows and of new rows can be merged.
 *
 * <p>Sums of floating-point numbers are not merged: their value depends on the order of the rows.
 */
final class PartialAggregates {
  // Sums have ten more digits, up to 38, and become NULL on overflow. Differences of sums have one
  // more digit, for which Spark would drop the last decimal place.
  private static final int MOST_DIGITS = 27;

  final List<Attribute> keys = new ArrayList<>();
  final List<String> merges = new ArrayList<>();

  /** The column with the number of rows of a group; null if there is none. */
  Attribute rowCount;

  private final LogicalPlan plan;
  private final Aggregate aggregate;

  private PartialAggregates(LogicalPlan plan, Aggregate aggregate) {
    this.plan = plan;
    this.aggregate = aggregate;
  }

  /** The partial aggregates of a query; null if they cannot be merged. */
  static PartialAggregates of(LogicalPlan plan) {
    LogicalPlan node = plan;
    while (NormalPlan.isOrder(node) || node instanceof Project) {
      node = PlanParts.list(node.children()).get(0);
    }
    if (!(node instanceof Aggregate aggregate)) {
      return null;
    }
    PartialAggregates partial = new PartialAggregates(plan, aggregate);
    return partial.addColumns() ? partial : null;
  }

  private boolean addColumns() {
    Map<ExprId, Expression> values = PlanParts.values(aggregate.aggregateExpressions());
    List<Expression> grouping = new ArrayList<>(PlanParts.list(aggregate.groupingExpressions()));
    List<Expression> missing = new ArrayList<>(grouping);
    for (Attribute column : PlanParts.output(plan)) {
      ExprId source = PlanParts.origin(plan, aggregate, column.exprId());
      Expression value = source == null ? null : values.get(source);
      if (value == null) {
        return false;
      }
      String merge = value instanceof AggregateExpression call ? merge(call) : null;
      if (merge != null) {
        merges.add(merge);
        rowCount = isRowCount((AggregateExpression) value) ? column : rowCount;
      } else if (grouping.stream().anyMatch(value::semanticEquals)) {
        if (!PlanParts.isExact(value.dataType())) {
          return false;
        }
        merges.add("");
        keys.add(column);
        missing.removeIf(value::semanticEquals);
      } else {
        return false;
      }
    }
    return missing.isEmpty();
  }

  private static String merge(AggregateExpression call) {
    AggregateFunction function = call.aggregateFunction();
    if (call.isDistinct()) {
      return null;
    }
    return switch (function.getClass().getSimpleName()) {
      case "Count", "CountIf" -> "sum";
      case "Sum" -> function.prettyName().equals("sum") && isExactSum(function) ? "sum" : null;
      case "Min", "BoolAnd" -> hasOrder(function.dataType()) ? "min" : null;
      case "Max", "BoolOr" -> hasOrder(function.dataType()) ? "max" : null;
      default -> null;
    };
  }

  private static boolean isRowCount(AggregateExpression call) {
    return call.aggregateFunction() instanceof Count count
        && call.filter().isEmpty()
        && PlanParts.list(count.children()).stream().noneMatch(Expression::nullable);
  }

  private static boolean isExactSum(AggregateFunction sum) {
    DataType type = PlanParts.list(sum.children()).get(0).dataType();
    return type instanceof LongType
        || type instanceof IntegerType
        || type instanceof ShortType
        || type instanceof ByteType
        || type instanceof DecimalType decimal && decimal.precision() <= MOST_DIGITS;
  }

  private static boolean hasOrder(DataType type) {
    return PlanParts.isExact(type) || type instanceof DoubleType || type instanceof FloatType;
  }

  /** The aggregates of only the new rows. */
  LogicalPlan over(LinearChanges appended) {
    LogicalPlan rows = appended.of(aggregate.child());
    return above(plan, aggregate.withNewChildren(PlanParts.seq(List.of(rows))));
  }

  /**
   * Whether the aggregates of removed rows can be subtracted from those of their groups. The number
   * of rows of a group must be known, and the sum of the remaining rows must not be NULL.
   */
  boolean canSubtract(QueryChanges query) {
    // Without groups, sums over no rows are NULL.
    boolean onlySums = merges.stream().allMatch(m -> m.isEmpty() || m.equals("sum"));
    if (rowCount == null || keys.isEmpty() || !onlySums) {
      return false;
    }
    LogicalPlan known = UpdateAttributeNullability.apply(query.withKnownNulls(aggregate));
    return PlanParts.values(((Aggregate) known).aggregateExpressions()).values().stream()
        .noneMatch(PartialAggregates::isNullableSum);
  }

  private static boolean isNullableSum(Expression value) {
    return value instanceof AggregateExpression call
        && call.aggregateFunction() instanceof Sum sum
        && (sum.child().nullable() || call.filter().isDefined());
  }

  /** The aggregates of the added rows minus those of the removed rows. */
  LogicalPlan difference(SparkSession session, LinearChanges changes) {
    LogicalPlan rows = PlanParts.copies(changes.of(aggregate.child()));
    List<Attribute> output = PlanParts.output(rows);
    Expression copies = output.get(aggregate.child().output().size());
    Literal none = Literal.create(0L, DataTypes.LongType);
    List<Expression> values = new ArrayList<>();
    for (NamedExpression column : PlanParts.list(aggregate.aggregateExpressions())) {
      Expression value = PlanParts.unaliased((Expression) column);
      boolean isCall = value instanceof AggregateExpression;
      values.add(isCall ? where(value, new GreaterThan(copies, none)) : value);
      values.add(isCall ? where(value, new LessThan(copies, none)) : value);
    }
    LogicalPlan both =
        aggregate.copy(
            aggregate.groupingExpressions(), PlanParts.named(values), rows, aggregate.hint());
    Dataset<Row> sums = Dataset$.MODULE$.ofRows(session, both);
    Column[] columns = new Column[values.size() / 2];
    for (int column = 0; column < columns.length; column++) {
      Column plus = functions.col("k" + 2 * column);
      Column minus = functions.col("k" + (2 * column + 1));
      Column zero = functions.lit(0);
      columns[column] =
          values.get(2 * column) instanceof AggregateExpression call
              ? functions
                  .coalesce(plus, zero)
                  .minus(functions.coalesce(minus, zero))
                  .cast(call.dataType())
              : plus;
    }
    LogicalPlan difference = sums.select(columns).queryExecution().analyzed();
    return above(plan, PlanParts.as(difference, PlanParts.output(aggregate)));
  }

  private static Expression where(Expression value, Expression condition) {
    AggregateExpression call = (AggregateExpression) value;
    Expression filter =
        call.filter().isDefined() ? new And(call.filter().get(), condition) : condition;
    // Two calls of the same function object would share its aggregation buffer.
    return call.copy(
        (AggregateFunction) call.aggregateFunction().clone(),
        call.mode(),
        call.isDistinct(),
        Option.apply(filter),
        NamedExpression.newExprId());
  }

  private LogicalPlan above(LogicalPlan node, LogicalPlan groups) {
    if (node == aggregate) {
      return groups;
    }
    LogicalPlan child = PlanParts.list(node.children()).get(0);
    return node.withNewChildren(PlanParts.seq(List.of(above(child, groups))));
  }
}
