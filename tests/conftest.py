"""What every test shares: how hard Hypothesis tries, and an environment without settings of ours."""

from __future__ import annotations

import os

import hypothesis

from chorale.transport.tls import restrict_to_tls13

restrict_to_tls13()  # before any test imports grpc

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


for _variable in [name for name in os.environ if name.startswith("CHORALE_")]:
    del os.environ[_variable]
