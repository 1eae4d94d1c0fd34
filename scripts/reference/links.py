"""The targets of names on the pages of the reference: settings, and reasons of errors."""

from idalloc.cli import _environment
from idalloc.v1 import id_allocator_pb2, node_pb2, sequences_pb2
from idalloc.v1.error_reason_pb2 import ErrorReason
from idalloc_server.settings.installed import installed
from idalloc_server.settings.sources import ENV_PREFIX

SETTINGS = {name: f"settings.md#{name}" for name in installed().settings.model_fields}
_NAMES = [name.removeprefix("ERROR_REASON_") for name, number in ErrorReason.items() if number]
REASONS = {reason: f"errors.md#{reason.lower()}" for reason in _NAMES}
SERVICES = [
    service
    for file in (id_allocator_pb2, sequences_pb2, node_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]
RPCS = {method.name: f"api.md#{method.name.lower()}" for service in SERVICES for method in service.methods}
VARIABLES = {f"{ENV_PREFIX}{name.upper()}": target for name, target in SETTINGS.items()} | {
    f"{ENV_PREFIX}{name}": f"settings.md#{ENV_PREFIX.lower()}{name.lower()}" for name in _environment.CLIENT
}
ALL = SETTINGS | VARIABLES | REASONS | RPCS
