package io.idalloc.examples;

import io.grpc.Status;
import io.idalloc.examples.pool.IdallocException;
import io.idalloc.v1.DocIdRun;
import java.math.BigInteger;
import java.util.HexFormat;
import java.util.function.Consumer;
import java.util.regex.Pattern;

/** Expands runs of document ids. */
final class DocIds {
  private static final HexFormat HEX = HexFormat.of();
  private static final Pattern DOC_ID = Pattern.compile("[0-9a-f]{28}");
  private static final int SHARED_LENGTH = 12;

  private DocIds() {}

  /**
   * Passes each id of a run on. The first 12 characters are shared. The other 16 are a serial
   * without a sign, which rises by the run's step. Where MySQL's offset and increment make a first
   * step of another size, the server sends a run of its own for it.
   */
  static void expand(DocIdRun run, Consumer<String> ids) {
    check(run);
    String shared = run.getFirstDocId().substring(0, SHARED_LENGTH);
    // A long holds the 64 bits of a serial, and adding to it is exact; only its sign is wrong.
    long serial = Long.parseUnsignedLong(run.getFirstDocId().substring(SHARED_LENGTH), 16);
    for (long left = run.getIdCount(); left > 0; left--) {
      ids.accept(shared + HEX.toHexDigits(serial));
      serial += run.getStep();
    }
  }

  private static void check(DocIdRun run) {
    boolean isValid =
        DOC_ID.matcher(run.getFirstDocId()).matches()
            && run.getStep() > 0
            && run.getIdCount() > 0
            && lastSerial(run).bitLength() <= 64;
    if (!isValid) {
      throw new IdallocException(
          Status.Code.INTERNAL,
          "invalid run of document ids: first_doc_id '%s', step %d, id_count %d"
              .formatted(run.getFirstDocId(), run.getStep(), run.getIdCount()));
    }
  }

  private static BigInteger lastSerial(DocIdRun run) {
    BigInteger distance =
        BigInteger.valueOf(run.getStep()).multiply(BigInteger.valueOf(run.getIdCount() - 1));
    return new BigInteger(run.getFirstDocId().substring(SHARED_LENGTH), 16).add(distance);
  }
}
