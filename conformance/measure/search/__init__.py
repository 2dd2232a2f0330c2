"""The search: probe after probe, the model of the subject grows by the bugs that each probe shows."""
