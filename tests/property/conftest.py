"""How hard properties are tried: the same bounded examples in `make test`, many fresh ones on request.

`pytest tests/property --hypothesis-profile=long` is the long run.
"""

from hypothesis import settings

settings.register_profile("short", max_examples=80, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=3000, deadline=None, print_blob=True)
if settings.get_current_profile_name() == "default":  # none was named on the command line
    settings.load_profile("short")
