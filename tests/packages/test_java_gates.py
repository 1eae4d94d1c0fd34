"""The archives of the Java client, and the checks that its build makes."""

import re
import zipfile
from pathlib import Path

import pytest

from tests.packages.java_package import Sources, jdk

# With cold caches Maven downloads its plugins and the packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

# What makes each check fail: a text of a file, its replacement, and what Maven then prints.
BREAKS = {
    "japicmp": ("IdallocClient.java", "fromChannel(Channel ", "fromChannel(io.grpc.ManagedChannel ", "fromChannel("),
    "javac": (
        "Reason.java",
        "private Reason() {",
        "private Reason() { java.util.List raw = null;",
        "warnings found and -Werror specified",
    ),
    "javadoc": ("Reason.java", "private Reason() {", "public Reason() {", "no comment"),
}


@pytest.fixture(scope="module")
def other(java_sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The artifact of the same version, built in another folder."""
    made = Sources(tmp_path_factory.mktemp("java-other"), java_sources.version)
    made.build()
    return made


def names(archive: Path) -> set[str]:
    """Return the names of the files in an archive."""
    with zipfile.ZipFile(archive) as file:
        return {each.filename for each in file.infolist() if not each.is_dir()}


def test_two_builds_are_the_same_bytes(java_sources: Sources, other: Sources) -> None:
    """The repository on disk depends on the sources only, not on when or where it is built."""
    files = {each.relative_to(java_sources.repository) for each in java_sources.repository.rglob("*.*")}
    assert files == {each.relative_to(other.repository) for each in other.repository.rglob("*.*")}
    for file in (each for each in files if (other.repository / each).is_file()):
        assert (java_sources.repository / file).read_bytes() == (other.repository / file).read_bytes(), file


def test_the_repository_has_what_maven_central_demands(java_sources: Sources) -> None:
    """Each of pom, classes, sources and documentation has its checksums; there is nothing else."""
    name = f"idalloc-client-{java_sources.version}"
    files = {f"{name}{end}" for end in (".pom", ".jar", "-sources.jar", "-javadoc.jar")}
    sums = {f"{file}.{kind}" for file in files for kind in ("md5", "sha1")}
    assert {each.name for each in java_sources.repository.rglob("*.*") if each.is_file()} == files | sums


def test_the_jars_have_code_license_and_documentation(java_sources: Sources) -> None:
    """The classes are the package's and the protos'; the documentation is of the package alone."""
    jar, sources, javadoc = (java_sources.archive(kind) for kind in ("", "-sources", "-javadoc"))
    classes = {name for name in names(jar) if name.endswith(".class")}
    assert {str(Path(name).parent) for name in classes} == {
        "io/idalloc/client",
        "io/idalloc/v1",
        "io/idalloc/xprotocol/v1",
    }
    others = {name for name in names(jar) - classes if not name.startswith("META-INF/maven/")}
    assert others == {"META-INF/LICENSE", "META-INF/MANIFEST.MF"}
    with zipfile.ZipFile(jar) as file:
        manifest = file.read("META-INF/MANIFEST.MF").decode()
    assert "Automatic-Module-Name: io.idalloc.client\r\n" in manifest
    assert f"Implementation-Version: {java_sources.version}\r\n" in manifest
    assert {name.partition("$")[0].removesuffix(".class") + ".java" for name in classes} <= names(sources)
    pages = {name for name in names(javadoc) if "io/idalloc" in name}
    assert any(name.endswith("io/idalloc/client/IdallocClient.html") for name in pages)
    assert [name for name in pages if "io/idalloc/client/" not in name] == []


@pytest.mark.parametrize("version", [17, 25])
def test_the_packages_own_tests_pass(version: int, other: Sources) -> None:
    """The classes for Java 17 pass their tests on the oldest and on the newest supported JDK."""
    printed = other.maven("test", f"-Djvm={jdk(version)}/bin/java")
    [count] = re.findall(r"Tests run: (\d+), Failures: 0, Errors: 0, Skipped: 0\n", printed)
    assert int(count) > 20


@pytest.mark.parametrize("check", BREAKS)
def test_a_planted_break_fails(check: str, other: Sources) -> None:
    """The build finds what was broken on purpose in a copy; `make baseline` accepts it."""
    file, old, new, found = BREAKS[check]
    other.change(file, old, new)
    goals = ["clean", "verify", "-DskipTests", *([] if check == "javadoc" else ["-Dmaven.javadoc.skip"])]
    assert found in other.maven(*goals, fails=True)
    other.change(file, old, old)
