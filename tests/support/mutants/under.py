"""Runs a module as ``python -m`` does, with a mutant in place of the module that it edits.

python -m tests.support.mutants.under MUTANT MODULE [ARGUMENT…]
"""

import runpy
import sys

from tests.support.mutants.catalog import MUTANTS
from tests.support.mutants.edit import install


def run(name: str, module: str, arguments: list[str]) -> None:
    """Run a module under a mutant; the process is not usable for anything else afterwards."""
    install(MUTANTS[name])
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3:])
