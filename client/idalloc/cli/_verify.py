"""`idalloc verify`, which needs a package that the other verbs do not."""

import json
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer


def verify(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Logs of issued ids (--log), and what helps: `idalloc export` of the store, logs of nodes.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print the report as JSON.")] = False,
) -> None:
    """Prove from the logs of any number of clients that no id was issued twice, and all in order.

    What each file is, its content tells. With an export, made after the logs, no id may lie beyond what it says. Ids
    that no log has are listed by cause where a node's log tells of them, else as unattributed. Logs are to be of one
    store. The exit code is 0 only if nothing was found that must not be.

    However large logs are, memory stays below a gigabyte: what does not fit goes to the folder for temporary files
    (which TMPDIR names), with at most 40 bytes for each record.
    """
    try:
        from idalloc.verify import _logs, _verdict
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "numpy":
            raise
        print("idalloc verify needs the package numpy: pip install 'idalloc[verify]'", file=sys.stderr)
        raise typer.Exit(2) from error
    try:
        verdict = _verdict.verify(files)
    except _logs.NoLog as error:
        print(_printable(" ".join(f"idalloc: {error}".split()), sys.stderr), file=sys.stderr)
        raise typer.Exit(2) from error
    if as_json:
        text = json.dumps(_verdict.to_json(verdict), indent=2, ensure_ascii=False) + "\n"
    else:
        text = _verdict.to_text(verdict)
    sys.stdout.write(_printable(text, sys.stdout))
    if verdict.findings.any:
        raise typer.Exit(1)


def _printable(text: str, stream: TextIO) -> str:
    """Escapes what a stream cannot write, such as a file's name that is not UTF-8."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
