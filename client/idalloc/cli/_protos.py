"""`idalloc protos`: the contract as files, for clients in other languages."""

import os
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from idalloc.cli._options import with_output
from idalloc.cli._printer import failure


@with_output
def protos(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; it is created if it does not exist.")],
) -> None:
    """Write the .proto files, the retry policy and the descriptor set of the services.

    service_config.json is the retry policy, idalloc.binpb the descriptor set. DIR is then the
    import path of protoc, buf, ghz and grpcurl; it includes the files of Google's that they import.
    Leave these, DIR/google, out of a Java build: grpc-protobuf brings their classes. The options
    `grpcurl -protoset` and `ghz --protoset` take the descriptor set alone. Files of the same names
    are replaced.
    """
    with as_file(files("idalloc") / "protos") as source:
        written = []
        # In a clone, folders of the package are links to those of the repository.
        found = [Path(parent, name) for parent, _, names in os.walk(source, followlinks=True) for name in names]
        if not any(file.suffix == ".proto" for file in found):
            raise failure(
                "this installation has no .proto files (pip loses the symbolic links of a zip of the repository): "
                "install a wheel, or from a clone or a tar.gz, which keep the links"
            )
        for file in sorted(found):
            target = folder / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            written.append(str(target))
    context.obj.lines(written, lambda: {"files": written})
