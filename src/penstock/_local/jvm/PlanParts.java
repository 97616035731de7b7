package penstock.delta;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Predicate;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Abs;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.ArrayRepeat;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Explode;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.Cross$;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.streaming.SparkDataStream;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.types.VariantType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.math.BigInt;

/** Builds and decomposes Spark's logical plans. */
final class PlanParts {
  private static final int MOST_LOCAL = 1_000;
  // Spark warns about larger tasks, and rejects tasks above `spark.rpc.message.maxSize`.
  private static final long MOST_TASK_BYTES = 900L << 10;

  private PlanParts() {}

  static <T> List<T> list(scala.collection.Seq<T> items) {
    return CollectionConverters.asJava(items);
  }

  static <T> Seq<T> seq(List<? extends T> items) {
    return CollectionConverters.asScala(new ArrayList<T>(items)).toSeq();
  }

  // -- expressions --------------------------------------------------------------------------

  /** Whether equal values of a type have equal bytes. */
  static boolean isExact(DataType type) {
    return type instanceof LongType
        || type instanceof IntegerType
        || type instanceof ShortType
        || type instanceof ByteType
        || type instanceof BooleanType
        || type instanceof DateType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType
        || type instanceof DecimalType
        || type instanceof BinaryType
        || type.equals(DataTypes.StringType)
        || type instanceof StructType struct
            && Arrays.stream(struct.fields()).allMatch(field -> isExact(field.dataType()));
  }

  /** Whether values of a type that {@code GROUP BY} treats as equal are identical. */
  static boolean canGroup(DataType type) {
    return !type.existsRecursively(
        part ->
            part instanceof MapType
                || part instanceof VariantType
                || part instanceof StringType && !part.equals(DataTypes.StringType));
  }

  static boolean has(Expression expression, Predicate<Expression> predicate) {
    return predicate.test(expression)
        || list(expression.children()).stream().anyMatch(child -> has(child, predicate));
  }

  static List<Attribute> references(Expression expression) {
    return new ArrayList<>(list(expression.references().toSeq()));
  }

  static boolean isOf(Expression expression, LogicalPlan plan) {
    return expression.references().subsetOf(plan.outputSet());
  }

  static Expression unaliased(Expression expression) {
    return expression instanceof Alias alias ? alias.child() : expression;
  }

  /** The values of columns, by their expression ids. */
  static Map<ExprId, Expression> values(scala.collection.Seq<NamedExpression> columns) {
    Map<ExprId, Expression> values = new HashMap<>();
    for (NamedExpression column : list(columns)) {
      values.put(column.exprId(), unaliased((Expression) column));
    }
    return values;
  }

  /** An expression with some attributes replaced. */
  static Expression replaced(Expression expression, Map<ExprId, Expression> by) {
    if (expression instanceof Attribute attribute) {
      return by.getOrDefault(attribute.exprId(), attribute);
    }
    List<Expression> before = list(expression.children());
    List<Expression> after = before.stream().map(child -> replaced(child, by)).toList();
    boolean isSame = true;
    for (int child = 0; child < after.size(); child++) {
      isSame &= after.get(child) == before.get(child);
    }
    return isSame ? expression : expression.withNewChildren(seq(after));
  }

  static List<Expression> replaced(List<Expression> expressions, Map<ExprId, Expression> by) {
    return expressions.stream().map(expression -> replaced(expression, by)).toList();
  }

  static Expression equal(
      List<? extends Expression> left, List<? extends Expression> right, boolean nullSafe) {
    Expression condition = null;
    for (int key = 0; key < left.size(); key++) {
      Expression same =
          nullSafe
              ? new EqualNullSafe(left.get(key), right.get(key))
              : new EqualTo(left.get(key), right.get(key));
      condition = condition == null ? same : new And(condition, same);
    }
    return condition;
  }

  // -- columns ------------------------------------------------------------------------------

  static List<Attribute> output(LogicalPlan plan) {
    return list(plan.output());
  }

  /**
   * The column of {@code below} that a column of the plan returns unchanged; null if there is none.
   */
  static ExprId origin(LogicalPlan plan, LogicalPlan below, ExprId column) {
    for (LogicalPlan node = plan; node != below; node = list(node.children()).get(0)) {
      if (node instanceof Project project) {
        Expression value = values(project.projectList()).get(column);
        if (!(value instanceof Attribute attribute)) {
          return null;
        }
        column = attribute.exprId();
      } else if (node instanceof Aggregate) {
        return null;
      }
    }
    return column;
  }

  private static NamedExpression alias(Expression expression, String name, ExprId id) {
    return new Alias(expression, name, id, seq(List.of()), Option.empty(), seq(List.of()));
  }

  /** The values of expressions as columns with new expression ids. */
  static LogicalPlan project(List<? extends Expression> expressions, LogicalPlan plan) {
    return new Project(named(expressions), plan);
  }

  /** Expressions as columns {@code k0}, {@code k1} and so on, with new expression ids. */
  static Seq<NamedExpression> named(List<? extends Expression> expressions) {
    List<NamedExpression> columns = new ArrayList<>();
    for (Expression expression : expressions) {
      columns.add(alias(expression, "k" + columns.size(), NamedExpression.newExprId()));
    }
    return seq(columns);
  }

  /** Some columns of a plan, by position, with new expression ids. */
  static LogicalPlan columns(LogicalPlan plan, List<Integer> positions) {
    return project(positions.stream().map(output(plan)::get).toList(), plan);
  }

