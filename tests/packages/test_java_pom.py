"""The Maven project of the Java client, without a build. Its consumers: test_java.py."""

import tomllib
from xml.etree import ElementTree

from tests.support.paths import ROOT

CLIENT = ROOT / "client/java"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
POM = {"": "http://maven.apache.org/POM/4.0.0"}
TREE = ElementTree.parse(CLIENT / "pom.xml").getroot()
DEPENDENCIES = TREE.findall("dependencies/dependency", POM)


def text(place: str, tree: ElementTree.Element = TREE) -> str:
    """Return the text of an element of the pom, or an empty text."""
    return tree.findtext(place, "", POM)


def test_the_artifact_has_the_version_of_the_project() -> None:
    """The version is written in pyproject.toml; pom.xml has the same one."""
    assert text("artifactId") == "idalloc-client"
    assert text("version") == PROJECT["version"]


def test_the_pom_has_what_maven_central_demands() -> None:
    """Name, description, address, license, developers and source are there."""
    needed = ["name", "description", "url", "licenses/license/url", "developers/developer/name", "scm/url"]
    assert [place for place in needed if not text(place)] == []
    assert text("licenses/license/name") == PROJECT["license"]
    assert text("description") == PROJECT["description"]
    assert "SNAPSHOT" not in (CLIENT / "pom.xml").read_text()


def test_the_license_is_that_of_the_project() -> None:
    """The folder has the license that goes into the jar."""
    assert (CLIENT / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert text("build/resources/resource/targetPath") == "META-INF"


def test_each_plugin_has_a_version() -> None:
    """A build does not depend on the versions that a Maven brings."""
    plugins = {text("artifactId", each): text("version", each) for each in TREE.iterfind(".//plugin", POM)}
    assert [name for name, version in plugins.items() if not version] == []
    lifecycle = {"clean", "resources", "compiler", "surefire", "jar", "source", "javadoc", "install", "deploy"}
    assert {f"maven-{name}-plugin" for name in lifecycle} <= {*plugins}


def test_no_program_compiles_against_the_transport() -> None:
    """Netty comes at run time alone; what the API shows is there at compile time."""
    scopes = {text("artifactId", each): text("scope", each) for each in DEPENDENCIES}
    compiled = {name for name, scope in scopes.items() if not scope}
    assert scopes["grpc-netty-shaded"] == "runtime"
    assert compiled == {"grpc-api", "grpc-protobuf", "grpc-stub", "protobuf-java"}


def test_the_example_has_the_clients_versions() -> None:
    """grpc, protobuf and Java of examples/java are those of the client."""
    example = ElementTree.parse(ROOT / "examples/java/pom.xml").getroot()
    for name in ("grpc.version", "protobuf.version", "maven.compiler.release"):
        assert text(f"properties/{name}", example) in {"", text(f"properties/{name}")}
    for each in example.findall("dependencies/dependency", POM):
        if text("artifactId", each) == "idalloc-client":
            assert text("version", each) == PROJECT["version"]
