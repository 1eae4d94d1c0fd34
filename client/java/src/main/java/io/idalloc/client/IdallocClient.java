package io.idalloc.client;

import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptor;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.idalloc.v1.AllocateRangeResult;
import io.idalloc.v1.BatchAllocateRangesRequest;
import io.idalloc.v1.BatchAllocateRangesResponse;
import io.idalloc.v1.DocIdView;
import io.idalloc.v1.IdAllocatorServiceGrpc;
import io.idalloc.v1.StreamDocIdsRequest;
import io.idalloc.v1.StreamDocIdsResponse;
import io.idalloc.v1.StreamRangesRequest;
import io.idalloc.v1.StreamRangesResponse;
import java.net.InetAddress;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * A connection to the servers of one store. Build one, and share it: threads may call all methods
 * concurrently.
 *
 * <p>The client itself retries, and gRPC does not. It asks another server if one is unavailable or
 * hangs; a unary call that no server answers is repeated in five rounds, which take about 1.5 s, and
 * within its timeout. Pools wait 10 s, or the time that their caller gives; streams continue over an
 * outage of up to 60 s. A client uses no proxy of the JVM or the environment.
 *
 * <p>Each blocking method has a twin that ends in {@code Async}. The cancellation of its future
 * cancels the call; an error of it is an {@link IdallocException}. Functions of a future run on
 * threads of a {@link java.util.concurrent.ForkJoinPool} of this package, and may wait for other
 * calls. An interrupt ends a blocking call with the reason {@link Reason#CANCELLED}, and stays set.
 */
public final class IdallocClient implements AutoCloseable {
  final Calls calls;

  private IdallocClient(Calls calls) {
    this.calls = calls;
  }

  /**
   * Returns a builder of a client of the servers at a target.
   *
   * @param target {@code host:50051}, several of them with commas, or a target of gRPC, such as
   *     {@code dns://10.0.0.53/idalloc:50051}; calls alternate between all addresses of a target, and
   *     of a name that has several of one family (IPv4, if it has such)
   * @return the builder
   */
  public static Builder builder(String target) {
    return new Builder(target);
  }

  /**
   * Returns a client that uses an existing channel, which {@code close} leaves open. The channel is
   * one server to the client, and must not retry by itself. The timeout of a unary call is 5 s.
   *
   * @param channel the channel
   * @return the client
   */
  public static IdallocClient fromChannel(Channel channel) {
    return new IdallocClient(
        new Calls(new Servers(channel), "", null, Builder.DEFAULT_TIMEOUT, event -> {}));
  }

  /**
   * Allocates a range.
   *
   * @param sequence the name of the sequence
   * @param count how many ids: 1 to the server's {@code max_ids_per_call} (default 1,000,000)
   * @return the range
   * @throws IdallocException the call failed
   */
  public AllocatedRange allocateRange(String sequence, long count) {
    return allocateRange(RangeRequest.of(sequence, count));
  }

  /**
   * Allocates a range. A retry takes new ids, unless the request has a request id.
   *
   * @param request the request
   * @return the range
   * @throws IdallocException the call failed
   */
  public AllocatedRange allocateRange(RangeRequest request) {
    return Calls.await(allocate(request, repeat(request)));
  }

  /**
   * As {@link #allocateRange(String, long)}.
   *
   * @param sequence the name of the sequence
   * @param count how many ids
   * @return the range
   */
  public CompletableFuture<AllocatedRange> allocateRangeAsync(String sequence, long count) {
    return allocateRangeAsync(RangeRequest.of(sequence, count));
  }

  /**
   * As {@link #allocateRange(RangeRequest)}.
   *
   * @param request the request
   * @return the range
   */
  public CompletableFuture<AllocatedRange> allocateRangeAsync(RangeRequest request) {
    return Calls.handOver(allocate(request, repeat(request)));
  }

  private static Calls.Repeat repeat(RangeRequest request) {
    return request.requestId().isPresent() ? Calls.Repeat.SAME_IDS : Calls.Repeat.NEVER;
  }

  private CompletableFuture<AllocatedRange> allocate(RangeRequest request, Calls.Repeat repeat) {
    return calls.unary(
        new Calls.Unary<>(
            IdAllocatorServiceGrpc.getAllocateRangeMethod(),
            request.sequence(),
            () -> Replies.message(request),
            reply -> Replies.range(reply, request),
            AllocatedRange::count),
        repeat);
  }

  /**
   * Allocates ranges of several sequences in one call.
   *
   * @param requests 1 to 1,000 requests without texts and request ids
   * @return a range or an error for each request, in their order
   * @throws IdallocException the whole call failed
   */
  public List<RangeResult> batchAllocateRanges(List<RangeRequest> requests) {
    return Calls.await(batchAllocateRangesAsync(requests));
  }

  /**
   * As {@link #batchAllocateRanges}.
   *
   * @param requests the requests
   * @return the results
   */
  public CompletableFuture<List<RangeResult>> batchAllocateRangesAsync(
      List<RangeRequest> requests) {
    return Calls.handOver(
        calls.unary(
            new Calls.Unary<>(
                IdAllocatorServiceGrpc.getBatchAllocateRangesMethod(),
                "",
                () -> batch(requests),
                reply -> results(reply, requests),
                results ->
                    results.stream()
                        .flatMap(each -> each.range().stream())
                        .mapToLong(AllocatedRange::count)
                        .sum()),
            Calls.Repeat.NEVER));
  }

  private static BatchAllocateRangesRequest batch(List<RangeRequest> requests) {
    BatchAllocateRangesRequest.Builder batch = BatchAllocateRangesRequest.newBuilder();
    for (RangeRequest each : requests) {
      if (each.withTexts() || each.requestId().isPresent()) {
        throw IdallocException.invalid("requests", "a batch has no texts and no request ids");
      }
      batch.addRequests(Replies.message(each));
    }
    return batch.build();
  }

  private static List<RangeResult> results(
      BatchAllocateRangesResponse reply, List<RangeRequest> requests) {
    if (reply.getResultsCount() != requests.size()) {
      throw IdallocException.invalidReply(
          "results has " + reply.getResultsCount() + " items; expected " + requests.size());
    }
    List<RangeResult> results = new ArrayList<>(requests.size());
    Map<List<String>, List<AllocatedRange>> taken = new HashMap<>(); // by sequence and period
    for (int i = 0; i < requests.size(); i++) {
      AllocateRangeResult each = reply.getResults(i);
      if (each.getError().getCode() != 0) {
        results.add(RangeResult.of(IdallocException.of(each.getError())));
        continue;
      }
      RangeRequest request = requests.get(i);
      AllocatedRange range = Replies.range(each.getResponse(), request);
      List<String> counter = List.of(request.sequence(), range.period());
      taken.computeIfAbsent(counter, key -> new ArrayList<>()).add(range);
      results.add(RangeResult.of(range));
    }
    taken.values().forEach(Replies::checkDisjoint);
    return List.copyOf(results);
  }

  /**
   * Allocates any number of ids, in ranges. Each is allocated when it is read. If the stream
   * breaks, for example when a server restarts, the client requests the missing ids.
   *
   * @param sequence the name of the sequence
   * @param total how many ids
   * @param chunk how many ids a range has, or 0 for the server's default; after a break one may be
   *     shorter
   * @return the ranges; close it
   */
  public IdStream<AllocatedRange> streamRanges(String sequence, long total, long chunk) {
    return streamRanges(sequence, total, chunk, false);
  }

  /**
   * As {@link #streamRanges(String, long, long)}, also with the ids as texts.
   *
   * @param sequence the name of the sequence
   * @param total how many ids
   * @param chunk how many ids a range has, at most 10,000, or 0 for the server's default
   * @return the ranges; close it
   */
  public IdStream<AllocatedRange> streamTexts(String sequence, long total, long chunk) {
    return streamRanges(sequence, total, chunk, true);
  }

  private IdStream<AllocatedRange> streamRanges(
      String sequence, long total, long chunk, boolean withTexts) {
    Replies.checkName(sequence);
    checkSizes(total, chunk);
    return new IdStream<AllocatedRange>(
        calls,
        new IdStream.Source<StreamRangesRequest, StreamRangesResponse, AllocatedRange>(
            IdAllocatorServiceGrpc.getStreamRangesMethod(),
            sequence,
            missing ->
                StreamRangesRequest.newBuilder()
                    .setSequence(sequence)
                    .setTotalIdCount(missing)
                    .setChunkIdCount(chunk)
                    .setView(Replies.view(withTexts))
                    .build(),
            (message, least, most, before) ->
                Replies.inOrder(
                    before, Replies.range(Replies.reply(message), least, most, withTexts)),
            AllocatedRange::count),
        total,
        chunk);
  }

  /**
   * Generates document ids in MySQL's format.
   *
   * @param count how many: 1 to the server's {@code max_ids_per_call} (default 1,000,000)
   * @return the ids
   * @throws IdallocException the call failed
   */
  public List<String> generateDocIds(long count) {
    return Calls.await(generateDocIdsAsync(count));
  }

  /**
   * As {@link #generateDocIds}.
   *
   * @param count how many
   * @return the ids
   */
  public CompletableFuture<List<String>> generateDocIdsAsync(long count) {
    return Calls.handOver(
        calls.unary(
            new Calls.Unary<>(
                IdAllocatorServiceGrpc.getGenerateDocIdMethod(),
                "",
                () -> Replies.docIdRequest(count),
                reply -> Replies.docIds(reply, count),
                List::size),
            Calls.Repeat.NEVER));
  }

  /**
   * Generates any number of document ids. It continues after a break, as {@link #streamRanges}.
   *
   * @param total how many ids
   * @param chunk how many ids a list of runs has, or 0 for the server's default
   * @return lists of runs; close it
   */
  public IdStream<List<DocIdRun>> streamDocIds(long total, long chunk) {
    checkSizes(total, chunk);
    return new IdStream<List<DocIdRun>>(
        calls,
        new IdStream.Source<StreamDocIdsRequest, StreamDocIdsResponse, List<DocIdRun>>(
            IdAllocatorServiceGrpc.getStreamDocIdsMethod(),
            "",
            missing ->
                StreamDocIdsRequest.newBuilder()
                    .setTotalIdCount(missing)
                    .setChunkIdCount(chunk)
                    .setView(DocIdView.DOC_ID_VIEW_COMPACT)
                    .build(),
            (reply, least, most, before) -> Replies.runs(reply.getRunsList(), least, most, before),
            runs -> runs.stream().mapToLong(DocIdRun::count).sum()),
        total,
        chunk);
  }

  private static void checkSizes(long total, long chunk) {
    Replies.checkCount("total_id_count", total);
    if (chunk < 0) {
      throw IdallocException.invalid("chunk_id_count", "must be at least 0, not " + chunk);
    }
  }

  /**
   * Returns a stream for many calls, which costs less than unary calls.
   *
   * @return the stream; close it
   */
  public AllocateStream allocateStream() {
    return new AllocateStream(calls, Clock.SYSTEM);
  }

  /**
   * Returns a pool of a sequence. It requests nothing before the first id is taken. Keep it: a new
   * one begins with a range of one id.
   *
   * @param sequence the name of the sequence
   * @return the pool; close it, or the client
   */
  public IdPool pool(String sequence) {
    return new IdPool(
        calls,
        Objects.requireNonNull(sequence, "sequence"),
        count -> allocate(RangeRequest.of(sequence, count), Calls.Repeat.REFILL),
        Clock.SYSTEM);
  }

  /**
   * Returns the channel, for the generated stubs of calls that this class lacks: the administration
   * of sequences, the node and UUIDs. Its calls go to the servers in turn and send the token. They
   * are not repeated, and have no deadline of their own; {@link IdallocException#of(Throwable)}
   * converts their errors.
   *
   * @return the channel
   */
  public Channel channel() {
    return calls.channel();
  }

  /** Ends all calls, pools and streams with {@link Reason#CLOSED}, and the connections. */
  @Override
  public void close() {
    calls.close();
  }

  /** The options of a client. */
  public static final class Builder {
    static final Duration DEFAULT_TIMEOUT = Duration.ofSeconds(5);
    // A server allows a ping each 20 s.
    private static final Duration KEEPALIVE = Duration.ofSeconds(30);
    private static final Duration KEEPALIVE_TIMEOUT = Duration.ofSeconds(8);

    private final String target;
    private boolean hasTls;
    private Path ca;
    private Path certificate;
    private Path key;
    private String serverName;
    private Reloaded<String> token;
    private boolean isTokenInPlaintext;
    private Duration timeout = DEFAULT_TIMEOUT;
    private Consumer<CallEvent> observer = event -> {};
    private final List<ClientInterceptor> interceptors = new ArrayList<>();

    private Builder(String target) {
      this.target = target;
    }

    /**
     * Encrypts connections, and trusts the CAs of the JVM.
     *
     * @return this
     */
    public Builder tls() {
      hasTls = true;
      return this;
    }

    /**
     * Encrypts connections, and trusts the CAs of a file. Files of TLS are read again after a
     * second; after a change, new calls use a new connection.
     *
     * @param ca certificates in PEM
     * @return this
     */
    public Builder tls(Path ca) {
      this.ca = ca;
      return tls();
    }

    /**
     * Presents a client certificate.
     *
     * @param certificate the certificate chain in PEM
     * @param key the private key in PEM (PKCS #8, or PKCS #1 of RSA), not encrypted
     * @return this
     */
    public Builder clientCertificate(Path certificate, Path key) {
      this.certificate = certificate;
      this.key = key;
      return tls();
    }

    /**
     * Sets the name in the server's certificate, if it is not the target's.
     *
     * @param serverName the name
     * @return this
     */
    public Builder serverName(String serverName) {
      this.serverName = serverName;
      return this;
    }

    /**
     * Sends a token with each call. Without TLS it is sent to this machine only; see {@link
     * #tokenInPlaintext}.
     *
     * @param token the token
     * @return this
     * @throws IdallocException {@link Reason#INVALID_CONFIG}: it is not a token
     */
    public Builder token(String token) {
      this.token = Token.ofText(token);
      return this;
    }

    /**
     * Sends the token in a file. The file is read again after a second, and when a server rejects
     * its token: the call is then repeated once with the new one.
     *
     * @param file the file
     * @return this
     * @throws IdallocException {@link Reason#INVALID_CONFIG}: the file cannot be read, or has no
     *     token
     */
    public Builder tokenFile(Path file) {
      this.token = Token.ofFile(file);
      return this;
    }

    /**
     * Sends the token to other machines without TLS, too: something else must encrypt.
     *
     * @return this
     */
    public Builder tokenInPlaintext() {
      isTokenInPlaintext = true;
      return this;
    }

    /**
     * Limits each unary call, with its retries. The default is 5 s.
     *
     * @param timeout the limit
     * @return this
     */
    public Builder timeout(Duration timeout) {
      if (timeout.isNegative() || timeout.isZero()) {
        throw IdallocException.invalid("timeout", "must be more than 0, not " + timeout);
      }
      this.timeout = timeout;
      return this;
    }

    /**
     * Calls a function after each call, for metrics. It must return quickly and not use the client;
     * threads call it concurrently.
     *
     * @param observer the function
     * @return this
     */
    public Builder observer(Consumer<CallEvent> observer) {
      this.observer = observer;
      return this;
    }

    /**
     * Adds interceptors of gRPC, such as for traces.
     *
     * @param interceptors the interceptors; the last one is called first
     * @return this
     */
    public Builder intercept(ClientInterceptor... interceptors) {
      this.interceptors.addAll(List.of(interceptors));
      return this;
    }

    /**
     * Builds the client. It does not connect: the first call does.
     *
     * @return the client
     * @throws IdallocException the target has another form, or a file cannot be used, with {@link
     *     Reason#INVALID_CONFIG}
     */
    public IdallocClient build() {
      return build(InetAddress::getAllByName);
    }

    IdallocClient build(Targets.Lookup lookup) {
      List<Targets.Address> addresses = Targets.parse(target);
      boolean isLocal = addresses.stream().allMatch(Targets.Address::isLocal);
      if (token != null && !hasTls && !isTokenInPlaintext && !isLocal) {
        throw IdallocException.invalid(
            "token", "is sent to " + target + " only over TLS: call tls()");
      }
      ChannelCredentials insecure = InsecureChannelCredentials.create();
      Supplier<ChannelCredentials> credentials =
          hasTls ? new Reloaded<>(new Tls(ca, certificate, key)::read) : () -> insecure;
      List<ClientInterceptor> own = List.copyOf(interceptors);
      String name = serverName;
      Servers servers =
          new Servers(
              addresses,
              lookup,
              credentials,
              (address, current) -> connect(address, current, name == null ? address.authority() : name, own));
      return new IdallocClient(new Calls(servers, target, token, timeout, observer));
    }

    private static ManagedChannel connect(
        Targets.Address address,
        ChannelCredentials credentials,
        String authority,
        List<ClientInterceptor> interceptors) {
      try {
        ManagedChannelBuilder<?> builder =
            Grpc.newChannelBuilder(address.target(), credentials)
                .disableRetry() // the client retries
                .disableServiceConfigLookUp()
                .proxyDetector(server -> null)
                .intercept(interceptors)
                .keepAliveTime(KEEPALIVE.toNanos(), TimeUnit.NANOSECONDS)
                .keepAliveTimeout(KEEPALIVE_TIMEOUT.toNanos(), TimeUnit.NANOSECONDS);
        return (authority.isEmpty() ? builder : builder.overrideAuthority(authority)).build();
      } catch (RuntimeException e) {
        throw IdallocException.invalid("target", "cannot be used: " + e.getMessage());
      }
    }
  }
}
