"""What the tables say and no case can show: the installed release does it."""

import inspect
from importlib import import_module

import pytest

from conformance.deviations.known import load
from conformance.deviations.table import read
from tests.conformance.deviations.listed_layer import ENTRY, toml
from tests.conformance.deviations.probes import MODULES, PROBES, outcome_of

ENTRIES = {entry.id: entry for entry in load().entries}
BACKEND_OF = {module: module.split(".")[2] for module in MODULES if module.startswith("tests.backends.")}


def test_every_entry_without_cases_has_a_probe():
    assert PROBES.keys() == {entry.id for entry in ENTRIES.values() if not entry.cases}


@pytest.mark.nightly("each probe is of an entry")
@pytest.mark.parametrize("module", MODULES)
def test_every_probe_is_of_an_entry(module, backend_names):
    if BACKEND_OF.get(module, "torch") not in backend_names:
        pytest.skip(f"{module} needs a backend that is not under test")
    functions = inspect.getmembers(import_module(module), inspect.isfunction)
    own = {name for name, function in functions if function.__module__ == module and not name.startswith("_")}
    assert own == set(MODULES[module].values())


@pytest.mark.nightly
@pytest.mark.parametrize("id", PROBES)
def test_the_installed_release_does_what_the_entry_says(id, backend_names):
    if BACKEND_OF.get(PROBES[id][0], "torch") not in backend_names:
        pytest.skip(f"{PROBES[id][0]} needs a backend that is not under test")
    outcome, seen = outcome_of(ENTRIES[id])
    assert outcome in ("happens", "not here", "not installed", "other version"), id
    assert seen == " ".join(seen.split())
    assert seen


def test_an_outcome_says_what_was_seen(table):
    """Of an entry with cases, by a layer that deviates in two of them."""
    table()
    cases = {"happens": ENTRY["cases"], "gone": ["one-key", "prime"]}
    for outcome, names in cases.items():
        (entry,) = read(toml({**ENTRY, "cases": names}), source="")
        assert outcome_of(entry)[0] == outcome
    (happening,) = read(toml(ENTRY), source="")
    assert outcome_of(happening)[1].startswith("valid-lens-per-query, float64: weights differs in")
    (conditional,) = read(toml({**ENTRY, "cases": ["prime"], "only_where": "it rains"}), source="")
    assert outcome_of(conditional) == ("not here", "happens only where it rains")
    (older,) = read(toml({**ENTRY, "versions": "numpy<1"}), source="")
    assert outcome_of(older)[0] == "other version"
