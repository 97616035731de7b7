package penstock.delta;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Union;

/** Chooses the columns by which rows of a result are replaced. */
final class KeyColumns {
  private final QueryChanges query;

  KeyColumns(QueryChanges query) {
    this.query = query;
  }

  /**
   * The output columns by which rows are replaced; rows that change together have the same values.
   *
   * @throws QueryChanges.UnsupportedException if there are no such columns
   */
  List<Attribute> of(LogicalPlan plan) {
    return candidates(plan).stream()
        .map(columns -> columns.stream().filter(c -> PlanParts.isExact(c.dataType())).toList())
        .filter(columns -> !columns.isEmpty())
        .findFirst()
        .orElseThrow(
            () ->
                new QueryChanges.UnsupportedException(
                    "no column of the result identifies its changed rows"));
  }

  /** Candidate sets of columns, the best first. */
  private List<List<Attribute>> candidates(LogicalPlan node) {
    List<LogicalPlan> children = PlanParts.list(node.children());
    if (node instanceof Union) {
      return List.of(commonColumns(node, children));
    } else if (node instanceof Join join) {
      return ofJoin(join);
    } else if (node instanceof Aggregate aggregate) {
      AffectedKeys.checkGroups(PlanParts.list(aggregate.groupingExpressions()));
      Map<ExprId, Expression> values = PlanParts.values(aggregate.aggregateExpressions());
      Predicate<Attribute> isGroup =
          column ->
              !AffectedKeys.hasAggregate(values.get(column.exprId()))
                  && !values.get(column.exprId()).references().isEmpty();
      return List.of(PlanParts.output(node).stream().filter(isGroup).toList());
    } else if (AffectedKeys.groups(node) != null) {
      AffectedKeys.checkGroups(AffectedKeys.groups(node));
      List<Attribute> output = PlanParts.output(node);
      return List.of(
          output.stream()
              .filter(c -> AffectedKeys.isWithin(List.of(c), AffectedKeys.groups(node)))
              .toList());
    } else if (children.isEmpty()) {
      return List.of(PlanParts.output(node));
    }
    LogicalPlan child = children.get(0);
    List<List<Attribute>> passed = new ArrayList<>();
    for (List<Attribute> columns : candidates(child)) {
      passed.add(
          PlanParts.output(node).stream()
              .filter(
                  column -> {
                    ExprId source = PlanParts.origin(node, child, column.exprId());
                    return columns.stream().anyMatch(c -> c.exprId().equals(source));
                  })
              .toList());
    }
    return passed;
  }

  private List<Attribute> commonColumns(LogicalPlan union, List<LogicalPlan> children) {
    List<Attribute> output = PlanParts.output(union);
    List<Integer> common = new ArrayList<>();
    IntStream.range(0, output.size()).forEach(common::add);
    for (LogicalPlan child : children) {
      List<Attribute> columns = PlanParts.output(child);
      List<Attribute> best =
          candidates(child).stream().filter(c -> !c.isEmpty()).findFirst().orElse(List.of());
      common.removeIf(
          position ->
              best.stream().noneMatch(c -> c.exprId().equals(columns.get(position).exprId())));
    }
    return common.stream().map(output::get).toList();
  }

  private List<List<Attribute>> ofJoin(Join join) {
    List<List<Attribute>> sets = new ArrayList<>();
    EquiKeys equi = EquiKeys.of(join);
    if (!query.isChanged(join.left())) {
      sets.add(attributes(equi.left()));
    }
    sets.addAll(candidates(join.left()));
    if (PlanParts.isInner(join.joinType())) {
      if (!query.isChanged(join.right())) {
        sets.add(attributes(equi.right()));
      }
      sets.addAll(candidates(join.right()));
    }
    return sets;
  }

  private static List<Attribute> attributes(List<Expression> expressions) {
    return expressions.stream()
        .filter(Attribute.class::isInstance)
        .map(Attribute.class::cast)
        .toList();
  }
}
