import signal

import grpc.aio
from hypothesis import settings

# No test depends on speed.
settings.register_profile("idalloc", deadline=None)
settings.load_profile("idalloc")

# A shell without job control starts background jobs with SIGINT ignored, and the processes under test inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# gRPC's queue for asyncio ends with the last object that uses it. If a call of an earlier test is still pending then,
# the garbage collector of some later test waits for ever. With this use the queue never ends.
grpc.aio.init_grpc_aio()
