package penstock.delta;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BinaryArithmetic;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.CommutativeExpression;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.EvalMode;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.FrameLessOffsetWindowFunction;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.MultiCommutativeOp;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.util.package$;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.runtime.AbstractPartialFunction;

/** The text of a query, which is the same in every process. */
public final class PlanText {
  private static final Pattern IDENTITY = Pattern.compile("@[0-9a-f]{1,8}\\b");

  /** Strings that `generated_names.py` and `plans.py` treat as a generated name or a version. */
  private static final Pattern GENERATED =
      Pattern.compile(
          "@(?=[0-9a-f])|version=(?=\\d)|CTERelation(Def|Ref) (?=\\d)|Watermark (?=[0-9a-f])");

  private PlanText() {}

  /**
   * The text of a canonicalized plan, with all fields. Spark orders the operands of {@code AND},
   * {@code =} and other operators by their hash codes, and the hash codes of classes and other Java
   * objects differ between processes. This text has the operands ordered by their text.
   */
  public static String canonical(LogicalPlan plan) {
    SQLConf conf = SQLConf.get().clone();
    conf.setConfString("spark.sql.debug.maxToStringFields", String.valueOf(Integer.MAX_VALUE));
    return SQLConf.withExistingConf(conf, () -> ordered(pruned(plan).canonicalized()).toString());
  }

