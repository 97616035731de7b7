package penstock.spark;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.util.Clock;

/**
 * Limits how many streaming queries run a trigger at the same time. Queries are admitted in the
 * order of their arrival, except that a query with less patience is admitted before queries that
 * have waited for less than the difference.
 *
 * <p>A turn is one trigger of a query, from reading the latest offsets of its sources to the commit
 * of its batch. A waiting query has not read its offsets yet, so its batch contains all rows that
 * arrive while it waits. A trigger without new data ends its turn after milliseconds.
 *
 * <p>No query waits indefinitely: if a turn exceeds its limit, it continues, and the next query is
 * admitted beside it. Unless a turn takes much longer than the limit, at most twice as many turns
 * as permitted run: if the machine is overloaded, more of them would make it slower.
 */
public final class BatchAdmission {
  private static final int MUCH_LONGER = 12;
  /**
   * The minimum time between the starts of two batches: more batches would only write smaller
   * files.
   */
  private static final long LEAST_MILLIS = 200;

  /** The minimum while other queries wait: each reader of a table reads each of its commits. */
  private static final long CROWDED_MILLIS = 500;

  private static final long FIRST_PAUSE_MILLIS = 50;
  private static final long MOST_MILLIS = 60_000;
  private static final long CHECK_NANOS = TimeUnit.MILLISECONDS.toNanos(200);

  private final int permits;
  private final long limitNanos;
  private final ReentrantLock lock = new ReentrantLock();
  private final TreeSet<Turn> waiting = new TreeSet<>();
  private final List<Turn> admitted = new ArrayList<>();
  private long arrivals;

  /**
   * @param permits the number of turns at the same time
   * @param limitMillis how long a turn keeps other queries waiting
   */
  public BatchAdmission(int permits, long limitMillis) {
    this.permits = permits;
    this.limitNanos = TimeUnit.MILLISECONDS.toNanos(limitMillis);
  }

  /**
   * The turns of one query.
   *
   * @param patienceMillis how much later a query without patience may arrive and still be first
   */
  public Turn turn(long patienceMillis) {
    return new Turn(patienceMillis);
  }

  /**
   * Admits a query by turns from its next trigger on; has no effect on queries without a processing
   * time trigger. Returns immediately.
   *
   * <p>Spark has no API to set the clock of a query. The trigger executor, which is created when
   * the query has opened its sources, reads its clock before each trigger; this clock is replaced.
   *
   * @param patienceMillis see {@link #turn}
   * @param isEager whether the next batch does not wait for the interval while there are rows
   */
  public void attach(StreamExecution query, long patienceMillis, boolean isEager) {
    if (query instanceof MicroBatchExecution) {
      MicroBatchExecution batches = (MicroBatchExecution) query;
      Turn turn = turn(patienceMillis);
      Thread thread = new Thread(() -> replaceClock(batches, turn, isEager), "admission");
      thread.setDaemon(true);
      thread.start();
    }
  }

  private static void replaceClock(MicroBatchExecution query, Turn turn, boolean isEager) {
    while (query.triggerExecutor() == null && query.isActive()) {
      LockSupport.parkNanos(200_000);
    }
    if (query.triggerExecutor() instanceof ProcessingTimeExecutor) {
      ProcessingTimeExecutor executor = (ProcessingTimeExecutor) query.triggerExecutor();
      long interval = executor.processingTimeTrigger().intervalMs();
      try {
        Field field = ProcessingTimeExecutor.class.getDeclaredField("clock");
        field.setAccessible(true);
        field.set(executor, new TurnClock(turn, interval, isEager ? query : null));
      } catch (ReflectiveOperationException e) {
        throw new IllegalStateException(e);
      }
    }
  }

  /** The number of queries that wait for their turn. */
  public int waiting() {
    lock.lock();
    try {
      return waiting.size();
    } finally {
      lock.unlock();
    }
  }

  /** The caller must hold the lock. */
  private boolean hasRoom() {
    long now = System.nanoTime();
    admitted.removeIf(
        turn -> !turn.thread.isAlive() || now - turn.since >= MUCH_LONGER * limitNanos);
    long within = admitted.stream().filter(turn -> now - turn.since < limitNanos).count();
    return within < permits && admitted.size() < 2 * permits;
  }

