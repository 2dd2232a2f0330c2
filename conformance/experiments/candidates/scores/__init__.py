"""Candidates of queries, keys and scores: changes of what comes before the softmax, with numbers read off scores."""
