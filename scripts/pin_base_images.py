"""Writes each base image's digest into a Dockerfile, to build a release again from the same.

``python scripts/pin_base_images.py Dockerfile`` asks ``docker buildx imagetools`` for the digest
that each tag has now, changes the file, and prints the images as a Markdown list. The last image is
also written into the labels that the OCI image specification names for a base image.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_FROM = re.compile(r"^(FROM\s+(?:--\S+\s+)*)(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LABEL = "org.opencontainers.image.base"


def base_images(dockerfile: str) -> Iterator[str]:
    """Yield the image of each FROM line that is neither an earlier stage nor empty."""
    stages = {"scratch"}
    for match in _FROM.finditer(dockerfile):
        if match[2] not in stages:
            yield match[2]
        stages.add(match[3])


def digest_of(image: str) -> str:
    """Return the digest of an image: its own, or the one that the registry has for its tag.

    Raises:
        ValueError: The image has a variable, or the answer is not a digest.
        subprocess.CalledProcessError: The registry does not have it, or does not answer.
    """
    if "$" in image:
        raise ValueError(f"{image}: a base image with a variable has no digest")
    if "@" in image:
        return image.partition("@")[2]
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    digest = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{image}: {digest!r} is not a digest")
    return digest


def pin(dockerfile: str) -> tuple[str, dict[str, str]]:
    """Return a Dockerfile with digests and labels, and the digest of each image.

    Raises:
        ValueError: It has no FROM line, or see ``digest_of``.
    """
    images = [*base_images(dockerfile)]
    if not images:
        raise ValueError("the Dockerfile has no base image")
    digests = {image: digest_of(image) for image in dict.fromkeys(images)}

    def pinned(match: re.Match[str]) -> str:
        command, image, rest = match[1], match[2], match[0][match.end(2) - match.start() :]
        is_tag = image in digests and "@" not in image
        return f"{command}{image}@{digests[image]}{rest}" if is_tag else match[0]

    last = images[-1]
    labels = f'LABEL {_LABEL}.name="{last.partition("@")[0]}" {_LABEL}.digest="{digests[last]}"\n'
    return _FROM.sub(pinned, dockerfile).rstrip("\n") + "\n" + labels, digests


if __name__ == "__main__":
    file = Path(sys.argv[1])
    text, found = pin(file.read_text())
    file.write_text(text)
    print("Base images:\n")
    print(*(f"- `{image.partition('@')[0]}@{digest}`" for image, digest in found.items()), sep="\n")
