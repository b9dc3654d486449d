# Sets itself up: needs Python >= 3.10 and make; for tests against Apache Kafka also a JDK 17 and Maven.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CODE := streaming connectors tests integration benchmarks examples

.PHONY: demo test check format bench setup constraints clean

demo: $(READY)
	@$(BIN)/forebay demo $(ARGS)

test: $(READY)
	$(BIN)/pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# make bench NAME=decode; a name that is none is told without setting anything up
bench: $(if $(wildcard benchmarks/$(NAME).py),$(READY))
	@test -f "benchmarks/$(NAME).py" || { echo "make bench NAME=one of:" $(filter-out _%,$(notdir $(basename $(wildcard benchmarks/[a-z]*.py)))); exit 2; }
	@$(BIN)/python benchmarks/$(NAME).py $(ARGS)

setup: $(READY)

# uv resolves and links the whole torch stack in seconds; it comes from PyPI like the rest.
$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv (the first time this fetches PyTorch, some GB)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Forebay needs Python 3.10 or newer, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'
	@touch $(READY)

# What was tested, for every supported Python; holds names and versions only.
constraints: $(READY)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate \
		--no-emit-index-url --upgrade --extra dev --output-file constraints.txt pyproject.toml
	echo "uv==$$($(BIN)/uv --version | cut -d' ' -f2)" >> constraints.txt

clean:
	rm -rf .venv .cache dist
