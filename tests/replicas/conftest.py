"""The ranks of the distributed tests, for comparing with real ranks.

One thread computes for each replica: on a busy machine, more of them wait for one another.
"""

from tests.distributed.conftest import _pool, pool  # noqa: F401
from tests.support.threads import one_thread  # noqa: F401
