"""Environments: made whole or not at all, and which interpreter is taken."""

from __future__ import annotations

import sys

import pytest

from mha.matrix.environments import make as environments
from mha.matrix.environments.cache import Cache
from mha.matrix.environments.make import NoEnvironment, environment, environment_key, installer, variables
from mha.matrix.environments.make import interpreter as interpreter_of
from mha_core import SpecError
from tests.mha.matrix.made_up import interpreter, release_set

pytestmark = pytest.mark.same_on_newest  # it is about pip and folders


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path / "cache")
    cache.prepare()
    return cache


def made(cache):
    return sorted(path.name for path in cache.environments.iterdir())


def test_an_environment_is_made_once_and_found_by_its_request(cache, tmp_path):
    one = release_set(interpreter(tmp_path, venv=f"echo made >> {tmp_path}/log"))
    folder = environment(one, ["numpy"], "pip", cache)
    assert folder.name == environment_key(one, ["numpy"], "pip")
    assert interpreter_of(folder).exists()
    assert environment(one, ["numpy"], "pip", cache) == folder
    assert (tmp_path / "log").read_text() == "made\n"
    assert made(cache) == [folder.name]


def test_another_request_is_another_environment():
    one = release_set("", "torch==2.5.1")
    keys = [
        environment_key(one, ["numpy"], "pip"),
        environment_key(one, ["numpy>=2"], "pip"),
        environment_key(one, ["numpy"], "uv"),
        environment_key(release_set("", "torch==2.5.0"), ["numpy"], "pip"),
        environment_key(release_set("3.12", "torch==2.5.1"), ["numpy"], "pip"),
    ]
    assert len(set(keys)) == len(keys)
    # The name of a set is no part of what is installed.
    assert environment_key(release_set("", "torch==2.5.1", name="other"), ["numpy"], "pip") == keys[0]


def test_nothing_is_left_of_an_environment_that_cannot_be_made(cache, tmp_path):
    one = release_set(interpreter(tmp_path), "nowhere==1")
    with pytest.raises(NoEnvironment) as caught:
        environment(one, [], "pip", cache)
    said = "can't be installed: it ended with status 1: ERROR: No matching distribution found for nowhere"
    assert str(caught.value) == said
    assert made(cache) == []


def test_what_an_installer_keeps_for_a_while_goes_with_it(cache, tmp_path):
    one = release_set(interpreter(tmp_path, venv="echo much > $TMPDIR/wheel; ls $TMPDIR > $0.seen"), "nowhere==1")
    with pytest.raises(NoEnvironment):
        environment(one, [], "pip", cache)
    assert (tmp_path / "python.seen").read_text() == "wheel\n"
    assert made(cache) == []


def test_pip_itself_says_in_one_line_what_it_does_not_find(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(NoEnvironment) as caught:
        environment(release_set("", "a-package-that-nobody-made==1"), [], "pip", cache)
    assert "No matching distribution found for a-package-that-nobody-made==1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert made(cache) == []


def test_an_interrupt_leaves_no_environment(cache, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    one = release_set(interpreter(tmp_path))
    real = environments.finish
    monkeypatch.setattr(environments, "finish", lambda *a: (real(*a), interrupted())[0])
    with pytest.raises(KeyboardInterrupt):
        environment(one, [], "pip", cache)
    assert made(cache) == []


def test_the_interpreter_is_one_that_is_there(cache):
    with pytest.raises(NoEnvironment, match="there is no interpreter /no/such/python"):
        environment(release_set("/no/such/python"), [], "pip", cache)
    with pytest.raises(NoEnvironment, match=r"there is no interpreter python3\.99 on the path"):
        environment(release_set("3.99"), [], "pip", cache)
    assert environments._base_interpreter(f"{sys.version_info[0]}.{sys.version_info[1]}") == sys.executable


def test_an_interpreter_that_is_too_old_is_refused(cache, tmp_path):
    path = interpreter(tmp_path)
    text = (tmp_path / "python").read_text()
    (tmp_path / "python").write_text(text.replace("else\n", 'elif [ "$1" = -c ]; then\n    echo 3 9\nelse\n'))
    with pytest.raises(NoEnvironment, match=r"this project needs Python 3\.11 or newer\. Got 3\.9\."):
        environment(release_set(path), [], "pip", cache)
    assert made(cache) == []


def test_uv_is_taken_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(environments.shutil, "which", lambda name: "/usr/bin/uv")
    assert installer() == "uv"
    assert installer("pip") == "pip"
    monkeypatch.setattr(environments.shutil, "which", lambda name: None)
    assert installer() == "pip"
    with pytest.raises(SpecError, match="uv is not installed"):
        installer("uv")


def test_other_packages_are_not_led_in(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert "PYTHONPATH" not in variables()
    assert variables({"PYTHONPATH": "/copy"})["PYTHONPATH"] == "/copy"


def test_what_python_compiles_is_kept_in_an_environment(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in variables()
