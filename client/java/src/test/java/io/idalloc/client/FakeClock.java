package io.idalloc.client;

import java.util.Comparator;
import java.util.PriorityQueue;

/** A clock that a test sets; timers run in the thread that advances them. */
final class FakeClock implements Clock {
  private record Timer(long due, Runnable task) {}

  private final PriorityQueue<Timer> timers =
      new PriorityQueue<>(Comparator.comparingLong(Timer::due));
  private long nanos = 1;

  @Override
  public synchronized long nanos() {
    return nanos;
  }

  @Override
  public synchronized Runnable after(long delay, Runnable task) {
    Timer timer = new Timer(nanos + delay, task);
    timers.add(timer);
    return () -> remove(timer);
  }

  private synchronized void remove(Timer timer) {
    timers.remove(timer);
  }

  synchronized int timers() {
    return timers.size();
  }

  /** Lets time pass, and runs the timers that fall due. */
  void advance(double seconds) {
    long until = nanos() + (long) (seconds * 1e9);
    while (true) {
      Timer timer;
      synchronized (this) {
        timer = timers.peek();
        if (timer == null || timer.due > until) {
          break;
        }
        timers.remove();
        nanos = timer.due;
      }
      timer.task.run();
    }
    synchronized (this) {
      nanos = until;
    }
  }
}