  /** A plan with an additional last column. */
  static LogicalPlan append(LogicalPlan plan, Expression value) {
    List<NamedExpression> columns = new ArrayList<>(output(plan));
    columns.add(alias(value, "sign", NamedExpression.newExprId()));
    return new Project(seq(columns), plan);
  }

  static LogicalPlan fresh(LogicalPlan plan) {
    return project(output(plan), plan);
  }

  /** The columns of a plan with the names and expression ids of other columns. */
  static LogicalPlan as(LogicalPlan plan, List<Attribute> columns) {
    List<NamedExpression> renamed = new ArrayList<>();
    List<Attribute> output = output(plan);
    for (int column = 0; column < columns.size(); column++) {
      Attribute name = columns.get(column);
      renamed.add(alias(output.get(column), name.name(), name.exprId()));
    }
    return new Project(seq(renamed), plan);
  }

  /** Rows on the driver as a query, which needs no job for few rows. */
  static Dataset<Row> local(
      SparkSession session, StructType columns, Collection<? extends InternalRow> rows) {
    List<Attribute> attributes = new ArrayList<>(list(DataTypeUtils.toAttributes(columns)));
    // Spark's rules visit each row of a local relation as if it contained expressions.
    LogicalPlan plan =
        rows.size() > MOST_LOCAL
            ? packed(
                session,
                attributes,
                List.of(PackedRows.of(columns.size(), rows)),
                false,
                Option.empty())
            : new LocalRelation(
                seq(attributes),
                CollectionConverters.asScala(new ArrayList<InternalRow>(rows)).toSeq(),
                false,
                Option.empty());
    return Dataset$.MODULE$.ofRows(session, plan);
  }

  /** A plan that reads rows from the driver in one task. */
  static LogicalPlan packed(
      SparkSession session,
      List<Attribute> columns,
      List<PackedRows> rows,
      boolean isStreaming,
      Option<SparkDataStream> stream) {
    long bytes = rows.stream().mapToLong(PackedRows::bytes).sum();
    int count = rows.stream().mapToInt(PackedRows::count).sum();
    JavaSparkContext context = new JavaSparkContext(session.sparkContext());
    RDD<InternalRow> task =
        bytes > MOST_TASK_BYTES
            ? context
                .parallelize(rows.stream().map(context::broadcast).toList(), 1)
                .flatMap(sent -> sent.value().iterator())
                .rdd()
            : new PackedRdd(context.parallelize(rows, 1).rdd());
    Statistics statistics =
        new Statistics(
            BigInt.apply(Math.max(1, bytes)),
            Option.apply(BigInt.apply(count)),
            AttributeMap$.MODULE$.empty(),
            false);
    return new LogicalRDD(
        seq(columns),
        task,
        new UnknownPartitioning(1),
        seq(List.of()),
        isStreaming,
        stream,
        session,
        Option.apply(statistics),
        Option.empty());
  }

  /** The rows of a query, at most {@code most} of each task. */
  static Dataset<Row> limited(Dataset<Row> query, int most) {
    // Spark numbers the variables of limits, so the code of each query would be compiled again.
    JavaRDD<InternalRow> tasks = query.queryExecution().toRdd().toJavaRDD();
    JavaRDD<InternalRow> first =
        tasks.mapPartitions(
            task -> CollectionConverters.asJava(CollectionConverters.asScala(task).take(most)));
    return query.sparkSession().internalCreateDataFrame(first.rdd(), query.schema(), false);
  }

  // -- rows ---------------------------------------------------------------------------------

  /** Repeats each row by the absolute value of its last column, and adds a column. */
  static LogicalPlan copies(LogicalPlan plan) {
    List<Attribute> columns = output(plan);
    Expression copies = new Abs(columns.get(columns.size() - 1), false);
    Expression times = new Cast(copies, DataTypes.IntegerType, Option.empty());
    Expression each = new ArrayRepeat(Literal.create(0, DataTypes.IntegerType), times);
    StructField copy = DataTypes.createStructField("copy", DataTypes.IntegerType, false);
    Seq<Attribute> added = seq(List.of(DataTypeUtils.toAttribute(copy)));
    return new Generate(new Explode(each), seq(List.of()), false, Option.empty(), added, plan);
  }

  /** The union of all plans that are not null; null if all plans are null. */
  static LogicalPlan union(List<LogicalPlan> plans) {
    List<LogicalPlan> present = plans.stream().filter(Objects::nonNull).toList();
    if (present.size() < 2) {
      return present.isEmpty() ? null : present.get(0);
    }
    return new Union(seq(present), false, false);
  }

  static LogicalPlan union(LogicalPlan... plans) {
    return union(Arrays.asList(plans));
  }

  static boolean isInner(JoinType type) {
    return type == Inner$.MODULE$ || type == Cross$.MODULE$;
  }

  static Join join(LogicalPlan left, LogicalPlan right, JoinType type, Expression condition) {
    return join(left, right, type, Option.apply(condition));
  }

  static Join join(
      LogicalPlan left, LogicalPlan right, JoinType type, Option<Expression> condition) {
    return new Join(left, right, type, condition, JoinHint.NONE());
  }

  /** The rows of a plan for which the expressions have the values of a row of {@code other}. */
  static LogicalPlan semi(
      LogicalPlan plan,
      List<? extends Expression> expressions,
      LogicalPlan other,
      boolean nullSafe) {
    LogicalPlan keys = fresh(other);
    Expression condition = equal(expressions, output(keys), nullSafe);
    return join(plan, keys, LeftSemi$.MODULE$, condition);
  }
}
