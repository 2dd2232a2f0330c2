"""No right model raises an alarm: all of right_models.py nightly, one of each kind always."""

from functools import wraps

import pytest

import mha
from tests.mha.invariants.right_models import SOURCES

NEEDS = {
    "transformers": "transformers",
    "torch": "torch",
    "flax": "flax",
    "keras": "keras",
    "others": "backends.mxnet.ops.framework",
}
ALWAYS = {
    "transformers": ["GPT2 sdpa"], "torch": ["torch encoder"], "flax": ["function of jax"],
    "keras": ["keras attention"], "others": ["NumPy attention", "NumPy running sum"],
}  # fmt: skip
MOST = 0.25
"""The largest error over the allowed one of any relation of any right model: docs/invariants.md has them."""


def models(source: str):
    """The makers of a source; skipped where its library is not installed."""
    pytest.importorskip(NEEDS[source], exc_type=ImportError)
    return dict(SOURCES[source]())


def check(make) -> None:
    report = mha.invariants(make(), make=make)
    report.assert_holds()
    assert max(one.apart.ratio for one in report.of("holds")) <= MOST


# The releases of transformers, PyTorch and Keras are the same there.
SAME = {source: [pytest.mark.same_on_newest] for source in ("transformers", "torch", "keras")}


@pytest.mark.parametrize(
    ("source", "name"),
    [pytest.param(source, name, marks=SAME.get(source, ())) for source, names in ALWAYS.items() for name in names],
)
def test_one_of_each_kind_is_silent(source, name):
    check(models(source)[name])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", SOURCES)
def test_every_right_model_is_silent(source):
    for name, make in models(source).items():
        try:
            check(make)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.same_on_newest  # as the releases of transformers and PyTorch are
def test_a_small_llama_is_called_at_most_40_times_on_its_longest_inputs(monkeypatch):
    make = models("transformers")["Llama sdpa"]
    kind, seen = type(make()), []
    forward = kind.forward

    @wraps(forward)
    def counted(self, *args, **kwargs):
        seen.append(tuple(kwargs["input_ids"].shape))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", counted)
    assert mha.invariants(make()).holds
    assert max(seen) == (3, 8)
    assert seen.count((3, 8)) <= 40
