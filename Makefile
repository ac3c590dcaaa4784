# One entry for everything a newcomer or CI does. Each target does its own setup: idempotent, cached, saying what it does.

PYTHON_BOOT ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# On CI a failed test is run once more by itself; the summary names it, and it is a defect to be fixed all the same.
RERUNS := $(if $(DART_TEST_RERUNS),--reruns $(DART_TEST_RERUNS) -raR)
# Processes that share the files of tests of the first two tiers. ARGS=-n0 runs all in this one, for a debugger.
JOBS ?= 2
SHARED := -n $(JOBS) --dist loadfile

.PHONY: docs chaos ecosystem test-ecosystem help setup setup-locked demo test test-unit test-desktop test-docker test-libvirt .test-libvirt test-postgres test-apparmor test-vllm test-browser test-slow .test-slow-libvirt test-snippets test-attacks test-wheel quickstart lint image image-desktop osworld-client scorer clean reap

help:
	@echo "make setup         system packages, .venv, Python packages, CRIU, desktop image, noVNC"
	@echo "make demo          the main job: a small policy learns tasks on live desktops (about 40 minutes)"
	@echo "make setup-locked  the same for a farm alone, from packages that are checked by their sha256"
	@echo "make test          lint, types, unit, contract and integration tests (about 25 minutes)"
	@echo "make test-vllm     real vLLM engines: rollouts, weight updates, log-probs, the demo in small: about ten minutes"
	@echo "make lint          ruff and mypy"
	@echo "make image         (re)build the image basic; make image-desktop: the image desktop"
	@echo "make test-docker   the same tests of desktops on a container engine of its own; make test-libvirt: on virtual machines"
	@echo "make test-browser  the dashboard in a real headless Chromium, which it installs; screenshots are left in tests/artifacts"
	@echo "make test-apparmor desktops under the AppArmor profile, in a virtual machine with Debian's kernel; as root, without KVM half an hour"
	@echo "make test-postgres the tests of the database on a PostgreSQL server of their own"
	@echo "make test-slow     proofs too long for the tests above, on what those have set up: about half an hour"
	@echo "make test-attacks  every way of the attack book to fake success against every family of the bundled suites: half an hour"
	@echo "make test-snippets  every code block of the tutorials and how-to guides, on live desktops: about half an hour; ARGS='-k first-environment'"
	@echo "make test-ecosystem  every wrapper of Gymnasium and the examples of docs/examples (RLlib, TRL, ...) on live desktops; installs those libraries in .ecosystem"
	@echo "make quickstart    runs README's quickstart as it is written, in a copy of this checkout"
	@echo "make test-wheel    builds sdist and wheel, checks what they contain, and installs them without a checkout"
	@echo "make osworld-client  OSWorld's own client (desktop-env) in .osworld-client, for the tests that run it unchanged"
	@echo "make scorer        OSWorld's official evaluators (desktop-env) in an environment of their own, for the tests that compare with them"
	@echo "make chaos         planted faults are caught; then kill clients, desktops and the server at random for 15 minutes; ARGS='--minutes 1 --seed 7 --postgres'"
	@echo "make docs          builds the documentation site in docs-site; a broken link or a page that is in no menu fails"
	@echo "make fuzz          schemathesis over the whole API, malformed requests, WebSocket frames, a hundred thousand model outputs for each reader: half an hour"
	@echo "make reap          remove everything a crashed farm left on this host"

setup:
	@$(PYTHON_BOOT) server/deploy/setup_host.py

setup-locked:
	@$(PYTHON_BOOT) server/deploy/setup_host.py --locked

demo: setup
	@$(VENV)/bin/dart-train run dart_train/recipes/demo.toml $(ARGS)

