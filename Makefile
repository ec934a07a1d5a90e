# make demo       the shipped digits model through every target, real runs included
# make test       static checks and tests
# make test-long  the tests with large counts, the mutants, and the cluster
# Each makes .venv and installs everything it needs first.

EXTRAS := ckks,ternary,circuit,pyspice,torch,keras,client,serve,report,dev
PACKAGES := deploy fhe quantization analog
BIN := .venv/bin
# Two test processes share the machine: more threads in each would only make them wait for one another.
THREADS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1
PYTEST := $(THREADS) $(BIN)/pytest -n 2 --dist worksteal --doctest-modules $(PACKAGES) tests

.PHONY: demo test test-long check clean

demo: .venv/ready
	$(BIN)/relu-deploy demo --force --also ckks.fit=exact

# The tests run even where a static check fails, so that one look shows both; either makes the target fail.
test: .venv/ready
	@checks=0; $(MAKE) --no-print-directory check || checks=$$?; \
	echo '$(PYTEST) -m "not long"'; $(PYTEST) -m "not long" && exit $$checks

test-long: check .venv/ready-long
	$(BIN)/python tests/mutants/run.py
	$(PYTEST)

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/ready: pyproject.toml constraints-dev.txt .ci/setup
	.ci/setup $(EXTRAS)
	touch $@

.venv/ready-long: .venv/ready
	.ci/setup $(EXTRAS),cluster
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
