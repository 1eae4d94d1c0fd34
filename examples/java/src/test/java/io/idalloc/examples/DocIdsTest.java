package io.idalloc.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.idalloc.examples.pool.IdallocException;
import io.idalloc.v1.DocIdRun;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class DocIdsTest {
  private static DocIdRun run(String first, long step, long count) {
    return DocIdRun.newBuilder().setFirstDocId(first).setStep(step).setIdCount(count).build();
  }

  @Test
  void serialRisesByTheStep() {
    List<String> ids = new ArrayList<>();
    DocIds.expand(run("00075f1f2d4c00000000000000fe", 3, 2), ids::add);
    assertEquals(List.of("00075f1f2d4c00000000000000fe", "00075f1f2d4c0000000000000101"), ids);
  }

  @Test
  void serialHasNoSign() {
    List<String> ids = new ArrayList<>();
    DocIds.expand(run("00075f1f2d4c7fffffffffffffff", 1, 2), ids::add);
    DocIds.expand(run("00075f1f2d4cfffffffffffffffe", 1, 2), ids::add);
    assertEquals("00075f1f2d4c8000000000000000", ids.get(1));
    assertEquals("00075f1f2d4cffffffffffffffff", ids.get(3));
  }

  @Test
  void invalidRunsAreErrors() {
    for (DocIdRun each :
        List.of(
            run("00075f1f2d4cffffffffffffffff", 1, 2),
            run("00075f1f2d4c0000000000000001", 0, 2),
            run("00075f1f2d4c0000000000000001", 1, 0),
            run("00075F1F2D4C0000000000000001", 1, 1),
            run("", 1, 1))) {
      assertThrows(IdallocException.class, () -> DocIds.expand(each, id -> {}));
    }
  }
}