  /** The caller must hold the lock. */
  private void wakeNext() {
    if (!waiting.isEmpty()) {
      waiting.first().isNext.signal();
    }
  }

  /** The position of a query in the queue. Used by one thread at a time. */
  public final class Turn implements Comparable<Turn> {
    private final Condition isNext = lock.newCondition();
    private final long patienceNanos;
    private Thread thread;
    private long due;
    private long arrival;
    private long since;
    private boolean isTaken;

    private Turn(long patienceMillis) {
      patienceNanos = TimeUnit.MILLISECONDS.toNanos(patienceMillis);
    }

    @Override
    public int compareTo(Turn other) {
      return due == other.due
          ? Long.compare(arrival, other.arrival)
          : Long.signum(due - other.due);
    }

    /** Waits for the turn; has no effect during the turn. */
    public void enter() throws InterruptedException {
      if (isTaken) {
        return;
      }
      lock.lockInterruptibly();
      try {
        due = System.nanoTime() + patienceNanos;
        arrival = arrivals++;
        waiting.add(this);
        try {
          while (waiting.first() != this || !hasRoom()) {
            if (waiting.first() == this) {
              // The first query in the queue also checks for turns that exceed their limit.
              isNext.awaitNanos(CHECK_NANOS);
            } else {
              isNext.await();
            }
          }
          thread = Thread.currentThread();
          since = System.nanoTime();
          admitted.add(this);
          isTaken = true;
        } finally {
          waiting.remove(this);
          wakeNext();
        }
      } finally {
        lock.unlock();
      }
    }

    private long leastMillis() {
      return BatchAdmission.this.waiting() < permits ? LEAST_MILLIS : CROWDED_MILLIS;
    }

    /** Ends the turn; has no effect outside of a turn. */
    public void leave() {
      isTaken = false;
      lock.lock();
      try {
        admitted.remove(this);
        wakeNext();
      } finally {
        lock.unlock();
      }
    }
  }

  /** The clock of a processing time trigger, which is read before each trigger. */
  private static final class TurnClock implements Clock {
    private final Turn turn;
    private final long intervalMillis;
    private final MicroBatchExecution eager;
    private Object lastBatch;
    private long began;
    private long idleMillis = FIRST_PAUSE_MILLIS; // never zero: it is doubled

    TurnClock(Turn turn, long intervalMillis, MicroBatchExecution eager) {
      this.turn = turn;
      this.intervalMillis = intervalMillis;
      this.eager = eager;
    }

    /** Called before each trigger and, if there is an interval, after each trigger. */
    @Override
    public long getTimeMillis() {
      if (intervalMillis == 0) {
        turn.leave();
      }
      boolean isFirst = !turn.isTaken;
      try {
        turn.enter();
      } catch (InterruptedException e) {
        throw unchecked(e);
      }
      long now = System.currentTimeMillis();
      began = isFirst ? now : began;
      return now;
    }

    @Override
    public long nanoTime() {
      return System.nanoTime();
    }

    /**
     * Called between two triggers. Never waits longer than the interval, as the system clock may be
     * set back.
     */
    @Override
    public long waitTillTime(long target) {
      turn.leave();
      long now = System.currentTimeMillis();
      long end = eager == null ? target : Math.min(target, next(now));
      long since = System.nanoTime();
      long most = TimeUnit.MILLISECONDS.toNanos(intervalMillis);
      while (now < end && System.nanoTime() - since < most) {
        try {
          Thread.sleep(Math.min(end - now, intervalMillis));
        } catch (InterruptedException e) {
          throw unchecked(e);
        }
        now = System.currentTimeMillis();
      }
      return now;
    }

    /** The time of the next trigger: soon after a batch, then with exponential backoff. */
    private long next(long now) {
      Object batch = eager.lastExecution();
      boolean isIdle = batch == lastBatch;
      lastBatch = batch;
      idleMillis = isIdle ? Math.min(2 * idleMillis, MOST_MILLIS) : FIRST_PAUSE_MILLIS;
      return isIdle ? now + idleMillis : began + turn.leastMillis();
    }

    /** Throws the exception unwrapped: Spark detects an interrupted query by its type. */
    @SuppressWarnings("unchecked")
    private static <E extends Throwable> E unchecked(Throwable e) throws E {
      throw (E) e;
    }
  }
}
