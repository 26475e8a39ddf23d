"""`python -m tailspan.agent`: what a worker starts."""

import sys

from tailspan.agent.main import main

sys.exit(main(sys.argv[1:]))
