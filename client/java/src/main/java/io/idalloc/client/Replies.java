package io.idalloc.client;

import io.idalloc.v1.AllocateRangeRequest;
import io.idalloc.v1.AllocateRangeResponse;
import io.idalloc.v1.DocIdView;
import io.idalloc.v1.GenerateDocIdRequest;
import io.idalloc.v1.IdRange;
import io.idalloc.v1.RangeView;
import io.idalloc.v1.StreamRangesResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/** Requests as messages, and replies whose fields agree as records. */
final class Replies {
  private static final int MAX_NAME_BYTES = 255;
  private static final Duration MAX_TTL = Duration.ofDays(366);
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

  /** Converts a reply that must have {@code least} to {@code most} ids. */
  static AllocatedRange range(
      AllocateRangeResponse reply, long least, long most, boolean withTexts) {
    IdRange ids = reply.getRange();
    check(ids, least, most);
    Duration ttl = Duration.ofSeconds(reply.getTtl().getSeconds(), reply.getTtl().getNanos());
    if (ttl.isNegative() || ttl.compareTo(MAX_TTL) > 0) {
      throw IdallocException.invalidReply("ttl is " + ttl);
    }
    if (withTexts && reply.getTextsCount() != ids.getIdCount()) {
      throw IdallocException.invalidReply(
          reply.getTextsCount() + " texts for " + ids.getIdCount() + " ids");
    }
    return new AllocatedRange(
        ids.getFirstId(),
        ids.getLastId(),
        ids.getStep(),
        ids.getIdCount(),
        List.copyOf(reply.getTextsList()),
        reply.getPeriod(),
        reply.getGeneration(),
        ttl,
        switch (reply.getOrdering()) {
          case ORDERING_RISING_PER_NODE -> AllocatedRange.Ordering.RISING_PER_NODE;
          case ORDERING_RISING -> AllocatedRange.Ordering.RISING;
          default -> AllocatedRange.Ordering.UNKNOWN;
        },
        reply.getNodeId(),
        reply.getCreated());
  }

  private static void check(IdRange ids, long least, long most) {
    if (ids.getIdCount() < Math.max(1, least) || ids.getIdCount() > most) {
      throw IdallocException.invalidReply(
          "id_count is " + ids.getIdCount() + "; expected " + least + " to " + most);
    }
    if (ids.getStep() == 0) {
      throw IdallocException.invalidReply("step is 0");
    }
    try {
      long distance = Math.multiplyExact(ids.getIdCount() - 1, ids.getStep());
      if (Math.addExact(ids.getFirstId(), distance) == ids.getLastId()) {
        return;
      }
    } catch (ArithmeticException e) {
      // It does not fit either.
    }
    throw IdallocException.invalidReply(
        "last_id " + ids.getLastId() + " does not fit the other fields");
  }

  /** Converts runs that must have {@code least} to {@code most} ids in total. */
  static List<DocIdRun> runs(List<io.idalloc.v1.DocIdRun> sent, long least, long most) {
    List<DocIdRun> runs = new ArrayList<>(sent.size());
    long count = 0;
    for (io.idalloc.v1.DocIdRun each : sent) {
      check(each, most - count);
      count += each.getIdCount();
      runs.add(new DocIdRun(each.getFirstDocId(), each.getStep(), each.getIdCount()));
    }
    if (count < least) {
      throw IdallocException.invalidReply(count + " document ids; expected at least " + least);
    }
    return List.copyOf(runs);
  }

  private static void check(io.idalloc.v1.DocIdRun run, long most) {
    String first = run.getFirstDocId();
    if (run.getIdCount() < 1 || run.getIdCount() > most || run.getStep() < 1) {
      throw IdallocException.invalidReply(
          "a run has " + run.getIdCount() + " ids by " + run.getStep() + "; expected 1 to " + most);
    }
    if (!DOC_ID.matcher(first).matches()) {
      throw IdallocException.invalidReply("a run from '" + first + "'");
    }
    long serial = Long.parseUnsignedLong(first, DocIdRun.SHARED, DocIdRun.LENGTH, 16);
    long distance = (run.getIdCount() - 1) * run.getStep();
    boolean fits =
        Math.multiplyHigh(run.getIdCount() - 1, run.getStep()) == 0
            && Long.compareUnsigned(serial + distance, serial) >= 0;
    if (!fits) {
      throw IdallocException.invalidReply("the serials of a run from '" + first + "' overflow");
    }
  }
}
