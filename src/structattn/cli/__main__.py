"""python -m structattn.cli, where the script is not on the path."""

import sys

from structattn.cli import main

sys.exit(main())
