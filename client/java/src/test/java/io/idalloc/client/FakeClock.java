package io.idalloc.client;

import java.util.Comparator;
import java.util.Queue;
import java.util.concurrent.PriorityBlockingQueue;

/** A clock that a test sets; timers run in the thread that advances them. */
final class FakeClock implements Clock {
  record Timer(long due, Runnable task) {}

  final Queue<Timer> timers =
      new PriorityBlockingQueue<>(11, Comparator.comparingLong(Timer::due));
  private volatile long nanos = 1;

  @Override
  public long nanos() {
    return nanos;
  }

  @Override
  public Runnable after(long delay, Runnable task) {
    Timer timer = new Timer(nanos + delay, task);
    timers.add(timer);
    return () -> timers.remove(timer);
  }

  /** Lets time pass, and runs the timers that fall due. */
  void advance(double seconds) {
    long until = nanos + (long) (seconds * 1e9);
    Timer next = timers.peek();
    while (next != null && next.due <= until) {
      nanos = next.due;
      if (timers.remove(next)) { // not cancelled meanwhile
        next.task.run();
      }
      next = timers.peek();
    }
    nanos = until;
  }
}
