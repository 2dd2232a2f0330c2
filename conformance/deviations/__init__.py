"""Known deviations: tables of the differences of other projects' layers from the definition."""
