"""``python -m upslope``."""

import sys

from upslope.cli import main

sys.exit(main())
