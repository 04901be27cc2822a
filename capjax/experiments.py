"""`capjax.experiments` in a checkout; a wheel has the package itself."""

import sys

from capjax import _checkout

sys.modules[__name__] = _checkout.package("experiments")
