"""`python -m p2pmem_devnet`, which is what `scripts/devnet` runs."""

from __future__ import annotations

import sys

from p2pmem_devnet.cli import main

sys.exit(main())
