"""`python -m watchdog`, or this file by its path under `python3 -IS`."""

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from watchdog.monitor import main

sys.exit(main())
