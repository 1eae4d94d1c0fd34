"""Faults of replies, and of what a stream of requests holds until it has answered them (P9)."""

from tests.support.mutants.edit import Edit, Place

UNEXPLORED = "it checks the ids of replies only"
ITEMS = "idalloc_server.rpc.items"
STREAM = "idalloc_server.rpc.request_stream"
GIVE_BACK = "self.messages.share.shares.unanswered.give_back(self.messages.share.caller)"

MUTANTS = (
    Place("replies", "idalloc_server.rpc.id_allocator").mutant(
        "period-of-an-earlier-reply",
        "the message that is reused for replies from memory keeps a period",
        Edit(
            "IdAllocatorServicer.AllocateRange",
            "if id_range.period:\n    reply = pb.AllocateRangeResponse()",
            "pass",
        ),
        unexplored=UNEXPLORED,
    ),
    Place("replies", ITEMS).mutant(
        "generation-of-an-earlier-reply",
        "the message that is reused for replies from memory keeps a generation",
        Edit("RangeSource.fill", "reply.generation = generation", "reply.generation = reply.generation or generation"),
        unexplored=UNEXPLORED,
    ),
    Place("replies", ITEMS).mutant(
        "created-is-not-answered",
        "the answer to the request that created a sequence does not say so",
        Edit("RangeSource.fill", "if created:\n    reply.created = True", "pass"),
        unexplored=UNEXPLORED,
    ),
    Place("quotas", ITEMS).mutant(
        "burned-request-id-is-refunded",
        "a request id that is reused or burned is refunded, although it may have taken ids",
        Edit("Item.answer", "not isinstance(error, RequestIdReused | RequestIdBurned)", "True"),
        unexplored=UNEXPLORED,
    ),
    Place("streams", STREAM).mutant(
        "bytes-of-answered-requests-count",
        "a stream counts the bytes of requests also after their answers",
        Edit("RequestStream._write_queue", "self._queued_bytes -= queued.request.ByteSize()", "pass"),
        unexplored=UNEXPLORED,
    ),
    Place("streams", STREAM).mutant(
        "failed-requests-keep-their-place",
        "a request that failed counts as unanswered until its stream ends",
        Edit(
            "RequestStream._write",
            f"self._unanswered -= 1\n{GIVE_BACK}",
            f"if item.error is None:\n    self._unanswered -= 1\n    {GIVE_BACK}",
        ),
        unexplored=UNEXPLORED,
    ),
    Place("streams", STREAM).mutant(
        "failed-requests-keep-the-store",
        "a request that failed in the store counts as one that waits for it",
        Edit(
            "RequestStream._issue",
            "try:\n    begun.set()\n    await item.issue()\n"
            "finally:\n    share.shares.store_waits.give_back(share.caller)",
            "begun.set()\nawait item.issue()\nshare.shares.store_waits.give_back(share.caller)",
        ),
        unexplored=UNEXPLORED,
    ),
    Place("streams", STREAM).mutant(
        "failed-requests-hold-ids",
        "the ids of requests that failed count to those that may wait",
        Edit(
            "RequestStream._put",
            "0 if item.error else min(max(item.request.id_count, 1), self.ranges.max_ids)",
            "min(max(item.request.id_count, 1), self.ranges.max_ids)",
        ),
        unexplored=UNEXPLORED,
    ),
    Place("P9", STREAM).mutant(
        "expired-ids-are-burned-twice",
        "ids of an expired lease are counted again if the error cannot be written",
        Edit(
            "RequestStream._write",
            "if not response.HasField('error'):\n    item.burn(BurnCause.CANCELLED)",
            "item.burn(BurnCause.CANCELLED)",
        ),
        unexplored="no lease expires in its streams",
    ),
    Place("streams", STREAM).mutant(
        "cancelled-write-is-an-idle-stream",
        "a call that ends in a write counts as a client that left an idle stream",
        Edit(
            "RequestStream._write",
            "response.number = request.number",
            "response.number = request.number\nself._unanswered -= 1",
        ),
        Edit("RequestStream._write", f"self._unanswered -= 1\n{GIVE_BACK}", GIVE_BACK),
        unexplored=UNEXPLORED,
    ),
)