lint:
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(PY) .ci/check_terms.py
	@$(VENV)/bin/mypy docs/hooks.py
	@$(VENV)/bin/mypy .ci/check_terms.py .ci/check_commit_message.py .ci/quickstart.py
	@$(VENV)/bin/mypy server/deploy/setup_host.py server/deploy/supervised_command.py server/deploy/docker_engine.py server/deploy/libvirt_host.py server/deploy/apparmor_host.py server/deploy/postgres_server.py server/deploy/browser_host.py vm_images/build.py vm_images/verify.py

test: setup lint test-unit test-desktop

test-unit:
	@$(VENV)/bin/pytest tests -m "not desktop and not docker and not libvirt and not postgres and not vllm and not browser and not slow" $(SHARED) $(RERUNS) $(ARGS)

test-desktop:
	@$(VENV)/bin/pytest tests -m "desktop and not docker and not libvirt and not postgres and not vllm and not browser and not slow" $(SHARED) $(RERUNS) $(ARGS)

test-postgres:
	@$(PY) server/deploy/postgres_server.py -- $(VENV)/bin/pytest tests -m "postgres and not slow" $(RERUNS) $(ARGS)

test-docker:
	@$(PY) server/deploy/docker_engine.py -- $(VENV)/bin/pytest tests -m "docker and not slow" $(RERUNS) $(ARGS)

test-libvirt:
	@$(PY) server/deploy/libvirt_host.py -- $(MAKE) --no-print-directory .test-libvirt

.test-libvirt:
	@$(PY) vm_images/build.py build basic --artefact qcow2
	@$(VENV)/bin/pytest tests -m "libvirt and not slow" $(RERUNS) $(ARGS)

test-browser:
	@$(PY) server/deploy/browser_host.py -- $(VENV)/bin/pytest tests -m "browser and not slow" $(RERUNS) $(ARGS)

test-apparmor:
	@$(PY) server/deploy/apparmor_host.py -- $(VENV)/bin/pytest -n0 tests/contract/test_apparmor_live.py tests/unit/dart_server/test_hostd_apparmor.py $(ARGS)

test-vllm:
	@$(VENV)/bin/pytest tests -m "vllm and not slow" $(RERUNS) $(ARGS)

test-slow:
	@$(PY) server/deploy/docker_engine.py -- $(VENV)/bin/pytest tests -m "slow and not libvirt and not ecosystem and not snippets" --ignore tests/fuzz --ignore tests/wheel $(RERUNS) $(ARGS)
	@$(PY) server/deploy/libvirt_host.py -- $(MAKE) --no-print-directory .test-slow-libvirt

.test-slow-libvirt:
	@$(PY) vm_images/build.py build desktop --artefact qcow2
	@$(VENV)/bin/pytest tests -m "slow and libvirt" $(RERUNS) $(ARGS)

test-snippets:
	@$(VENV)/bin/pytest tests/snippets $(RERUNS) $(ARGS)

ecosystem:
	@$(PY) server/deploy/ecosystem.py

test-ecosystem: ecosystem
	@$(VENV)/bin/pytest tests -m ecosystem $(RERUNS) $(ARGS)

quickstart:
	@$(PY) .ci/quickstart.py

test-attacks:
	@$(VENV)/bin/pytest tests/adversarial/test_attack_book.py $(RERUNS) $(ARGS)

test-wheel:
	@$(VENV)/bin/pytest tests/wheel $(RERUNS) $(ARGS)

fuzz:
	@$(VENV)/bin/pytest tests/fuzz -rP $(ARGS)

docs:
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "built docs-site/index.html"

image:
	@$(PY) vm_images/build.py build basic

image-desktop:
	@$(PY) vm_images/build.py build desktop

osworld-client:
	@$(PYTHON_BOOT) server/deploy/osworld_environment.py

scorer:
	@$(VENV)/bin/dart-envs scorer install

chaos:
	@$(VENV)/bin/pytest -q tests/integration/test_chaos_sim.py
	@$(PY) -m benchmarks.chaos $(ARGS)

reap:
	@$(VENV)/bin/dart-farm reap

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
