"""The generated code of the protos in package `idalloc.v1`."""
