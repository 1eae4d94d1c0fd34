package io.idalloc.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Random;
import org.junit.jupiter.api.Test;

class ElapsedTimeTest {
  private static final long SECOND = 1_000_000_000;

  private long monotonic;
  private long wall = 1_700_000_000_000_000_000L; // in nanoseconds
  private final ElapsedTime time = new ElapsedTime(() -> monotonic, () -> wall / 1_000_000);
  private final long begun = time.nanos();

  private void pass(double seconds) {
    monotonic += (long) (seconds * SECOND);
    wall += (long) (seconds * SECOND);
  }

  private double passed() {
    return (time.nanos() - begun) / (double) SECOND;
  }

  @Test
  void timePassesAsOnTheMonotonicClock() {
    Random random = new Random(1);
    double sum = 0;
    for (int i = 0; i < 100_000; i++) { // a tick of the wall clock must not be counted twice
      double step = random.nextDouble(0.01);
      pass(step);
      sum += step;
      assertEquals(sum, passed(), 0.021);
    }
  }

  @Test
  void aSuspendCounts() {
    pass(1);
    wall += 100 * SECOND;
    pass(1);
    assertEquals(102, passed(), 0.01);
  }

  @Test
  void aWallClockThatIsSetBackTakesNoTimeBack() {
    pass(1);
    wall -= 3_600 * SECOND;
    pass(1);
    assertEquals(2, passed(), 0.01);
    wall += 100 * SECOND; // a suspend after it
    pass(1);
    assertEquals(103, passed(), 0.01);
  }

  @Test
  void timeNeverStepsBack() {
    Random random = new Random(2);
    double before = 0;
    for (int i = 0; i < 100_000; i++) {
      monotonic += random.nextLong(SECOND / 100);
      wall += random.nextLong(-SECOND, SECOND);
      double now = passed();
      assertTrue(now >= before);
      before = now;
    }
  }
}
