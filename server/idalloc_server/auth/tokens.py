"""The verb `idalloc token`: makes tokens. It needs no server."""

import json as json_format
import secrets
import sys
from hashlib import sha256
from typing import Annotated

import typer

from idalloc_server.auth.access_file import parse
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.text import escaped

# Says what it is to whoever finds one, and to programs that look for secrets where none should be.
PREFIX = "idalloc_"
TOKEN_BYTES = 32

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make tokens for the access file.")


@app.callback()
def _keep_new_a_verb() -> None:
    """Make tokens for the access file."""


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Whose token it is.")],
    *,
    allocate: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Sequences that it may take ids of, as 'orders*'.")
    ] = None,
    read: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Sequences that it may look at.")] = None,
    admin: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Sequences that it may change.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, entry included.")] = False,
) -> None:
    """Makes a token, and the entry for the access file, which has only its SHA-256.

    The token goes to standard output, the entry to standard error:
    idalloc token new billing --allocate 'orders*' >billing.token 2>>access.toml
    """
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    digest = sha256(token.encode()).hexdigest()
    entry = _entry(name, digest, {"allocate": allocate, "read": read, "admin": admin})
    try:
        parse(entry.encode(), "the new entry")
    except StartRefused as refused:
        print(escaped(f"idalloc: {refused}"), file=sys.stderr)
        raise typer.Exit(2) from None
    if json:
        print(json_format.dumps({"name": name, "token": token, "token_sha256": digest, "entry": entry}, indent=2))
        return
    print(token)
    sys.stdout.flush()
    print(entry, file=sys.stderr)


def _entry(name: str, digest: str, roles: dict[str, list[str] | None]) -> str:
    lines = ["[[identity]]", f"name = {_toml(name)}", f'token_sha256 = ["{digest}"]']
    lines += [f"{role} = [{', '.join(map(_toml, patterns))}]" for role, patterns in roles.items() if patterns]
    return "\n".join(lines) + "\n"


def _toml(text: str) -> str:
    # TOML's basic strings are those of JSON, but for DEL, which must be escaped.
    return escaped(json_format.dumps(text, ensure_ascii=False))
