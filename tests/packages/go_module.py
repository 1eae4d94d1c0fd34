"""The Go client as a module proxy on disk, and programs that get it from there."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes import environment

MODULE = ROOT / "client" / "go"
TOOLS = ROOT / "scripts" / "go"


def go(folder: Path, *command: str, **variables: str) -> str:
    """Run Go in a folder, and return what it prints."""
    settings = environment() | {"GOWORK": "off"} | variables
    done = subprocess.run(["go", *command], cwd=folder, env=settings, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"go {' '.join(command)} in {folder}:\n{done.stdout}{done.stderr}"
    return done.stdout


def missing() -> str:
    """Return why the module cannot be built here, or an empty text."""
    if shutil.which("go") is None:
        return "go is not installed: client/go is not tested"
    done = subprocess.run(
        ["go", "list", "-deps", "./goproxy"], cwd=TOOLS, env=environment(), capture_output=True, text=True
    )
    return "" if done.returncode == 0 else f"client/go is not tested: {done.stderr.strip()}"


def number() -> str:
    """Return the version in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def write_proxy(proxy: Path, *flags: str, module: Path = MODULE) -> tuple[str, str]:
    """Write a module into a proxy on disk; return its path and version."""
    return run_goproxy("-version", f"v{number()}", *flags, str(module), str(proxy))


def write_release(proxy: Path, repository: Path, tag: str) -> tuple[str, str]:
    """Write the module of a repository's tag into a proxy on disk; return its path and version."""
    return run_goproxy("-tag", tag, str(repository), str(proxy))


def run_goproxy(*arguments: str) -> tuple[str, str]:
    path, _, version = go(TOOLS, "run", "./goproxy", *arguments).strip().partition("@")
    return path, version


class Consumer:
    """A program outside of the source, which gets the module from a proxy.

    Args:
        folder: Where to copy the program.
        source: The folder of the program.
        proxy: The proxy on disk.
        version: The module's version there.
    """

    def __init__(self, folder: Path, source: Path, proxy: Path, version: str) -> None:
        self.folder = folder / "consumer"
        self.path, self.version = go(MODULE, "list", "-m").strip(), version
        self._others = json.loads(go(TOOLS, "env", "-json", "GOPROXY", "GOMODCACHE"))
        self._variables = {"GOPROXY": f"file://{proxy},{self._others['GOPROXY']}", "GONOSUMDB": self.path}
        shutil.copytree(source, self.folder)
        self.go("get", f"{self.path}@{self.version}")
        self.go("mod", "tidy")

    def go(self, *command: str) -> str:
        """Run Go in the program's folder."""
        return go(self.folder, *command, **self._variables)

    def build(self, package: str = ".") -> Path:
        """Compile a package of the program."""
        program = self.folder.parent / f"consumer-{Path(package).name or 'main'}"
        self.go("build", "-mod=readonly", "-o", str(program), package)
        return program

    def forget(self) -> None:
        """Remove this version from Go's cache of modules, which others share."""
        cache = Path(self._others["GOMODCACHE"])
        sources = cache / f"{self.path}@{self.version}"
        for folder in [sources, *(each for each in sources.rglob("*") if each.is_dir())]:
            folder.chmod(0o755)  # Go's cache is read-only
        shutil.rmtree(sources)
        for file in (cache / "cache" / "download" / self.path / "@v").glob(f"{self.version}.*"):
            file.unlink()
