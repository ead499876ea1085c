"""Contract suites of what other packages add: a plug-in is right if its tests, which subclass one, pass.

`connectors`, `engines`, `publishers`, `stores`; `reference_store` is a store in memory. They need pytest, that of
publishers Hypothesis too: the extra `testing`.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in ("connectors", "engines", "publishers", "stores")))
