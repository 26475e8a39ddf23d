"""`python -m tailspan.agent`: what a worker starts."""

import sys

from tailspan.cli import main

sys.exit(main(["agent", *sys.argv[1:]]))
