"""What a release publishes is complete, and the workflows are valid and safe."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from scripts.pin_base_images import pin
from tests.support.environments import deploy_program, installed_program
from tests.support.manifests import CHART, read_yaml
from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the sdist and the wheel, built as `make dist` does."""
    folder = tmp_path_factory.mktemp("dist")
    program = Path(sys.executable).with_name("hatchling")
    done = subprocess.run([program, "build", "--directory", folder], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir(), key=lambda path: path.suffix)


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel; its payload is the description."""
    with zipfile.ZipFile(wheel) as file:
        [name] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(file.read(name))


# They build wheel and sdist, and may have to install their program.
@pytest.mark.test_long
@pytest.mark.timeout(600)
class TestDist:
    def test_an_index_accepts_wheel_and_sdist(self, dist: list[Path]) -> None:
        """`twine check --strict` has no complaint, and the description renders."""
        command = [str(deploy_program("twine")), "check", "--strict", *map(str, dist)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("PASSED") == 2

    def test_links_of_the_description_are_absolute(self, dist: list[Path]) -> None:
        """An index shows README.md without the repository: links and images have full addresses."""
        description = str(metadata(dist[1]).get_payload())
        targets = re.findall(r"\]\(([^)]+)\)", description)
        assert len(targets) > 10
        assert [target for target in targets if not target.startswith("https://")] == []
        paths = [re.sub(r"https://example.com/idalloc/(blob|raw)/main/", "", target) for target in targets]
        inside = [path.partition("#")[0] for path in paths if not path.startswith("https://")]
        assert [path for path in inside if not (ROOT / path).exists()] == []

    def test_the_metadata_has_addresses_and_versions(self, dist: list[Path]) -> None:
        """The index shows source, documentation, changelog, issues, and the tested Pythons."""
        found = metadata(dist[1])
        urls = {url.partition(",")[0] for url in found.get_all("Project-URL", [])}
        assert urls == {"Source", "Documentation", "Changelog", "Issues"}
        pythons = read_yaml(ROOT / ".github/workflows/test.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
        assert re.findall(r"Python :: (3\..*)", "\n".join(found.get_all("Classifier", []))) == pythons
        for file in (
            "README.md",
            "CONTRIBUTING.md",
            "docs/index.md",
            "docs/tutorial.md",
            "docs/operations/upgrades.md",
        ):
            assert f"{pythons[0]} to {pythons[-1]}" in (ROOT / file).read_text()
        assert f"FROM python:{pythons[-1]}-slim\n" in (ROOT / "Dockerfile").read_text()


class TestWorkflows:
    def test_actionlint_accepts_them(self) -> None:
        """`actionlint` finds no unknown key, no wrong expression and no faulty script."""
        files = sorted((ROOT / ".github/workflows").glob("*.yml"))
        assert len(files) >= 4
        done = subprocess.run([installed_program("actionlint"), *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout

    @pytest.mark.parametrize("file", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda file: file.stem)
    def test_each_job_has_a_limit(self, file: Path) -> None:
        """A job that hangs ends after at most 45 minutes, not after GitHub's 6 hours."""
        jobs = read_yaml(file)["jobs"]
        assert [name for name, job in jobs.items() if not 0 < job.get("timeout-minutes", 0) <= 45] == []

    def test_a_release_builds_each_package_once(self) -> None:
        """One job builds and attests the packages; all others get its files."""
        jobs = release_jobs()
        assert [name for name in jobs if "make packages" in runs(jobs[name])] == ["build"]
        done = subprocess.run(["make", "--dry-run", "packages"], cwd=ROOT, capture_output=True, text=True, check=True)
        [attested] = [
            step["with"]["subject-path"] for step in jobs["build"]["steps"] if "attest@" in step.get("uses", "")
        ]
        for folder in ("python", "go", "npm", "maven"):
            assert f"dist/{folder}" in done.stdout
            assert f"dist/{folder}/*" in attested

    def test_a_release_tests_the_files_that_it_publishes(self) -> None:
        """The consumers run on the built files, and each job that publishes waits for them."""
        jobs = release_jobs()
        [consumers] = [step for step in jobs["consumers"]["steps"] if step.get("run") == "make test-packages"]
        assert consumers["env"] == {"IDALLOC_TEST_DIST": "${{ github.workspace }}/dist"}
        assert {name for name, job in jobs.items() if "environment" in job} == {*jobs} - {"build", "consumers"}
        assert [name for name in jobs if name != "build" and "consumers" not in waits_for(jobs, name)] == []

    def test_what_cannot_be_taken_back_is_published_last(self) -> None:
        """The Maven artifact and the Go tag wait for all other packages."""
        jobs = release_jobs()
        assert waits_for(jobs, "maven") == {*jobs} - {"go"}
        assert waits_for(jobs, "go") == {*jobs}

    def test_each_file_of_the_maven_artifact_is_signed(self, tmp_path: Path) -> None:
        """The bundle has a signature for each file, and only what the repository accepts."""
        [script] = [step["run"] for step in release_jobs()["maven"]["steps"] if step.get("name") == "Sign each file"]
        folder = tmp_path / "dist/maven/a/1"
        folder.mkdir(parents=True)
        for name in ("a.jar", "a.jar.sha1", "a.pom", "a.pom.md5", "maven-metadata.xml", "maven-metadata.xml.sha1"):
            (folder / name).write_text(name)
        write_program(
            tmp_path / "bin/gpg", '#!/bin/sh\nfor file; do :; done\n[ "$file" = --import ] || touch "$file.asc"\n'
        )
        variables = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "KEY": "key", "PASSPHRASE": "secret"}
        subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=variables, check=True)
        signed = {"a.jar", "a.jar.asc", "a.jar.sha1", "a.pom", "a.pom.asc", "a.pom.md5"}
        assert {file.name for file in folder.iterdir()} == signed

    @pytest.mark.test_long  # it may have to install its program
    @pytest.mark.timeout(600)
    def test_zizmor_finds_no_weakness(self) -> None:
        """`zizmor` finds no weakness: pinned actions, few permissions, no text run as a script."""
        command = [str(deploy_program("zizmor")), "--offline", "--no-progress", str(ROOT / ".github")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def release_jobs() -> dict[str, Any]:
    """Return the jobs of the release workflow."""
    return dict(read_yaml(ROOT / ".github/workflows/release.yml")["jobs"])


def runs(job: dict[str, Any]) -> list[str]:
    """Return the scripts of a job's steps."""
    return [step["run"] for step in job["steps"] if "run" in step]


def waits_for(jobs: dict[str, Any], name: str) -> set[str]:
    """Return a job and all jobs that end before it starts."""
    needs = jobs[name].get("needs", [])
    return {name}.union(*(waits_for(jobs, each) for each in ([needs] if isinstance(needs, str) else needs)))


def write_program(file: Path, text: str) -> None:
    """Write an executable script."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


FAKE_DOCKER = """#!/bin/sh
echo "$@" >> asked
[ -n "$DIGEST" ] || exit 1
echo "$DIGEST"
"""


class TestBaseImages:
    """The step of the release workflow that resolves base images, with a fake docker."""

    def run_step(self, folder: Path, digest: str) -> subprocess.CompletedProcess[str]:
        """Run the step on the repository's Dockerfile, in a folder, as the workflow does."""
        steps = read_yaml(ROOT / ".github/workflows/release.yml")["jobs"]["image"]["steps"]
        [(turn, script)] = [
            (n, each["run"]) for n, each in enumerate(steps) if "pin_base_images" in each.get("run", "")
        ]
        assert any(each.get("run", "").startswith("make image ") for each in steps[turn + 1 :])
        (folder / "scripts").symlink_to(ROOT / "scripts")
        shutil.copy(ROOT / "Dockerfile", folder)
        docker = folder / "bin" / "docker"
        write_program(docker, FAKE_DOCKER)
        variables = {
            "PATH": f"{docker.parent}:{os.environ['PATH']}",
            "GITHUB_STEP_SUMMARY": "summary.md",
            "DIGEST": digest,
        }
        return subprocess.run(
            ["bash", "-e", "-c", script], cwd=folder, env=variables, check=False, capture_output=True, text=True
        )

    def test_each_base_image_gets_its_digest(self, tmp_path: Path) -> None:
        """Each tag's image is built from one digest, which its labels and the summary have."""
        digest = "sha256:" + "0123456789abcdef" * 4
        done = self.run_step(tmp_path, digest)
        assert done.returncode == 0, done.stderr
        before, after = ((each / "Dockerfile").read_text().splitlines() for each in (ROOT, tmp_path))
        froms = [line for line in before if line.startswith("FROM ")]
        images = {line.split()[1] for line in froms}
        assert [line for line in after if line.startswith("FROM ")] == [
            re.sub(r"^(FROM \S+)", rf"\1@{digest}", line) for line in froms
        ]
        asked = (tmp_path / "asked").read_text().splitlines()
        assert sorted(line.split()[3] for line in asked) == sorted(images)
        assert after[-1] == (
            f'LABEL org.opencontainers.image.base.name="{froms[-1].split()[1]}" '
            f'org.opencontainers.image.base.digest="{digest}"'
        )
        assert [line for line in after[:-1] if not line.startswith("FROM ")] == [
            line for line in before if not line.startswith("FROM ")
        ]
        summary = (tmp_path / "summary.md").read_text()
        assert all(f"{image}@{digest}" in summary for image in images)

    @pytest.mark.parametrize("digest", ["", "latest", "sha256:12"])
    def test_without_a_digest_nothing_is_built(self, tmp_path: Path, digest: str) -> None:
        """The step fails, and leaves the Dockerfile, if docker fails or answers no digest."""
        assert self.run_step(tmp_path, digest).returncode != 0
        assert (tmp_path / "Dockerfile").read_text() == (ROOT / "Dockerfile").read_text()

    def test_stages_and_pinned_images_stay(self) -> None:
        """A FROM line of an earlier stage or with a digest is unchanged; a variable is refused."""
        digest = "sha256:" + "f" * 64
        text, found = pin(f"FROM a:1@{digest} AS one\nFROM one AS two\nFROM scratch\n")
        assert text.splitlines()[:3] == [f"FROM a:1@{digest} AS one", "FROM one AS two", "FROM scratch"]
        assert found == {f"a:1@{digest}": digest}
        with pytest.raises(ValueError, match="variable"):
            pin("ARG V=1\nFROM a:$V\n")


class TestVersion:
    def test_the_chart_has_the_version_of_the_package(self) -> None:
        """The release workflow refuses a tag whose version is not the package's and the chart's."""
        chart = read_yaml(CHART / "Chart.yaml")
        assert chart["version"] == chart["appVersion"] == PROJECT["version"]

    def test_the_changelog_has_the_version(self) -> None:
        """CHANGELOG.md has the version of the package first, or right after Unreleased."""
        headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
        assert next(each for each in headings if each != "Unreleased") == PROJECT["version"]

    def test_the_changelog_is_short_until_the_first_release(self) -> None:
        """Until 0.1.0 is released, the file has this version alone, in at most 900 words."""
        text = (ROOT / "CHANGELOG.md").read_text()
        if "## [0.1.0] - not yet released\n" in text:
            assert len(text.split()) <= 900
            assert text.count("\n## [") == 1

    def test_lines_of_the_changelog_name_their_package(self) -> None:
        """A line begins with the word of a package that the first section lists, or with none."""
        text = (ROOT / "CHANGELOG.md").read_text()
        words = {*re.findall(r"`(\w+):`", text[: text.index("## [")])}
        used = {*re.findall(r"^- ([a-z]+): ", text, re.MULTILINE)}
        assert used <= words
        assert words >= {"protos", "python", "go", "java", "node", "chart"}