  /**
   * The plan without unused trailing columns of its tables, so that a new column does not change
   * the text. Other unused columns are kept, because canonicalized plans have positions instead of
   * names.
   */
  private static LogicalPlan pruned(LogicalPlan plan) {
    Set<ExprId> used = new HashSet<>();
    List<LogicalPlan> parts = new ArrayList<>(PlanParts.list(plan.subqueriesAll()));
    parts.add(plan);
    for (LogicalPlan part : parts) {
      PlanParts.output(part).forEach(column -> used.add(column.exprId()));
      addUsed(part, used);
    }
    return plan.transformWithSubqueries(
        new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
          @Override
          public boolean isDefinedAt(LogicalPlan node) {
            return node instanceof LogicalRelation;
          }

          @Override
          public LogicalPlan apply(LogicalPlan node) {
            LogicalRelation leaf = (LogicalRelation) node;
            List<AttributeReference> columns = PlanParts.list(leaf.output());
            int size = columns.size();
            while (size > 0 && !used.contains(columns.get(size - 1).exprId())) {
              size--;
            }
            return leaf.copy(
                leaf.relation(),
                PlanParts.seq(columns.subList(0, size)),
                leaf.catalogTable(),
                leaf.isStreaming(),
                leaf.stream());
          }
        });
  }

  private static void addUsed(LogicalPlan node, Set<ExprId> used) {
    boolean names =
        node instanceof Project
            || node instanceof Filter
            || node instanceof Join
            || node instanceof Aggregate
            || node instanceof Window
            || node instanceof Sort
            || node instanceof SubqueryAlias
            || node instanceof View;
    for (LogicalPlan child : PlanParts.list(node.children())) {
      if (names) {
        PlanParts.list(node.references().toSeq()).forEach(column -> used.add(column.exprId()));
      } else { // The node may depend on all columns, as DISTINCT does.
        PlanParts.output(child).forEach(column -> used.add(column.exprId()));
      }
      addUsed(child, used);
    }
  }

  /**
   * Whether each evaluation has the same result; Penstock's file parsers count as deterministic.
   */
  public static boolean isDeterministic(LogicalPlan plan) {
    return plan.deterministic()
        || PlanParts.list(plan.expressions()).stream().allMatch(PlanText::isDeterministic)
            && PlanParts.list(plan.children()).stream().allMatch(PlanText::isDeterministic);
  }

  private static boolean isDeterministic(Expression expression) {
    if (expression.deterministic() || isParser(expression)) {
      return true;
    }
    List<Expression> parts = PlanParts.list(expression.children());
    if (expression instanceof PlanExpression<?> query && query.plan() instanceof LogicalPlan plan) {
      return isDeterministic(plan) && parts.stream().allMatch(PlanText::isDeterministic);
    }
    return parts.stream().anyMatch(part -> !part.deterministic())
        && parts.stream().allMatch(PlanText::isDeterministic);
  }

  /**
   * The implicit casts of strings to numbers in ANSI mode, as "part in expression", separated by
   * NUL.
   */
  public static String textNumbers(LogicalPlan plan) {
    Set<String> lines = new LinkedHashSet<>();
    addTextNumbers(plan, lines);
    return String.join("\0", lines);
  }

  private static void addTextNumbers(LogicalPlan plan, Set<String> lines) {
    for (Expression named : PlanParts.list(plan.expressions())) {
      Expression expression = named instanceof Alias alias ? alias.child() : named;
      addTextNumbers(expression, expression, lines);
    }
    PlanParts.list(plan.children()).forEach(child -> addTextNumbers(child, lines));
  }

  private static void addTextNumbers(Expression part, Expression whole, Set<String> lines) {
    if (part instanceof Cast cast
        && cast.getTagValue(Cast.USER_SPECIFIED_CAST()).isEmpty()
        && cast.evalMode().equals(EvalMode.ANSI())
        && cast.child().dataType() instanceof StringType
        && cast.dataType() instanceof NumericType) {
      lines.add(cast.child().sql() + " in " + package$.MODULE$.toPrettySQL(whole, false));
    }
    PlanParts.list(part.children()).forEach(child -> addTextNumbers(child, whole, lines));
  }

  private static boolean isParser(Expression expression) {
    return expression instanceof Invoke call
        && call.targetObject().dataType() instanceof ObjectType type
        && type.cls().getName().startsWith("penstock.formats.");
  }

  private static LogicalPlan ordered(LogicalPlan plan) {
    if (plan instanceof LocalRelation rows && !rows.data().isEmpty()) {
      // The text of a local relation does not contain its values.
      return new Filter(Literal.create(digest(rows), DataTypes.StringType), rows);
    }
    LogicalPlan changed = plan.mapExpressions(PlanText::ordered);
    return changed.mapChildren(PlanText::ordered);
  }

  private static String digest(LocalRelation rows) {
    StructType schema = rows.schema();
    UnsafeProjection values =
        BatchKeys.projection(schema, IntStream.range(0, schema.size()).toArray());
    try {
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      for (InternalRow row : PlanParts.list(rows.data())) {
        digest.update(values.apply(row).getBytes());
      }
      return HexFormat.of().formatHex(digest.digest());
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException(error);
    }
  }

  private static Expression ordered(Expression expression) {
    if (expression instanceof Literal literal && literal.value() instanceof UTF8String value) {
      String masked = GENERATED.matcher(value.toString()).replaceAll("$0\0");
      return Literal.create(UTF8String.fromString(masked), literal.dataType());
    }
    Expression node = expression.mapChildren(PlanText::ordered);
    if (node instanceof PlanExpression<?> query && query.plan() instanceof LogicalPlan plan) {
      @SuppressWarnings("unchecked")
      PlanExpression<LogicalPlan> typed = (PlanExpression<LogicalPlan>) query;
      return typed.withNewPlan(ordered(plan));
    }
    if (node instanceof FrameLessOffsetWindowFunction function && function.ignoreNulls()) {
      return Literal.create(node + " IGNORE NULLS", DataTypes.StringType);
    }
    List<Expression> parts = new ArrayList<>(PlanParts.list(node.children()));
    if (node instanceof BinaryArithmetic operator && operator.evalMode().equals(EvalMode.TRY())) {
      // `try_add(a, b)` has the same text as `a + b`.
      parts.replaceAll(part -> Literal.create("try " + part, DataTypes.StringType));
      node = node.withNewChildren(PlanParts.seq(parts));
    }
    if (node instanceof CommutativeExpression
        || node instanceof MultiCommutativeOp
        || node instanceof EqualTo
        || node instanceof EqualNullSafe) {
      parts.sort(Comparator.comparing(PlanText::text));
      return node.withNewChildren(PlanParts.seq(parts));
    } else if (node instanceof In) {
      parts.subList(1, parts.size()).sort(Comparator.comparing(PlanText::text));
      return node.withNewChildren(PlanParts.seq(parts));
    } else if (parts.size() == 2 && text(parts.get(0)).compareTo(text(parts.get(1))) > 0) {
      return turned(node, parts.get(1), parts.get(0));
    }
    return node;
  }

  /** The same comparison with swapped operands. */
  private static Expression turned(Expression node, Expression left, Expression right) {
    if (node instanceof GreaterThan) {
      return new LessThan(left, right);
    } else if (node instanceof LessThan) {
      return new GreaterThan(left, right);
    } else if (node instanceof GreaterThanOrEqual) {
      return new LessThanOrEqual(left, right);
    } else if (node instanceof LessThanOrEqual) {
      return new GreaterThanOrEqual(left, right);
    }
    return node;
  }

  private static String text(Expression expression) {
    return IDENTITY.matcher(expression.toString()).replaceAll("");
  }
}
