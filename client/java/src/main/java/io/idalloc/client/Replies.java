package io.idalloc.client;

import io.idalloc.v1.AllocateRangeRequest;
import io.idalloc.v1.AllocateRangeResponse;
import io.idalloc.v1.DocIdView;
import io.idalloc.v1.GenerateDocIdRequest;
import io.idalloc.v1.GenerateDocIdResponse;
import io.idalloc.v1.IdRange;
import io.idalloc.v1.RangeView;
import io.idalloc.v1.StreamRangesResponse;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.regex.Pattern;

/** Requests as messages, and replies whose fields agree as records. */
final class Replies {
  private static final int MAX_NAME_BYTES = 255;
  private static final long MAX_TTL_SECONDS = 366 * 86_400;
  private static final Pattern PERIOD = Pattern.compile("([0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?)?");
  private static final Pattern DOC_ID = Pattern.compile("[0-9a-f]{28}");

  private Replies() {}

  static AllocateRangeRequest message(RangeRequest request) {
    checkName(request.sequence());
    checkCount("id_count", request.count());
    AllocateRangeRequest.Builder message =
        AllocateRangeRequest.newBuilder()
            .setSequence(request.sequence())
            .setIdCount(request.count())
            .setView(view(request.withTexts()));
    request.requestId().ifPresent(id -> message.setRequestId(id.toString()));
    return message.build();
  }

  static RangeView view(boolean withTexts) {
    return withTexts ? RangeView.RANGE_VIEW_TEXTS : RangeView.RANGE_VIEW_UNSPECIFIED;
  }

  /** A longer name, or one that cannot be encoded, would end a stream that others share. */
  static void checkName(String sequence) {
    int length = sequence.getBytes(StandardCharsets.UTF_8).length;
    boolean isEncodable = StandardCharsets.UTF_8.newEncoder().canEncode(sequence);
    if (length > MAX_NAME_BYTES || !isEncodable) {
      throw IdallocException.invalid(
          "sequence", "must be at most " + MAX_NAME_BYTES + " bytes of UTF-8, not " + length);
    }
  }

  static void checkCount(String field, long count) {
    if (count < 1) {
      throw IdallocException.invalid(field, "must be at least 1, not " + count);
    }
  }

  static GenerateDocIdRequest docIdRequest(long count) {
    checkCount("id_count", count);
    return GenerateDocIdRequest.newBuilder()
        .setIdCount(count)
        .setView(DocIdView.DOC_ID_VIEW_COMPACT)
        .build();
  }

  /** Converts a message of a stream, which has the fields of a reply. */
  static AllocateRangeResponse reply(StreamRangesResponse message) {
    return AllocateRangeResponse.newBuilder()
        .setRange(message.getRange())
        .addAllTexts(message.getTextsList())
        .setPeriod(message.getPeriod())
        .setGeneration(message.getGeneration())
        .setTtl(message.getTtl())
        .setOrdering(message.getOrdering())
        .setNodeId(message.getNodeId())
        .setCreated(message.getCreated())
        .build();
  }

  static AllocatedRange range(AllocateRangeResponse reply, RangeRequest request) {
    return range(reply, request.count(), request.count(), request.withTexts());
  }

  /** Converts a reply that must have {@code least} to {@code most} ids. */
  static AllocatedRange range(
      AllocateRangeResponse reply, long least, long most, boolean withTexts) {
    IdRange ids = reply.getRange();
    check(ids, least, most);
    long seconds = reply.getTtl().getSeconds();
    int nanos = reply.getTtl().getNanos();
    boolean isTtl = 0 <= seconds && seconds <= MAX_TTL_SECONDS && 0 <= nanos && nanos < 1e9;
    if (!isTtl || !PERIOD.matcher(reply.getPeriod()).matches()) {
      throw IdallocException.invalidReply(
          "ttl is " + seconds + " s and " + nanos + " ns, period is '" + reply.getPeriod() + "'");
    }
    long count = withTexts ? ids.getIdCount() : 0;
    long different = reply.getTextsList().stream().filter(each -> !each.isEmpty()).distinct().count();
    if (reply.getTextsCount() != count || different != count) {
      throw IdallocException.invalidReply(
          "texts has " + reply.getTextsCount() + " items; expected " + count + " different ones");
    }
    return new AllocatedRange(
        ids.getFirstId(),
        ids.getLastId(),
        ids.getStep(),
        ids.getIdCount(),
        List.copyOf(reply.getTextsList()),
        reply.getPeriod(),
        reply.getGeneration(),
        Duration.ofSeconds(seconds, nanos),
        switch (reply.getOrdering()) {
          case ORDERING_RISING_PER_NODE -> AllocatedRange.Ordering.RISING_PER_NODE;
          case ORDERING_RISING -> AllocatedRange.Ordering.RISING;
          default -> AllocatedRange.Ordering.UNKNOWN;
        },
        reply.getNodeId(),
        reply.getCreated());
  }

