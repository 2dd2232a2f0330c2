"""A sample of the random calls; and what is wrong with one is seen."""

import pytest
from click.testing import CliRunner

from mha_core import SpecError
from tests.fuzz import calls
from tests.fuzz.__main__ import main


def test_a_sample_of_calls(backend_name):
    examples = {"jax": 8, "tf": 20}.get(backend_name, 40)  # JAX compiles each shape, Keras makes layers slowly
    findings, seen = calls.run(examples, 1, [backend_name])
    assert findings == []
    assert seen["computed"] > 1
    assert seen["refused"] > 1


def test_the_same_seed_gives_the_same_calls(monkeypatch):
    asked = []
    monkeypatch.setattr(calls, "judge", lambda call, askers: asked.append(call.what) or [])
    first, again, other = (calls.run(25, seed, []) and asked[-25:] for seed in (3, 3, 4))
    assert first == again != other
    assert len(set(first)) > 15


@pytest.mark.parametrize("kind", ["traceback", "refused by some", "other words", "wrong numbers"])
def test_what_is_wrong_is_found(monkeypatch, kind):
    """A subject that is the reference, but for one thing."""
    from mha_core import Trace
    from mha_core.dtypes import round_to
    from mha_core.reference import pipeline as reference

    def ask(call):
        try:
            run = reference.run(call.config, call.weights, calls.inputs_of(call))
        except SpecError as error:
            if kind == "other words":
                raise SpecError("no") from error
            raise
        if kind == "traceback":
            raise IndexError("out of range")
        if kind == "refused by some":
            raise SpecError("no")
        return Trace(output=round_to(2.0 * run.output + (kind == "wrong numbers"), calls._dtype(call)))

    monkeypatch.setattr(calls, "asker", lambda name: ask)
    result = CliRunner().invoke(main, ["calls", "--examples", "30", "--backends", "mine"])
    assert result.exit_code == 1
    assert f"{kind}: mine" in result.output
    assert f"     0 {kind}" not in result.output


def test_nothing_wrong_is_exit_0(monkeypatch):
    monkeypatch.setattr(calls, "asker", lambda name: None)
    monkeypatch.setattr(calls, "judge", lambda call, askers: [])
    result = CliRunner().invoke(main, ["calls", "--examples", "5"])
    assert (result.exit_code, "5 calls: " in result.output) == (0, True), result.output
