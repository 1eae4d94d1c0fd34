"""A real OpenSearch node with its security plugin: TLS, users and roles."""

import base64
import json
import shutil
import ssl
import urllib.request
from collections.abc import Collection
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509

from tests.support.certificates import Certificates, issue
from tests.support.opensearch.real import SECURED, START_SECONDS, OpenSearchNode, prepared
from tests.support.waiting import wait_until

USER, PASSWORD = "idalloc", "a-Long-enough-passw0rd/@:%"
JWT_KEY = b"a key of sixty-four bytes, which HMAC with SHA-512 needs at least"
# The only one in the plugin's own users.
_ADMIN = "admin:admin"
_API = "/_plugins/_security"
_LAYERS = ("transport", "http")
_TOKENS = {"signing_key": base64.b64encode(JWT_KEY).decode(), "roles_key": "roles"}
_AUTHENTICATION = {
    "jwt": {
        "http_enabled": True,
        "order": 0,
        "http_authenticator": {"type": "jwt", "challenge": False, "config": _TOKENS},
        "authentication_backend": {"type": "noop"},
    },
    "basic": {
        "http_enabled": True,
        "order": 1,
        "http_authenticator": {"type": "basic", "challenge": True},
        "authentication_backend": {"type": "intern"},
    },
}
_CONFIG: dict[str, dict[str, object]] = {
    "roles_mapping": {"all_access": {"backend_roles": ["admin"]}},
    "config": {"config": {"dynamic": {"authc": _AUTHENTICATION}}},
}


class SecuredNode(OpenSearchNode):
    """A running node, as a context manager that stops it; without users but the administrator.

    Args:
        home: A folder for its data and its configuration.
    """

    def __init__(self, home: Path) -> None:
        config = home / "config"
        config.mkdir(parents=True)
        self.certificates = Certificates(home)  # the CA of the node's certificate
        node = issue(self.certificates.authority, x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1")))
        (config / "node.pem").write_bytes(node.cert)
        (config / "node.key").write_bytes(node.key)
        shutil.copy(self.certificates.ca, config / "ca.pem")
        files = {"pemcert": "node.pem", "pemkey": "node.key", "pemtrustedcas": "ca.pem"}
        settings = {f"ssl.{layer}.{name}_filepath": file for layer in _LAYERS for name, file in files.items()}
        settings |= {"ssl.http.enabled": "true", "ssl.transport.enforce_hostname_verification": "false"}
        settings |= {"allow_default_init_securityindex": "true", "restapi.roles_enabled.0": "all_access"}
        named = {f"plugins.security.{name}": value for name, value in settings.items()}
        super().__init__(SECURED, home, **{"discovery.type": "single-node"}, **named)
        self._config = config / "opensearch-security"

    def start(self) -> None:
        """Start the process, with the plugin's own configuration but for its users' roles and
        their credentials.
        """
        shutil.copytree(prepared(SECURED) / "plugin" / "config", self._config, dirs_exist_ok=True)
        for name, content in _CONFIG.items():
            kind = {"type": name.replace("_", ""), "config_version": 2}
            (self._config / f"{name}.yml").write_text(json.dumps({"_meta": kind, **content}))
        super().start()

    def wait_for_ports(self) -> None:
        """Wait until the node serves and has loaded its users."""
        super().wait_for_ports()
        wait_until(self._has_users, "the security plugin starts", START_SECONDS)

    def grant(self, cluster: Collection[str], index: Collection[str], patterns: Collection[str] = ("*",)) -> None:
        """Give the user exactly these permissions, in place of the earlier ones."""
        permissions = {"index_patterns": [*patterns], "allowed_actions": [*index]}
        self.put_role({"cluster_permissions": [*cluster], "index_permissions": [permissions]})

    def put_role(self, role: dict[str, Any], password: str = PASSWORD) -> None:
        """Give the user exactly this role."""
        self._put(f"roles/{USER}", role)
        self._put(f"internalusers/{USER}", {"password": password, "opendistro_security_roles": [USER]})

    def map_role(self, backend_role: str) -> None:
        """Give the user's role to all who have a role of a token."""
        self._put(f"rolesmapping/{USER}", {"backend_roles": [backend_role]})

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request as the administrator, and return the answer."""
        content = None if body is None else json.dumps(body).encode()
        header = f"Basic {base64.b64encode(_ADMIN.encode()).decode()}"
        headers = {"Authorization": header, "Content-Type": "application/json"}
        sent = urllib.request.Request(f"https://{self.host}{path}", method=method, data=content, headers=headers)
        trusted = ssl.create_default_context(cafile=self.certificates.ca)
        with urllib.request.urlopen(sent, timeout=30, context=trusted) as answer:
            return json.load(answer)

    def _put(self, path: str, body: object) -> None:
        self.request("PUT", f"{_API}/api/{path}", body)

    def _has_users(self) -> bool:
        try:
            is_up = self.request("GET", f"{_API}/health")["status"] == "UP"
            return is_up and bool(self.request("GET", f"{_API}/api/internalusers/admin"))
        except OSError:
            return False
