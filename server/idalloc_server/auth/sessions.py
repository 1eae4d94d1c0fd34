"""The entrance for ports with sessions: who logs in, with which roles, and what is recorded.

``AccessControl`` has the parts: its ``authenticator``, ``limits``, ``certificates`` and ``audit``.
"""

from idalloc_server.auth.access import ADMIN as ADMIN
from idalloc_server.auth.access import ALLOCATE as ALLOCATE
from idalloc_server.auth.access import ANONYMOUS as ANONYMOUS
from idalloc_server.auth.access import READ as READ
from idalloc_server.auth.access import ROLES as ROLES
from idalloc_server.auth.access import Identity as Identity
from idalloc_server.auth.access import Role as Role
from idalloc_server.auth.access_control import AccessControl as AccessControl
from idalloc_server.auth.audit import Audit as Audit
from idalloc_server.auth.client_certificates import auth_context_of as auth_context_of
from idalloc_server.auth.limits import Limits as Limits
