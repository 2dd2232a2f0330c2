"""The wheel in new environments: a registry has to be there, for NumPy and what else it needs."""

import zipfile

import pytest

from tests.release import trial
from tests.release.building import built

PYTHONS = ("3.11", "3.12", "3.13")


@pytest.mark.nightly("a new user installs the file, and has a verdict and the plugin, on each Python")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", PYTHONS)
def test_a_new_user_installs_and_uses_it(version, tmp_path):
    python = trial.found(version)
    if python is None:
        pytest.skip(f"there is no Python {version}")
    (tmp_path / "dist").mkdir()
    _, wheel = built(tmp_path / "dist")
    assert zipfile.is_zipfile(wheel)
    programs = trial.environment(python, tmp_path / "env", str(wheel), "pytest")
    (tmp_path / "theirs").mkdir()
    assert len(list(trial.trial(programs, tmp_path / "theirs"))) == 6
