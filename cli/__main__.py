"""`python -m streamlearn.cli`, the same as `streamlearn`."""

import sys

from .main import main

sys.exit(main())
