"""MySQL's clients for Python, Node and Java, each as the command of a driver of the scenarios."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import environments
from tests.support.paths import ROOT

_DRIVERS = Path(__file__).parent / "drivers"
_BUILD = ROOT / ".build"


def driver(client: str) -> list[str]:
    """Return the command of a client's driver; install the client, or skip the test."""
    return {"python": _python, "node": _node, "java": _java}[client]()


def _python() -> list[str]:
    return [str(environments.mysqlx_python()), str(_DRIVERS / "drive.py")]


def _node() -> list[str]:
    _need("node", "npm")
    folder = _BUILD / "xdevapi-node"
    _install("@mysql/xdevapi", folder, ["package.json", "package-lock.json"], ["npm", "ci", "--silent"])
    # It finds its package beside itself.
    return ["node", str(shutil.copy(_DRIVERS / "drive.mjs", folder))]


def _java() -> list[str]:
    _need("java", "mvn")
    folder = _BUILD / "xdevapi-java"
    copy = ["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
    _install("mysql-connector-j", folder, ["pom.xml"], copy)
    return ["java", "-cp", f"{folder / 'jars'}/*", str(_DRIVERS / "Drive.java")]


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _install(package: str, folder: Path, manifests: list[str], command: list[str]) -> None:
    """Install what the manifests name, unless the same is installed."""
    done = folder / "installed.txt"
    wanted = "".join((_DRIVERS / name).read_text() for name in manifests)
    if done.exists() and done.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in manifests:
        shutil.copy(_DRIVERS / name, folder)
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(f"{package} cannot be installed: {(answer.stderr or answer.stdout)[-300:]}")
    done.write_text(wanted)
