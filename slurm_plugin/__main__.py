"""`python -m slurm_plugin` is `advisor-agent`."""

import sys

from slurm_plugin.cli import main

sys.exit(main())
