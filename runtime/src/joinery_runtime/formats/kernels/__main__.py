"""`python -m joinery_runtime.formats.kernels` compiles all kernels ahead of time, or finds them in the cache, for
`make setup` and the image's build. Exits with 1 if a kernel cannot be used."""

import logging
import sys
from pathlib import Path
from pkgutil import iter_modules

from joinery_runtime.formats.compiled import kernels

logging.basicConfig(format="joinery: %(message)s")
names = [module.name for module in iter_modules([str(Path(__file__).parent)]) if module.name != "__main__"]
sys.exit(any(kernels(name) is None for name in names))
