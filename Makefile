# The quick loop:  make test ROOM=tar   make lint   make exhaustive   make bench WORK=cat-B   make man   make site   make ci
python := .venv/bin/python
.PHONY: test exhaustive lint bench man site ci
test:  # all, or those of one room, with its doctests
	$(python) -m pytest -q -n logical $(if $(ROOM),tartools/$(ROOM) $(wildcard tests/$(ROOM)))
exhaustive:  # what is not in the plain tier, of all or one room
	$(python) -m pytest -q -n logical -m exhaustive $(wildcard tests/$(ROOM))
lint:
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && $(python) -m mypy && $(python) -m mypy docs/pictures.py docs/site.py
bench:  # WORK: names from python -m tests.bench --list
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(python) -m tests.bench -n 3 $(WORK)
man:  # man pages and completions
	$(python) -m tartools.commands._manual
site:  # in build/site; mandoc makes the man pages
	.venv/bin/mkdocs build --strict
ci:
	.ci/run
