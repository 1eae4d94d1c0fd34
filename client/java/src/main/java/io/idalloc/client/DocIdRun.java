package io.idalloc.client;

import java.util.HexFormat;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/**
 * A run of document ids in MySQL's format. They share their first 12 characters, and their serials,
 * the other 16, rise by {@code step}.
 *
 * @param first the first id: 28 hexadecimal characters
 * @param step the distance of two serials; at least 1
 * @param count how many ids; at least 1
 */
public record DocIdRun(String first, long step, long count) {
  static final int LENGTH = 28;
  static final int SHARED = 12;

  /**
   * Returns the document ids in their order.
   *
   * @return a new stream
   */
  public Stream<String> ids() {
    String shared = first.substring(0, SHARED);
    long start = HexFormat.fromHexDigitsToLong(first, SHARED, LENGTH);
    return LongStream.iterate(start, serial -> serial + step)
        .limit(count)
        .mapToObj(serial -> shared + HexFormat.of().toHexDigits(serial));
  }

  String last() {
    long start = HexFormat.fromHexDigitsToLong(first, SHARED, LENGTH);
    return first.substring(0, SHARED) + HexFormat.of().toHexDigits(start + (count - 1) * step);
  }
}
