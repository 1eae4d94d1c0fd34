"""The command `idalloc`: its client's verbs here, its server's by the entry points `idalloc.commands`."""

import os
import sys
from collections.abc import Sequence

import typer

# Before gRPC is imported: its core would print, in its own form, what is told here in one line, or mended by itself.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from idalloc.cli import _bench, _health, _node, _options, _output, _sequences, _verbs, _verify
from idalloc.cli._plugins import Verbs
from idalloc.cli._usage import explained

# The command line's own errors, under their names in every version of typer.
UsageError = typer.BadParameter.__mro__[1]

# What helps where TLS failed.
_OF_TLS = {
    "untrusted": "--ca names the file of its authority",
    "name": "--server-name says which name it has to be",
    "plaintext": "call it without --tls, --ca and --cert",
    "closed": "--tls or --ca is for the one, --cert and --key are for the other",
    "refused": "--cert and --key are for that",
}

app = typer.Typer(
    cls=Verbs,
    callback=_options.remember,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Hands out identifiers that are unique for ever.",
)
app.command("allocate")(_verbs.allocate)
app.command("stream")(_verbs.stream)
app.command("docid")(_verbs.docid)
app.command("uuid")(_verbs.uuids)
app.add_typer(_sequences.app, name="sequences")
# A number below 0 as a text is no option.
app.command("parse", context_settings={"ignore_unknown_options": True})(_verbs.parse)
app.add_typer(_node.app, name="node")
app.command("bench")(_bench.bench)
app.command("verify")(_verify.verify)
app.command("health")(_health.health)


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        The exit code: 0 on success only; 2 when the command line is wrong, 130 after Ctrl-C, 1 for all else.
    """
    try:
        code = app(args, prog_name="idalloc", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has enough, as in `| head`. Python would flush once more when it ends, and complain.
        sys.stdout = sys.stderr
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        return _tell(error, sys.argv[1:] if args is None else args)
    return code if isinstance(code, int) else 0


def _tell(error: Exception, args: Sequence[str]) -> int:
    """Says in one line what went wrong; returns the exit code."""
    from idalloc import IdallocError, ServerUnreachable, Unauthenticated  # only now: most runs need no error

    if isinstance(error, ServerUnreachable) and "tls" in error.metadata:
        hint = _OF_TLS.get(error.metadata["tls"])
        return _fail(f"{error.reason}: {error}{'; ' if hint else ''}{hint or ''}", 1)
    if isinstance(error, Unauthenticated):
        return _fail(f"{error.reason}: {error}; --token-file or --cert say who this is", 1)
    if isinstance(error, ServerUnreachable):
        return _fail(f"{error.reason}: {error}; start a server with `idalloc serve`, or say where it is: --server", 1)
    if isinstance(error, IdallocError):
        return _fail(f"{error.reason}: {error}", 1)
    if isinstance(error, UsageError):
        message = explained(error, args)
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _fail(f"idalloc: {message}{hint}", 2) if message else 2  # without a message, help was printed
    if isinstance(error, UnicodeEncodeError):
        return _fail("idalloc: the command line must be in UTF-8", 2)
    return _fail(f"idalloc: {type(error).__name__}: {error} (PYTHONDEVMODE=1 shows where)", 1)


def _fail(line: str, code: int) -> int:
    _output.say(line)
    return code
