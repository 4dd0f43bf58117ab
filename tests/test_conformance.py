"""Every component that bakeoff ships, first-party plugins included, keeps the laws of its kind."""

import bakeoff.testing
import pytest


@pytest.mark.parametrize("case", bakeoff.testing.cases("bakeoff"))
def test_laws(case):
    case.run()
