package io.idalloc.client;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.NameResolverRegistry;
import io.grpc.Status;
import io.grpc.StatusOr;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Targets: a list of addresses, or a target of gRPC. */
final class Targets {
  private static final Pattern ADDRESS = Pattern.compile("(\\[[0-9a-fA-F:.%]+]|[^\\s:/,]+):(\\d+)");
  private static final Pattern OF_GRPC = Pattern.compile("(dns|unix|unix-abstract|xds|vsock):.*");
  private static final Set<String> LOOPBACK = Set.of("localhost", "[::1]");

  static {
    NameResolverRegistry.getDefaultRegistry().register(new Lists());
  }

  private Targets() {}

  /**
   * Returns a target as gRPC writes it. The names of a list are looked up again when a connection
   * fails.
   */
  static String parse(String target) {
    if (OF_GRPC.matcher(target).matches()) {
      return target;
    }
    String list = target.replaceFirst("^ipv[46]:", "");
    addresses(list);
    try {
      return new URI(Lists.SCHEME, "", "/" + list.replace(" ", ""), null).toString();
    } catch (URISyntaxException e) {
      throw notAnAddress(list);
    }
  }

  /** Whether all addresses of a target are of this machine. */
  static boolean isLocal(String target) {
    if (target.startsWith("unix")) {
      return true;
    }
    String list = URI.create(target).getPath().replaceFirst("^.*/", "");
    return addresses(list).stream()
        .map(InetSocketAddress::getHostString)
        .allMatch(host -> LOOPBACK.contains(host) || host.startsWith("127."));
  }

  private static List<InetSocketAddress> addresses(String list) {
    List<InetSocketAddress> found = new ArrayList<>();
    for (String each : list.split(",")) {
      Matcher matcher = ADDRESS.matcher(each.strip());
      if (!matcher.matches() || matcher.group(2).length() > 5) {
        throw notAnAddress(list);
      }
      int port = Integer.parseInt(matcher.group(2));
      if (port < 1 || port > 65_535) {
        throw notAnAddress(list);
      }
      found.add(InetSocketAddress.createUnresolved(matcher.group(1), port));
    }
    return found;
  }

  private static IdallocException notAnAddress(String list) {
    return IdallocException.invalid(
        "target", "expected HOST:PORT, or several with commas, not '" + list + "'");
  }

  /** Resolves a list to its addresses. */
  private static final class Lists extends NameResolverProvider {
    static final String SCHEME = "idalloc";

    @Override
    public NameResolver newNameResolver(URI target, NameResolver.Args args) {
      if (!SCHEME.equals(target.getScheme())) {
        return null;
      }
      return new Resolver(addresses(target.getPath().substring(1)), args);
    }

    @Override
    protected boolean isAvailable() {
      return true;
    }

    @Override
    protected int priority() {
      return 5;
    }

    @Override
    public String getDefaultScheme() {
      return SCHEME;
    }

    @Override
    public Collection<Class<? extends SocketAddress>> getProducedSocketAddressTypes() {
      return Set.of(InetSocketAddress.class);
    }
  }

  private static final class Resolver extends NameResolver {
    private final List<InetSocketAddress> addresses;
    private final NameResolver.Args args;
    private Listener2 listener;

    Resolver(List<InetSocketAddress> addresses, NameResolver.Args args) {
      this.addresses = addresses;
      this.args = args;
    }

    @Override
    public String getServiceAuthority() {
      return addresses.get(0).getHostString();
    }

    @Override
    public void start(Listener2 listener) {
      this.listener = listener;
      refresh();
    }

    @Override
    public void refresh() {
      args.getOffloadExecutor()
          .execute(
              () -> {
                ResolutionResult found =
                    ResolutionResult.newBuilder().setAddressesOrError(look()).build();
                args.getSynchronizationContext().execute(() -> listener.onResult2(found));
              });
    }

    /** Returns the addresses of all names that have one. */
    private StatusOr<List<EquivalentAddressGroup>> look() {
      List<EquivalentAddressGroup> groups = new ArrayList<>();
      String unknown = "";
      for (InetSocketAddress each : addresses) {
        String host = each.getHostString();
        String bare = host.startsWith("[") ? host.substring(1, host.length() - 1) : host;
        // The name in the certificate is that of the address.
        Attributes attributes =
            Attributes.newBuilder()
                .set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, host + ":" + each.getPort())
                .build();
        try {
          for (InetAddress found : InetAddress.getAllByName(bare)) {
            SocketAddress connected = new InetSocketAddress(found, each.getPort());
            groups.add(new EquivalentAddressGroup(connected, attributes));
          }
        } catch (UnknownHostException e) {
          unknown = host;
        }
      }
      return groups.isEmpty()
          ? StatusOr.fromStatus(
              Status.UNAVAILABLE.withDescription("the name " + unknown + " has no address"))
          : StatusOr.fromValue(groups);
    }

    @Override
    public void shutdown() {}
  }
}
