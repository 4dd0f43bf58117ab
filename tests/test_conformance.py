"""Every registered component, of the core and of each installed package, keeps the laws of its kind."""

import bakeoff.testing
import pytest


@pytest.mark.parametrize("case", bakeoff.testing.cases())
def test_laws(case):
    case.run()
