"""The directives of the site. `conf.py` loads every module here that has a `setup`."""
