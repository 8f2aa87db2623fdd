# Everything a fresh Debian 12/13 or Ubuntu 24.04 machine needs to run, test and measure hosttune.
# `make demo` and `make test` are the two commands to know; each sets up what it needs and is quick the second time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamps

# What tests and benchmarks compare with or prove against: pci.ids for names, libvirt and QEMU for the XML, hwloc as the peer.
PACKAGES_RUN := pci.ids python3-venv
PACKAGES_TEST := libvirt-daemon-system libvirt-clients python3-libvirt qemu-system-x86 qemu-utils ovmf
# The HTML report is clicked through in a browser where the distribution has one as a package (Debian; Ubuntu has a snap).
PACKAGES_BROWSER := chromium chromium-driver
# axe-core judges the pages in that browser; npm checks the package against the registry's digest.
AXE := axe-core@4.14.1
# Hosts of a fleet are network namespaces that answer over real ssh.
PACKAGES_SSH := openssh-server openssh-client iproute2 iputils-ping iptables iperf3
# promtool checks the alerts; the whole sweep runs their queries, and lets an emulated host fire them. Only the programs are
# wanted: they are unpacked, not installed, so that no service starts.
PACKAGES_PROMETHEUS := prometheus prometheus-node-exporter prometheus-alertmanager
PACKAGES_BENCH := hwloc-nox strace
PACKAGES_LAB := qemu-system-x86 qemu-utils mmdebstrap e2fsprogs openssh-client cpio swtpm swtpm-tools

# Tests run on every core. Python may keep their byte code, whatever the shell says: reading them anew takes 12 s.
JOBS ?= $(shell nproc)
unexport PYTHONDONTWRITEBYTECODE

DEMO := plan --root @example --gpu 0000:41:00.0 --disk /images/guest.qcow2 --network default

.PHONY: demo check test test-python evidence lab-test lab-full bench bench-fleet lint format wheelhouse packages collection site set-up set-up-test clean

demo: set-up
	$(BIN)/hosttune $(DEMO)

set-up: $(STAMP)/compiled $(STAMP)/apt-run

set-up-test: set-up $(STAMP)/test $(STAMP)/apt-test $(STAMP)/apt-browser $(STAMP)/axe $(STAMP)/apt-ssh $(STAMP)/apt-alerts

test: set-up-test
	$(BIN)/pytest -n $(JOBS) --dist worksteal --durations 10

# The unit tests on another Python than the one of .venv: make test-python PYTHON=python3.13
OTHER := .bench/$(notdir $(PYTHON))
test-python:
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --requirement requirements/run.txt --requirement requirements/test.txt
	$(OTHER)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(OTHER)/bin/pytest -n $(JOBS) --dist worksteal tests/unit

# The quick loop: linters first, then the unit tests of the rooms that changed (tests/changed.py; BASE=main, ALL=1).
check: set-up-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	files=$$($(BIN)/python tests/changed.py); [ -z "$$files" ] || $(BIN)/pytest -n $(JOBS) --dist worksteal $$files

# Every captured host with its evidence lost, emptied, refused and cut short; `make test` takes a sample.
SUMMARY := $(CURDIR)/build/evidence.jsonl
evidence: export HOSTTUNE_SWEEP := full
evidence: export HOSTTUNE_EVIDENCE_SUMMARY := $(SUMMARY)
evidence: set-up-test
	mkdir -p $(dir $(SUMMARY)) && rm -f $(SUMMARY)
	$(BIN)/pytest -n $(JOBS) --dist worksteal tests/system/test_evidence_lost.py; done=$$?; \
	$(BIN)/python tests/support/evidence_summary.py $(SUMMARY); exit $$done

# At most two workers: each boots an emulated host of its own, some two.
LAB := tests/lab -m lab -n $(shell echo $$(($(JOBS) < 2 ? $(JOBS) : 2)))
lab-test: set-up-test $(STAMP)/apt-lab $(STAMP)/apt-packages
	$(BIN)/pytest $(LAB) --durations 10

