package io.idalloc.client;

import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Targets: a list of addresses, or a target of gRPC. */
final class Targets {
  private static final Pattern ADDRESS = Pattern.compile("(\\[[0-9a-fA-F:.%]+]|[^\\s:/,\\[\\]]+):(\\d{1,5})");
  private static final Pattern OF_GRPC = Pattern.compile("(dns|unix|unix-abstract|xds|vsock):.*");
  private static final Pattern LITERAL = Pattern.compile("\\[.*|[0-9.]+");
  private static final Pattern LOOPBACK = Pattern.compile("localhost|\\[::1]|127\\..*");

  private Targets() {}

  /** Looks a name up. */
  interface Lookup {
    InetAddress[] addresses(String name) throws UnknownHostException;
  }

  /**
   * Where to connect.
   *
   * @param target as gRPC writes it
   * @param authority what TLS verifies; empty for gRPC's default
   * @param host a name or an address; empty if only gRPC knows it
   * @param port the port
   */
  record Address(String target, String authority, String host, int port) {
    static Address of(String host, int port, String authority) {
      try {
        String target = new URI("dns", "", "/" + host + ":" + port, null).toString();
        return new Address(target, authority, host, port);
      } catch (URISyntaxException e) {
        throw notAnAddress(host);
      }
    }

    boolean isName() {
      return !host.isEmpty() && !LITERAL.matcher(host).matches();
    }

    boolean isLocal() {
      return LOOPBACK.matcher(host).matches() || target.startsWith("unix");
    }

    /** Returns the addresses of a name if it has several of one family, or else this, for gRPC. */
    List<Address> resolve(Lookup lookup) throws UnknownHostException {
      List<InetAddress> all = isName() ? Arrays.asList(lookup.addresses(host)) : List.of();
      List<InetAddress> family = all.stream().filter(Inet4Address.class::isInstance).toList();
      family = family.isEmpty() ? all : family;
      return family.size() < 2
          ? List.of(this)
          : family.stream()
              .map(each -> each instanceof Inet4Address ? each.getHostAddress() : "[" + each.getHostAddress() + "]")
              .map(each -> of(each, port, authority))
              .toList();
    }
  }

  static List<Address> parse(String target) {
    List<Address> found = new ArrayList<>();
    for (String each : target.replaceFirst("^(ipv[46]:|dns:(///)?)", "").split(",")) {
      Matcher matcher = ADDRESS.matcher(each.strip());
      int port = matcher.matches() ? Integer.parseInt(matcher.group(2)) : 0;
      if (1 <= port && port <= 65_535) {
        found.add(Address.of(matcher.group(1), port, each.strip()));
      } else if (OF_GRPC.matcher(target).matches()) {
        return List.of(new Address(target, "", "", 0));
      } else {
        throw notAnAddress(target);
      }
    }
    return found;
  }

  private static IdallocException notAnAddress(String target) {
    return IdallocException.invalid(
        "target", "expected HOST:PORT, or several with commas, not '" + target + "'");
  }
}
