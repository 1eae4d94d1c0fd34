import signal

from hypothesis import settings

# No test depends on speed.
settings.register_profile("idalloc", deadline=None)
settings.load_profile("idalloc")

# A shell without job control starts background jobs with SIGINT ignored, and the processes under test inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