# What the other two take a sample of, whole, in parts (PART=NAME, without it all in this order); CI does not run it.
PARTS := planner faults evidence handover rest lab machines
PLANNER := tests/unit/planning tests/unit/guest
FAULTS := tests/system/test_faults_*.py tests/system/test_board_*.py tests/unit/transaction
EVIDENCE := tests/system/test_evidence_*.py tests/unit/rules tests/unit/metrics
HANDOVER := tests/system/test_handover_*.py tests/unit/handover
# Those of the lab that boot machines of their own.
MACHINES := $(addprefix tests/lab/test_lab_,alerts.py handover*.py pairs.py seen.py stock.py testguest.py tutorial.py)
all_but = $(foreach path,$(1),--ignore-glob '$(path)')
SWEEP := -n $(JOBS) --dist worksteal
ARGS_planner := $(SWEEP) $(PLANNER)
ARGS_faults := $(SWEEP) $(FAULTS)
ARGS_evidence := $(SWEEP) $(EVIDENCE)
ARGS_handover := $(SWEEP) $(HANDOVER)
ARGS_rest := $(SWEEP) tests/unit tests/system $(call all_but,$(PLANNER) $(FAULTS) $(EVIDENCE) $(HANDOVER))
ARGS_lab := $(LAB) $(call all_but,$(MACHINES))
ARGS_machines := $(subst tests/lab ,$(MACHINES) ,$(LAB))
$(if $(filter-out $(PARTS),$(PART)),$(error PART is one of: $(PARTS)))

lab-full: export HOSTTUNE_SWEEP := full
lab-full: $(addprefix part-,$(or $(PART),$(PARTS)))

part-lab part-machines: $(STAMP)/apt-lab $(STAMP)/apt-packages
part-%: set-up-test
	@echo "make lab-full: part $* of $(PARTS) (PART=NAME: one)"
	$(BIN)/pytest $(ARGS_$*) --durations 10

bench: set-up-test $(STAMP)/apt-bench $(STAMP)/nova $(STAMP)/host
	$(BIN)/python bench/run.py

# FLEET_HOSTS: the size of the large fleet, 1000 without it.
bench-fleet: set-up-test
	$(BIN)/python bench/fleet

lint: set-up-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/ansible-lint

format: set-up-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# KEY=FILE: an SSH key that signs what these two build (docs/packages.md).
SIGN := $(if $(KEY),--key '$(KEY)')

# What playbooks/bootstrap.yml installs on hosts that reach no package index (docs/bootstrap.md).
wheelhouse: $(STAMP)/run
	$(BIN)/python requirements/wheelhouse.py $(SIGN)

# Packages for hosts, the wheel, the sdist, the collection, an SBOM and checksums, in `dist` (docs/packages.md).
packages: $(STAMP)/run $(STAMP)/test $(STAMP)/apt-packages
	$(BIN)/python packaging/build.py $(SIGN)

# What `ansible-galaxy collection install` takes: dist/hosttune-host-VERSION.tar.gz (docs/playbooks.md).
collection: $(STAMP)/run $(STAMP)/test
	$(BIN)/python packaging/build.py --only collection

# The documentation as a site, in build/site: strict, links and anchors are checked (mkdocs.yml).
site: $(STAMP)/site
	NO_MKDOCS_2_WARNING=1 .bench/site/bin/mkdocs build --quiet
	@echo build/site/index.html

$(STAMP)/site: requirements/site.txt | $(VENV)/bin/python
	$(PYTHON) -m venv .bench/site
	.bench/site/bin/python -m pip install --quiet --requirement requirements/site.txt
	@mkdir -p $(STAMP) && touch $@

# --- set-up ---------------------------------------------------------------------------------------------------

$(VENV)/bin/python: | $(STAMP)/apt-venv
	$(PYTHON) -m venv $(VENV)

$(STAMP)/run: pyproject.toml requirements/run.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --requirement requirements/run.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@mkdir -p $(STAMP) && touch $@

# Start-up is measured: byte code is there from the first run on, also where Python may not write it itself.
$(STAMP)/compiled: $(STAMP)/run $(shell find hosttune -name '*.py')
	@$(BIN)/python -m compileall -q hosttune
	@touch $@

$(STAMP)/test: requirements/test.txt $(STAMP)/run
	$(BIN)/python -m pip install --quiet --requirement requirements/test.txt
	@touch $@

