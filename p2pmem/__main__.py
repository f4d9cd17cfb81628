"""`python -m p2pmem` is `p2pmem`."""

import sys

from p2pmem.cli.main import main

sys.exit(main())
