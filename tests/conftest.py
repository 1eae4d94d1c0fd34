import signal

from hypothesis import settings

# No test depends on speed.
settings.register_profile("idalloc", deadline=None)
settings.load_profile("idalloc")

# A shell without job control starts a background job with SIGINT ignored, and the job's processes inherit that: Ctrl-C
# would do nothing in the processes under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
