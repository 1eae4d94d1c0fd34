"""Write other names of the project's owner into all files: `make prefix`.

Each name is written in one manifest. All other places are replaced by its value there:

- GO_MODULE, the path of the Go module, in client/go/go.mod
- MAVEN_GROUP, the group id of the Maven artifact, in client/java/pom.xml
- NPM_SCOPE, the scope of the npm package, in client/node/package.json
- REPOSITORY, the repository's address, in pyproject.toml

The Java packages keep their names: they belong to the API, not to the owner.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The manifest of each name, its line there, the form of a name, and how other files write it.
NAMES = {
    "GO_MODULE": ("client/go/go.mod", r"^module (.+)$", r"[a-z0-9.-]+\.[a-z]+(/[\w.-]+)+", ("{}",)),
    "MAVEN_GROUP": (
        "client/java/pom.xml",
        r"<groupId>(.+)</groupId>",
        r"[a-z]\w*(\.\w+)+",
        ("<groupId>{}</groupId>", "{}:idalloc-client"),
    ),
    "NPM_SCOPE": ("client/node/package.json", r'"name": "(@.+)/client"', r"@[a-z0-9][a-z0-9._-]*", ("{}/client",)),
    "REPOSITORY": ("pyproject.toml", r'^Source = "(.+)"$', r"https://[\w.-]+(/[\w.-]+)+", ("{}",)),
}
# `make gen` and `make baseline` write these anew: they have lengths of texts, or are binary.
GENERATED = (".api", ".binpb", ".jar", ".pb.go", "_pb2.py", "_pb2.pyi")


def current(name: str) -> str:
    """Return a name from its manifest."""
    file, line, _, _ = NAMES[name]
    found = re.search(line, (ROOT / file).read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"{file}: no line matches {line}")
    return found[1]


def main(arguments: list[str]) -> None:
    """Replace the names NAME=VALUE in the files that git knows."""
    given = dict(each.split("=", 1) for each in arguments)
    if not given:
        sys.exit(f"make prefix needs a name: {', '.join(f'{name}=…' for name in NAMES)}")
    replacements = {}
    for name, value in given.items():
        if not re.fullmatch(NAMES[name][2], value):
            sys.exit(f"{name}: {value!r} does not have the form of {current(name)!r}")
        replacements |= {form.format(current(name)): form.format(value) for form in NAMES[name][3]}
    # At once, so that no value is replaced again; a longer text first, if another one begins it.
    texts = re.compile("|".join(map(re.escape, sorted(replacements, key=len, reverse=True))))
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / each for each in listed.split("\0") if each and not each.endswith(GENERATED)]
    for file in (each for each in files if not each.is_symlink()):
        old = file.read_bytes()
        new = texts.sub(lambda found: replacements[found[0]], old.decode(errors="surrogateescape"))
        if new.encode(errors="surrogateescape") != old:
            file.write_bytes(new.encode(errors="surrogateescape"))


if __name__ == "__main__":
    main(sys.argv[1:])
