"""URLs of stores."""

import re

import pytest

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.cratedb.store import CrateStore
from idalloc_server.store.opensearch.store import OpenSearchStore
from idalloc_server.store.sqlite.store import SqliteStore
from idalloc_server.store.urls import open_store
from tests.support.fake_store import FakeClock


@pytest.mark.parametrize(
    ("url", "kind", "address"),
    [
        ("sqlite:///var/lib/idalloc/ids.db", SqliteStore, "sqlite:///var/lib/idalloc/ids.db"),
        ("sqlite:///a%20b/c%3Fd.db", SqliteStore, "sqlite:///a b/c?d.db"),
        ("sqlite:////var//lib/ids.db", SqliteStore, "sqlite:///var/lib/ids.db"),
        ("crate://localhost", CrateStore, "crate://localhost:4200/?schema=doc"),
        ("crate://localhost\n", CrateStore, "crate://localhost:4200/?schema=doc"),
        ("crate://localhost:4201/", CrateStore, "crate://localhost:4201/?schema=doc"),
        ("crate://a,b:4201,[::1],[fe80::1]:1/", CrateStore, "crate://a:4200,b:4201,[::1]:4200,[fe80::1]:1/?schema=doc"),
        (
            "crate://al%40ice:s%2Fcret@h/?schema=my-ids&tls=true",
            CrateStore,
            "crate://al@ice@h:4200/?schema=my-ids&tls=true",
        ),
        ("crate://h?schema=ids&tls=false", CrateStore, "crate://h:4200/?schema=ids"),
        ("opensearch://h", OpenSearchStore, "opensearch://h:9200/?prefix=idalloc"),
        (
            "elasticsearch://a@h,i:1/?prefix=x&tls=true",
            OpenSearchStore,
            "elasticsearch://a@h:9200,i:1/?prefix=x&tls=true",
        ),
        ("opensearch://h/?api_key=abc%3D%3D", OpenSearchStore, "opensearch://h:9200/?prefix=idalloc"),
        ("crate://h/?jwt=aaa.bbb.ccc", CrateStore, "crate://h:4200/?schema=doc"),
    ],
)
def test_valid_urls(url: str, kind: type, address: str) -> None:
    """A valid URL opens its kind of store, whose address and description have no secret."""
    store = open_store(url, FakeClock())
    assert not re.search(
        r"s/cret|YWxAaWNl|abc==|aaa\.bbb\.ccc",
        repr([store, *vars(store).values(), vars(getattr(store, "http", store))]),
    )
    assert isinstance(store, kind)
    assert store.address == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "the URL has no kind"),
        ("/var/lib/ids.db", "the URL has no kind"),
        ("sqlite:/ids.db", "the URL has no kind"),
        ("postgres://h/db", "unknown kind of store 'postgres'"),
        ("SQLITE:///a.db", "unknown kind of store 'SQLITE'"),
        ("sqlite://", "absolute path"),
        ("sqlite:///", "absolute path"),
        ("sqlite://ids.db", "absolute path"),
        ("sqlite://host/ids.db", "absolute path"),
        ("sqlite:///ids.db?mode=ro", "takes no parameters"),
        ("sqlite:///ids.db#x", "takes no parameters"),
        ("sqlite:///ids%00.db", "absolute path"),
        ("sqlite:///:memory:", "memory would lose the counters"),
        ("sqlite:///~/ids.db", "~ is not expanded"),
        ("crate://", "hosts"),
        ("crate:///?schema=doc", "hosts"),
        ("crate://h,,i/", "hosts"),
        ("crate://h:0/", "hosts"),
        ("crate://h:65536/", "hosts"),
        ("crate://h:http/", "hosts"),
        ("crate://h i/", "hosts"),
        ("crate://a,[:::]/", "hosts"),
        ("crate://[::1/", "reserved characters"),
        ("crate://h/doc", "only parameters"),
        ("crate://h/#doc", "only parameters"),
        ("crate://h/?shema=doc", "unknown parameter 'shema'; the parameters are schema, tls, ca, jwt, jwt_file"),
        ("opensearch://h/?prefix=Ids", "the parameter prefix must consist of a-z"),
        ("opensearch://h/?schema=a", "unknown parameter 'schema'; the parameters are prefix, tls"),
        ("opensearch://u:p@h/?api_key=a", "api_key and api_key_file, not api_key and a password"),
        ("opensearch://h/?api_key=a b", "the parameter api_key is not a token"),
        ("opensearch://h:0/", "the hosts of a URL of OpenSearch"),
        ("crate://h/?api_key=a", "unknown parameter 'api_key'"),
        ("crate://h/?schema=", "the parameter schema must be given once"),
        ("crate://h/?schema=a&schema=b", "the parameter schema must be given once"),
        ('crate://h/?schema=a"b', "the parameter schema must consist of letters"),
        ("crate://h/?schema=a.b", "the parameter schema must consist of letters"),
        ("crate://h/?tls=yes", "the parameter tls must be true or false"),
        ("crate://h/?tls=false&ca=/ca.pem", "the parameter tls must be true or false, and true if ca is set"),
        (
            "crate://h/?ca=/no/such/file.pem",
            "the parameter ca must be a file of certificates in PEM: /no/such/file.pem",
        ),
        ("crate://h/?jwt=a%0Ab", "the parameter jwt is not a token"),
        ("crate://h/?jwt=a b", "the parameter jwt is not a token"),
        ("crate://u:p@h/?jwt=a", "give one of a password, password_file, jwt and jwt_file, not jwt and a password"),
        ("crate://u:p@h/?password_file=/p", "not password_file and a password"),
        ("crate://u:p@h/?jwt_file=/p", "not jwt_file and a password"),
        ("crate://u@h/?jwt=a&password_file=/p", "not jwt, password_file"),
        ("crate://u@h/?jwt=a&jwt_file=/p", "not jwt, jwt_file"),
        ("crate://u@h/?password_file=/no/such", "password_file: cannot read /no/such: No such file or directory"),
        ("crate://h/?jwt_file=/", "jwt_file: cannot read /: Is a directory"),
        ("crate://h/?jwt_file=/a%00b", "jwt_file: cannot read /a"),
        ("crate://u@h/?password_file=", "the parameter password_file must be given once, with a value"),
    ],
)
def test_an_invalid_url_is_refused_with_its_rule(url: str, why: str) -> None:
    """An invalid URL is refused with the rule that it breaks, in one line."""
    with pytest.raises(StartRefused) as caught:
        open_store(url, FakeClock())
    assert caught.value.setting == "store"
    assert str(caught.value).startswith("store: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
