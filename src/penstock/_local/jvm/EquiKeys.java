package penstock.delta;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Join;

/** The equi-join keys of both sides of a join, and whether NULL equals NULL. */
record EquiKeys(List<Expression> left, List<Expression> right, List<Boolean> nullSafe) {
  static EquiKeys of(Join join) {
    EquiKeys keys = new EquiKeys(new ArrayList<>(), new ArrayList<>(), new ArrayList<>());
    if (join.condition().isDefined()) {
      keys.add(join, join.condition().get());
    }
    return keys;
  }

  private void add(Join join, Expression condition) {
    if (condition instanceof And both) {
      add(join, both.left());
      add(join, both.right());
    } else if (condition instanceof EqualTo same) {
      add(join, same.left(), same.right(), false);
    } else if (condition instanceof EqualNullSafe same) {
      add(join, same.left(), same.right(), true);
    }
  }

  private void add(Join join, Expression first, Expression second, boolean isNullSafe) {
    boolean isConstant = first.references().isEmpty() || second.references().isEmpty();
    boolean isStraight = PlanParts.isOf(first, join.left()) && PlanParts.isOf(second, join.right());
    boolean isSwapped = PlanParts.isOf(second, join.left()) && PlanParts.isOf(first, join.right());
    // Equal values of other types may have different representations, of which only one would
    // match.
    boolean isExact = PlanParts.isExact(first.dataType());
    if (isExact && !isConstant && (isStraight || isSwapped)) {
      left.add(isStraight ? first : second);
      right.add(isStraight ? second : first);
      nullSafe.add(isNullSafe);
    }
  }

  boolean hasNullSafe() {
    return nullSafe.contains(true);
  }

  /** The expressions, with keys of the right side replaced by the equal keys of the left side. */
  List<Expression> onLeft(List<Expression> expressions) {
    return expressions.stream().map(e -> counterpart(e, right, left, e)).toList();
  }

  /**
   * The key of the right side that equals an expression of the left side; null if there is none.
   */
  Expression onRight(Expression expression) {
    return counterpart(expression, left, right, null);
  }

  private static Expression counterpart(
      Expression expression, List<Expression> from, List<Expression> to, Expression otherwise) {
    for (int key = 0; key < from.size(); key++) {
      if (from.get(key).semanticEquals(expression)) {
        return to.get(key);
      }
    }
    return otherwise;
  }

  /** The join condition between columns that have the values of these keys. */
  Expression same(List<? extends Expression> ofLeft, List<? extends Expression> ofRight) {
    Expression condition = null;
    for (int key = 0; key < left.size(); key++) {
      Expression pair =
          PlanParts.equal(List.of(ofLeft.get(key)), List.of(ofRight.get(key)), nullSafe.get(key));
      condition = condition == null ? pair : new And(condition, pair);
    }
    return condition;
  }
}
