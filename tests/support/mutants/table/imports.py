"""Faults of an import under nodes that hold leases (P2, P5)."""

from tests.support.mutants.edit import Edit, Place

IMPORTER = "idalloc_server.backup.importer"

MUTANTS = (
    Place("P2", IMPORTER).mutant(
        "import-leaves-leases",
        "an import that finds the same counter ends no leases: a returned tail may lower the counter below the line's",
        Edit("Importer._import_sequence.attempt", "not _leases_may_live(line, row)", "True"),
        scenarios=("import",),
    ),
    Place("P5", IMPORTER).mutant(
        "import-forgets-the-life-of-leases",
        "an import does not write the life of the leases of the exported sequence into the row",
        Edit("Importer._revise", "await self.store.grant(line.name, 0, line.lease_ms)", "None"),
        scenarios=("import-restored",),
    ),
    Place("P5", IMPORTER).mutant(
        "import-in-the-store's-generation",
        "an import raises the generation above the store's, but not above the file's, which nodes may have seen",
        Edit(
            "Importer._revise",
            "change._replace(at_least=_counter(wanted), deleted=wanted.deleted)",
            "change._replace(at_least=_counter(wanted), deleted=wanted.deleted, "
            "generation=max(row.generation, generation) + 1)",
        ),
        scenarios=("import-restored",),
    ),
)
