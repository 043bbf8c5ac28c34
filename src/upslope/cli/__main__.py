"""``python -m upslope.cli``."""

import sys

from upslope.cli import main

sys.exit(main())
