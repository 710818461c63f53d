"""One of several ranks on one GPU by NCCL: ``python -m executor``, but each rank says that it is a host of its own.

NCCL refuses a GPU twice on one host.
"""

import os
import sys

from executor.__main__ import main
from executor.communication import groups

if __name__ == "__main__":
    os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
    groups.carrier = lambda identities: "nccl"  # type: ignore[attr-defined]
    sys.exit(main())
