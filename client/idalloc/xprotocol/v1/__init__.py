"""The generated code of the protos in package `idalloc.xprotocol.v1`."""
