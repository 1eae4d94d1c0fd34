"""The address of a call's peer, also behind a proxy on the server's Unix socket."""

from ipaddress import ip_address

from idalloc_server.auth.call_types import Context, MetadataReader

# The header whose last address is the proxy's peer. Clients can send it, too.
PROXY_HEADER = "x-forwarded-for"


def proxied_peer(metadata_of: MetadataReader, context: Context) -> str:
    """Return a peer's address from the proxy's header, for a call over a Unix socket.

    The proxy appends the address of its own peer, so the last address of the last header is the
    proxy's, whatever the client sent. A call without a valid address keeps the peer of its
    connection.
    """
    peer = context.peer()
    if not peer.startswith("unix:"):
        return peer
    forwarded = [value for key, value in metadata_of(context) if key == PROXY_HEADER]
    try:
        address = ip_address(str(forwarded[-1]).rpartition(",")[2].strip())
    except (IndexError, ValueError):
        return peer
    return f"ipv4:{address}" if address.version == 4 else f"ipv6:[{address}]"
