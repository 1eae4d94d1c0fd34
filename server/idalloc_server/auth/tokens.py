"""The command `idalloc token`: create tokens. It needs no server."""

import json
import secrets
import sys
from hashlib import sha256
from typing import Annotated

import typer

from idalloc_server.auth.access_file import parse
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.sequences.text import escaped

# Identifies a leaked token to people and to secret scanners.
PREFIX = "idalloc_"
TOKEN_BYTES = 32

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create tokens for the access file.")


@app.command("new")
def new(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The name of the identity.")],
    *,
    allocate: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Sequences from which it may allocate ids, such as 'orders*'."),
    ] = None,
    read: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Sequences that it may read.")] = None,
    admin: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Sequences that it may change.")] = None,
) -> None:
    """Create a token and its entry for the access file. The entry has only the token's SHA-256.

    The token goes to standard output, the entry to standard error; as JSON, both to standard
    output: `idalloc token new billing --allocate 'orders*' >billing.token 2>>access.toml`
    """
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    digest = sha256(token.encode()).hexdigest()
    lines = ["[[identity]]", f"name = {_toml_string(name)}", f'token_sha256 = ["{digest}"]']
    for role, patterns in {"allocate": allocate, "read": read, "admin": admin}.items():
        if patterns:
            lines.append(f"{role} = [{', '.join(map(_toml_string, patterns))}]")
    entry = "\n".join(lines) + "\n"
    try:
        parse(entry.encode(), "the new entry")
    except StartRefused as refused:
        print(escaped(f"idalloc: {refused}"), file=sys.stderr)
        raise typer.Exit(2) from None
    reply = {"name": name, "token": token, "token_sha256": digest, "entry": entry}
    context.obj.lines([token], lambda: reply)
    if context.obj.output != "json":
        sys.stdout.flush()
        print(entry, file=sys.stderr)


def _toml_string(text: str) -> str:
    # TOML's basic strings are JSON's, except that DEL must be escaped.
    return escaped(json.dumps(text, ensure_ascii=False))