# The planner's peer: an environment of its own, of which hosttune's knows nothing. Without it the bench says what is missing.
$(STAMP)/nova: bench/nova/requirements.txt | $(VENV)/bin/python
	$(PYTHON) -m venv .bench/nova
	@.bench/nova/bin/python -m pip install --quiet --requirement $< && touch $@ || echo "Nova does not install here"

# What `make bench` times as a process: hosttune as it is installed on hosts, with its runtime requirements alone.
$(STAMP)/host: requirements/host.txt $(STAMP)/run $(shell find hosttune -name '*.py')
	$(PYTHON) -m venv --clear .bench/host
	@.bench/host/bin/python -m pip install --quiet --requirement requirements/host.txt
	@rm -rf .bench/wheel
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir .bench/wheel .
	@.bench/host/bin/python -m pip install --quiet --no-deps .bench/wheel/*.whl && touch $@

# System packages come through apt where that is possible (root); elsewhere the missing command is named by whoever needs it.
define apt
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  dpkg -s $(1) >/dev/null 2>&1 || { apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $(1) >/dev/null; }; \
	else echo "not root: make sure that these are installed: $(1)"; fi
	@mkdir -p $(STAMP) && touch $@
endef

# Outside .venv until it exists: venv itself may be missing on a bare Debian.
$(STAMP)/apt-venv:
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends python3-venv >/dev/null; }
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/apt-run: | $(VENV)/bin/python
	$(call apt,$(PACKAGES_RUN))

$(STAMP)/apt-test: | $(VENV)/bin/python
	$(call apt,$(PACKAGES_TEST))

$(STAMP)/apt-browser: | $(STAMP)/apt-test
	@if apt-cache show $(PACKAGES_BROWSER) >/dev/null 2>&1; then $(MAKE) --no-print-directory $(STAMP)/apt-browser-packages; \
	else echo "no Chromium package here: the HTML report is not tested in a browser"; fi
	@touch $@

$(STAMP)/axe: | $(VENV)/bin/python
	@mkdir -p $(VENV)/axe; cd $(VENV)/axe; npm pack --silent $(AXE) >/dev/null 2>&1 && tar -xzf axe-core-*.tgz package/axe.min.js \
	|| echo "no npm or no axe-core here: the pages are not judged by axe"
	@touch $@

$(STAMP)/apt-browser-packages: | $(VENV)/bin/python
	$(call apt,$(PACKAGES_BROWSER))

# The program sshd is wanted, not the service: this file is Debian's own way to say so (its units and init script ask for
# it; purging openssh-server takes it away). Where openssh-server is there already, whoever installed it decides.
$(STAMP)/apt-ssh: | $(STAMP)/apt-test
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! dpkg -s openssh-server >/dev/null 2>&1; then \
	  mkdir -p /etc/ssh && touch /etc/ssh/sshd_not_to_be_run; \
	  echo "openssh-server's service stays off here: /etc/ssh/sshd_not_to_be_run"; fi
	$(call apt,$(PACKAGES_SSH))

$(STAMP)/apt-alerts: | $(STAMP)/apt-test
	@get="apt-get download -qq -o APT::Sandbox::User=root $(PACKAGES_PROMETHEUS)"; \
	  rm -rf $(VENV)/prometheus && mkdir -p $(VENV)/prometheus && cd $(VENV)/prometheus && \
	  { $$get 2>/dev/null || { apt-get update -qq && $$get; }; } && \
	  for one in *.deb; do dpkg -x $$one . && rm $$one || exit 1; done && ln -sf $$PWD/usr/bin/prom* ../bin/ || \
	  echo "no package of Prometheus here: alerts and dashboards are tested only where promtool is in PATH"
	@touch $@

$(STAMP)/apt-bench: | $(VENV)/bin/python
	$(call apt,$(PACKAGES_BENCH))

$(STAMP)/apt-packages: | $(VENV)/bin/python
	$(call apt,rpm)

$(STAMP)/apt-lab: | $(VENV)/bin/python
	$(call apt,$(PACKAGES_LAB))

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .lab
