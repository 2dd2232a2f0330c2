"""Two recordings of the same calls: pairs of calls, modules and ends, and what differs between the two of a pair."""
