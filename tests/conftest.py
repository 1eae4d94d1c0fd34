from hypothesis import settings

# No test depends on speed.
settings.register_profile("idalloc", deadline=None)
settings.load_profile("idalloc")
