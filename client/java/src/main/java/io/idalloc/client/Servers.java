package io.idalloc.client;

import com.google.protobuf.Empty;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.protobuf.ProtoUtils;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.BiFunction;
import java.util.function.Supplier;

/** The servers of a target: connections and states. Threads share it. */
final class Servers {
  private static final long MIN_LOOKUP_INTERVAL = Duration.ofSeconds(2).toNanos();
  private static final long MAX_PROBE_SECONDS = 10; // one over a connection that was replaced must end
  private static final Set<Status.Code> NO_ANSWER =
      Set.of(Status.Code.UNAVAILABLE, Status.Code.CANCELLED, Status.Code.DEADLINE_EXCEEDED);
  // The request has no fields, and those of the reply do not matter.
  private static final MethodDescriptor<Empty, Empty> PROBE =
      MethodDescriptor.<Empty, Empty>newBuilder()
          .setType(MethodDescriptor.MethodType.UNARY)
          .setFullMethodName("grpc.health.v1.Health/Check")
          .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
          .setResponseMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
          .build();

  private final List<Targets.Address> target;
  private final Targets.Lookup lookup;
  private final Supplier<ChannelCredentials> credentials;
  private final BiFunction<Targets.Address, ChannelCredentials, ManagedChannel> connector;
  private final Clock clock = Clock.SYSTEM;
  // The monitor guards what follows.
  private volatile List<Server> servers;
  private int turn;
  private long lastLookup = clock.nanos() - MIN_LOOKUP_INTERVAL;
  private boolean isLookupDue = true;
  private volatile boolean isClosed;

  /** Returns the servers of a target; credentials are others when their files have changed. */
  Servers(
      List<Targets.Address> target,
      Targets.Lookup lookup,
      Supplier<ChannelCredentials> credentials,
      BiFunction<Targets.Address, ChannelCredentials, ManagedChannel> connector) {
    this.target = target;
    this.lookup = lookup;
    this.credentials = credentials;
    this.connector = connector;
    this.servers = target.stream().distinct().map(Server::new).toList();
    servers.forEach(Server::channel); // it connects at the first call
  }

  /** Returns a channel of the program as the only server. */
  Servers(Channel channel) {
    this(List.of(), null, () -> null, null);
    Server server = new Server(null);
    server.channel = channel;
    servers = List.of(server);
  }

  /** Returns a usable server that was not asked, in turn, or the next best one. */
  synchronized Server pick(Set<Server> asked) {
    lookUp();
    servers.forEach(Server::recover);
    List<Server> inTurn = new ArrayList<>(servers);
    Collections.rotate(inTurn, turn--);
    return inTurn.stream().min(Comparator.comparing(each -> rank(each, asked))).orElseThrow();
  }

  private static int rank(Server server, Set<Server> asked) {
    return (asked.contains(server) ? 2 : 0) + (server.isSuspect ? 1 : 0);
  }

  boolean hasUsable(Set<Server> asked) {
    return servers.stream().anyMatch(each -> rank(each, asked) == 0);
  }

  /** As {@code pick}; the other server of a single address is a new connection to it. */
  synchronized Server other(Set<Server> asked) {
    Server found = pick(asked);
    boolean isSingle = servers.stream().map(each -> each.address).distinct().count() == 1;
    if (isSingle && rank(found, asked) > 0 && found.address != null) {
      found = new Server(found.address);
      replace(List.of(servers.get(servers.size() - 1), found));
    }
    return found;
  }

  /** Calls that are under way end on the connections of the servers that are left out. */
  private void replace(List<Server> remaining) {
    servers.stream().filter(each -> !remaining.contains(each)).forEach(Server::retire);
    servers = remaining;
  }

  /** Begins to look the names up: at the first call, and if a server has become suspect. */
  private void lookUp() {
    if (isLookupDue && !isClosed && clock.nanos() - lastLookup >= MIN_LOOKUP_INTERVAL) {
      isLookupDue = false;
      lastLookup = clock.nanos();
      if (target.stream().anyMatch(Targets.Address::isName)) {
        Thread thread = new Thread(this::findServers, "idalloc-lookup");
        thread.setDaemon(true);
        thread.start();
      }
    }
  }

  private void findServers() {
    List<Targets.Address> found = new ArrayList<>();
    try {
      for (Targets.Address each : target) {
        found.addAll(each.resolve(lookup));
      }
    } catch (UnknownHostException e) {
      return; // the servers of the last lookup may still be right
    }
    synchronized (this) {
      Map<Targets.Address, Server> known = new HashMap<>();
      servers.forEach(each -> known.putIfAbsent(each.address, each));
      if (!isClosed && !known.keySet().equals(Set.copyOf(found))) {
        replace(found.stream().distinct().map(each -> known.getOrDefault(each, new Server(each))).toList());
      }
    }
  }

  /** Ends all connections, but not that of a channel of the program. */
  synchronized void close() {
    isClosed = true;
    servers.stream()
        .filter(each -> each.address != null)
        .forEach(each -> ((ManagedChannel) each.channel()).shutdownNow());
  }

  /** One address, or one of several connections to it. */
  final class Server {
    private final Targets.Address address; // null for a channel of the program
    private Channel channel; // null before the first call
    private ChannelCredentials used;
    private volatile boolean isSuspect;
    private Rounds.Backoff backoff; // of a suspect server
    private long recoverAt;
    private CompletableFuture<Boolean> probe = CompletableFuture.completedFuture(false); // the last
    private boolean isRetired;

    private Server(Targets.Address address) {
      this.address = address;
    }

    /** Returns the connection: a new one if the files of its credentials have changed. */
    Channel channel() {
      ChannelCredentials current = credentials.get();
      synchronized (Servers.this) {
        if (channel == null || address != null && !isRetired && used != current) {
          disconnect();
          channel = connector.apply(address, current);
          used = current;
        }
        return channel;
      }
    }

    private void retire() {
      isRetired = true;
      disconnect();
    }

    private void disconnect() {
      if (channel instanceof ManagedChannel connection) {
        connection.shutdown();
      }
    }

    /** Returns whether the server answers a probe; one that is under way serves all callers. */
    CompletableFuture<Boolean> probe(Channel over) {
      CallOptions options =
          CallOptions.DEFAULT
              .withWaitForReady()
              .withDeadlineAfter(MAX_PROBE_SECONDS, TimeUnit.SECONDS);
      synchronized (Servers.this) {
        if (probe.isDone()) {
          // Not in a caller's context, whose end would cancel the probe of all.
          Context.ROOT.run(
              () ->
                  probe =
                      Calls.send(over.newCall(PROBE, options), Empty.getDefaultInstance())
                          .handle((reply, error) -> probed(error)));
        }
        return probe;
      }
    }

    private boolean probed(Throwable error) {
      if (error != null && NO_ANSWER.contains(Status.fromThrowable(error).getCode())) {
        return false;
      }
      isSuspect = false;
      return true;
    }

    /** Makes the server suspect until a probe is answered, which later calls send. */
    void suspect() {
      synchronized (Servers.this) {
        if (!isSuspect) {
          isSuspect = true;
          isLookupDue = true;
          backoff = new Rounds.Backoff();
          recoverAt = clock.nanos();
        }
      }
    }

    /** Connects, as gRPC's own backoff grows to two minutes, and sends a probe if none is sent. */
    private void recover() {
      if (isSuspect && clock.nanos() >= recoverAt) {
        recoverAt = clock.nanos() + backoff.step();
        Channel current = channel();
        if (current instanceof ManagedChannel connection) {
          connection.resetConnectBackoff();
        }
        probe(current);
      }
    }
  }
}