  private static void check(IdRange ids, long least, long most) {
    long first = ids.getFirstId();
    long last = ids.getLastId();
    long count = ids.getIdCount();
    BigInteger distance = BigInteger.valueOf(count - 1).multiply(BigInteger.valueOf(ids.getStep()));
    boolean fits = BigInteger.valueOf(first).add(distance).equals(BigInteger.valueOf(last));
    fits &= Math.max(1, least) <= count && count <= most && Math.max(first, last) < Long.MAX_VALUE;
    if (!fits || ids.getStep() == 0) {
      throw IdallocException.invalidReply(
          "range has first_id %d, last_id %d, step %d and id_count %d; expected %d to %d ids, at most 2^63-2"
              .formatted(first, last, ids.getStep(), count, least, most));
    }
  }

  /** Returns a range of a stream if it comes after the one before it, or null. */
  static AllocatedRange inOrder(AllocatedRange before, AllocatedRange range) {
    boolean isNext = before == null || Long.compare(range.first(), before.last()) == Long.signum(range.step());
    if (!isNext && before.period().equals(range.period())) {
      throw IdallocException.invalidReply(
          "range.first_id is " + range.first() + "; expected an id after " + before.last());
    }
    return range;
  }

  /** Checks that no two ranges have an id in common. */
  static void checkDisjoint(List<AllocatedRange> ranges) {
    List<AllocatedRange> sorted = new ArrayList<>(ranges);
    sorted.sort(Comparator.comparing(each -> Math.min(each.first(), each.last())));
    for (int i = 1; i < sorted.size(); i++) {
      AllocatedRange before = sorted.get(i - 1);
      long lowest = Math.min(sorted.get(i).first(), sorted.get(i).last());
      if (lowest <= Math.max(before.first(), before.last())) {
        throw IdallocException.invalidReply("range has " + lowest + " twice; expected each id once");
      }
    }
  }

  static List<String> docIds(GenerateDocIdResponse reply, long count) {
    List<DocIdRun> runs = runs(reply.getRunsList(), count, count, null);
    return runs.stream().flatMap(DocIdRun::ids).toList();
  }

  /** Converts runs with {@code least} to {@code most} ids. They come after those of the message before, or null. */
  static List<DocIdRun> runs(List<io.idalloc.v1.DocIdRun> sent, long least, long most, List<DocIdRun> before) {
    List<DocIdRun> runs = new ArrayList<>(sent.size());
    long count = 0;
    String last = before == null ? "" : before.get(before.size() - 1).last();
    for (io.idalloc.v1.DocIdRun each : sent) {
      DocIdRun run = new DocIdRun(each.getFirstDocId(), each.getStep(), each.getIdCount());
      // The ids of a message after that of another process or prefix have no order.
      boolean isOther = runs.isEmpty() && !run.first().regionMatches(0, last, 0, DocIdRun.SHARED);
      if (!isValid(run, most - count) || !isOther && run.first().compareTo(last) <= 0) {
        throw IdallocException.invalidReply(
            "runs[%d] has first_doc_id '%.60s', step %d and id_count %d; expected 1 to %d ids after '%s'"
                .formatted(runs.size(), run.first(), run.step(), run.count(), most - count, last));
      }
      count += run.count();
      last = run.last();
      runs.add(run);
    }
    if (count < least) {
      throw IdallocException.invalidReply("runs has " + count + " ids; expected at least " + least);
    }
    return List.copyOf(runs);
  }

  private static boolean isValid(DocIdRun run, long most) {
    if (!DOC_ID.matcher(run.first()).matches()
        || run.step() < 1 || run.count() < 1 || run.count() > most) {
      return false;
    }
    long serial = Long.parseUnsignedLong(run.first(), DocIdRun.SHARED, DocIdRun.LENGTH, 16);
    long distance = (run.count() - 1) * run.step();
    return Math.multiplyHigh(run.count() - 1, run.step()) == 0
        && Long.compareUnsigned(serial + distance, serial) >= 0;
  }
}
