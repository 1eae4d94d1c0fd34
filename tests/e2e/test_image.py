"""The container image is built from the Dockerfile, and its command runs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# Errors of a machine that cannot reach a registry, or may not run containers.
UNREACHABLE = (
    "no such host",
    "pinging container registry",
    "i/o timeout",
    "connection refused",
    "network is unreachable",
)


@pytest.mark.test_long
@pytest.mark.timeout(900)
def test_the_image_is_built_and_runs(tmp_path: Path) -> None:
    """`make image` builds an image that runs as an unprivileged user who may write its volume."""
    if not shutil.which("buildah"):
        pytest.skip("buildah is not installed")
    # The Dockerfile's base may have a local stand-in, where its registry cannot be reached.
    store = os.environ.get("IDALLOC_TEST_BUILDAH_ROOT", str(tmp_path / "store"))
    buildah = ["buildah", "--storage-driver", "vfs", "--root", store, "--runroot", str(tmp_path / "run")]
    build = [*buildah, "build", "--isolation", "chroot", "--pull=missing", "--tag", "idalloc", "."]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    if built.returncode and any(sign in built.stderr for sign in UNREACHABLE):
        pytest.skip(f"the base image cannot be pulled: {built.stderr.splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    container = subprocess.run([*buildah, "from", "idalloc"], capture_output=True, text=True, check=True).stdout.strip()
    try:
        run = [*buildah, "run", "--isolation", "chroot", container, "--"]
        prefix = subprocess.run([*run, "idalloc", "--version"], capture_output=True, text=True)
        assert prefix.stdout.startswith("idalloc "), prefix.stderr
        user = subprocess.run([*run, "sh", "-c", "id -u && touch /var/lib/idalloc/new"], capture_output=True, text=True)
        assert (user.returncode, user.stdout.strip()) == (0, "10001"), user.stderr
    finally:
        subprocess.run([*buildah, "rm", container], capture_output=True, check=True)
