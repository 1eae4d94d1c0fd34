"""Write the files of deploy/ that derive from other ones: `make derived-files`.

Envoy's configurations are those of deploy/envoy with the lines that differ: compose has no TLS; the
chart's are templates with its values. The chart's alerts and its dashboard are copies: a chart
reads its own folder only.
"""

from collections.abc import Iterator
from pathlib import Path

DEPLOY = Path(__file__).parents[1] / "deploy"
CHART = "helm/idalloc/files"
_COPIED = ("prometheus/alerts.yaml", "grafana/idalloc.json")
_SECOND_SERVER = (
    "              # A second server, for restarts without failed calls.\n"
    "              - endpoint: { address: { pipe: { path: /run/idalloc/two.sock } } }\n"
)
_LAST_KNOWN = '              - { address_prefix: "::1", prefix_len: 128 }\n'
_KNOWN_VALUES = """\
{{- range .Values.envoy.knownNetworks }}
              - { address_prefix: {{ (split "/" .)._0 | quote }}, prefix_len: {{ (split "/" .)._1 }} }
{{- end }}
"""
_CLIENT_CERTIFICATES = (
    "                validation_context_sds_secret_config:\n"
    "                  name: clients\n"
    "                  sds_config: { path_config_source: { path: /etc/idalloc/envoy-client-authorities.yaml } }\n"
)
# The names of deploy/envoy, and those of the chart's mounts and secrets.
_CHART_NAMES = {
    "/etc/idalloc/envoy": "/etc/idalloc/envoy/envoy",
    "server.pem": "tls.crt",
    "server.key": "tls.key",
    "ca.pem": "ca.crt",
}


def derived() -> Iterator[tuple[Path, str]]:
    """Yield each derived file and its text."""
    for name in _COPIED:
        source = DEPLOY / name
        yield DEPLOY / CHART / source.name, source.read_text()
    yield from _envoy()


def _envoy() -> Iterator[tuple[Path, str]]:
    source = {file.name: file.read_text() for file in sorted((DEPLOY / "envoy").glob("*.yaml"))}
    text = source.pop("envoy.yaml")
    body = _replace(text, _SECOND_SERVER, "")
    yield DEPLOY / "compose/envoy.yaml", _header("compose/compose.yaml, without TLS", _without_tls(body))
    yield DEPLOY / CHART / "envoy.yaml", _header("the Helm chart", _chart(body))
    for name, secret in source.items():
        yield DEPLOY / CHART / name, _rename(secret)


def _replace(text: str, before: str, after: str, count: int = 1) -> str:
    if text.count(before) != count:
        raise ValueError(f"deploy/envoy/envoy.yaml must have this {count} times, not {text.count(before)}: {before}")
    return text.replace(before, after)


def _header(user: str, text: str) -> str:
    """Return the text with a comment of its own instead of the first one."""
    body = text[text.index("node:") :]
    return f"# Envoy in {user}: `make derived-files` writes it from deploy/envoy/envoy.yaml.\n{body}"


def _tls_blocks(text: str) -> list[str]:
    """Return the lines of both filter chains that end and describe handshakes."""
    first = text.index("          transport_socket_connect_timeout")
    second = text.index("          transport_socket_connect_timeout", first + 1)
    return [
        text[first : text.index("          filters:", first)],
        text[second : text.index("          # Both filters", second)],
    ]


def _without_tls(text: str) -> str:
    for block in _tls_blocks(text):
        text = _replace(text, block, "")
    return text


def _chart(text: str) -> str:
    for block in _tls_blocks(text):
        text = _replace(text, block, f"{{{{- if .Values.tls.secretName }}}}\n{block}{{{{- end }}}}\n")
    text = _replace(
        text,
        "require_client_certificate: true # false: clients need a token only.",
        "require_client_certificate: {{ .Values.tls.clientCertificates }}",
    )
    text = _replace(
        text,
        _CLIENT_CERTIFICATES,
        f"{{{{- if .Values.tls.clientCertificates }}}}\n{_CLIENT_CERTIFICATES}{{{{- end }}}}\n",
    )
    return _rename(_replace(text, _LAST_KNOWN, _LAST_KNOWN + _KNOWN_VALUES))


def _rename(text: str) -> str:
    for before, after in _CHART_NAMES.items():
        text = text.replace(before, after)
    return text


def main() -> None:
    """Write the files."""
    for file, text in derived():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
