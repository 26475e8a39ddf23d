"""`python -m tailspan`: the same as the `tailspan` command."""

import sys

from tailspan.cli import main

sys.exit(main())
