"""The bugs by topic. Each file has one tuple, BUGS; `conformance.zoo.registry` collects them."""
