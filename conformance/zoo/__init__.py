"""The bugs by topic. Each file has one tuple, BUGS; `conformance.bugs` collects them."""
