import math

import pytest

from mha_core import SpecError, sinusoidal_positions
from mha_core.call.positions import check_positions


@pytest.mark.parametrize("width", [1, 2, 7, 10])
def test_every_element_follows_the_formula(width):
    table = sinusoidal_positions(60, width)
    for i in (0, 1, 59):
        for j in range(width):
            angle = i / 10000 ** ((j - j % 2) / width)
            assert table[i, j] == pytest.approx(math.cos(angle) if j % 2 else math.sin(angle), abs=1e-14)


def test_empty_and_read_only():
    assert sinusoidal_positions(0, 4).shape == (0, 4)
    assert not sinusoidal_positions(3, 4).flags.writeable


def test_what_does_not_fit_is_refused():
    with pytest.raises(SpecError, match="Got -1, 4"):
        sinusoidal_positions(-1, 4)
    with pytest.raises(SpecError, match="embed_dim=4. Got 5"):
        check_positions(3, 5, embed_dim=4, max_len=8)
    with pytest.raises(SpecError, match="at most max_len=8 long. Got 9"):
        check_positions(9, 4, embed_dim=4, max_len=8)
    check_positions(None, None, embed_dim=4, max_len=8)
