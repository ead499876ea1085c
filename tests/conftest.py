"""Settings of all tests: Hypothesis looks at the same examples each time, however slow the machine is.

`pytest --hypothesis-profile=explore`, as `make bench` has it, looks at others.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("project", settings.get_profile("explore"), derandomize=True, database=None)
settings.load_profile("project")
